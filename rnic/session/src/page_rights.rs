//! Decides what a mapping of a region's pages may be used for: never more than its verbs flags
//! give.
//!
//! The processor's page protection knows pages that can be read, and pages that can be read and
//! written. There are none that can be written only, and none that only an atomic instruction
//! reaches. A region whose flags say such a thing is not mapped by a peer: its owner carries out
//! what is asked, and looks at the flags. Decided by the daemon, by the owner's library and by the
//! initiator's, each for itself.

/// `IBV_ACCESS_REMOTE_WRITE`.
pub const REMOTE_WRITE: u32 = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub const REMOTE_READ: u32 = 1 << 2;
/// `IBV_ACCESS_REMOTE_ATOMIC`.
pub const REMOTE_ATOMIC: u32 = 1 << 3;
/// `IBV_ACCESS_FLUSH_GLOBAL`: to have the owner say that what was written is visible. No right to a
/// byte, so nothing is mapped for it and no mapping is kept back for want of it.
pub const FLUSH_GLOBAL: u32 = 1 << 8;
/// Every right that a peer can have to bytes.
pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// What somebody who gets a mapping may be able to do beyond what the flags let it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTrust {
    /// Nothing beyond them.
    Exact,
    /// To read and write what it may only write, or only reach by atomics.
    Trusting,
}

/// The operations that a mapping of a region with this access may be used for; zero: none, it is
/// not to be mapped.
#[must_use]
pub const fn mappable(access: u32, trust: PeerTrust) -> u32 {
    let remote = access & REMOTE;
    let (read, write) = (remote & REMOTE_READ != 0, remote & REMOTE_WRITE != 0);
    match (read, write) {
        (true, true) => remote,
        (true, false) => REMOTE_READ,
        (false, _) if matches!(trust, PeerTrust::Trusting) => remote,
        (false, _) => 0,
    }
}

/// The same of pages in the window of a virtual machine: nobody who has a descriptor of that can be
/// kept from writing to it, so what may only be read stays where it is.
#[must_use]
pub const fn mappable_in_window(access: u32, trust: PeerTrust) -> u32 {
    if is_writable(access) { mappable(access, trust) } else { 0 }
}

/// Whether whoever gets the file of such a region may be able to write to it. One file serves all:
/// where somebody who is not trusted may read it, it takes the right to write.
#[must_use]
pub const fn is_writable(access: u32) -> bool {
    access & REMOTE_WRITE != 0 || access & (REMOTE_ATOMIC | REMOTE_READ) == REMOTE_ATOMIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_gives_what_the_flags_give_and_nothing_else() {
        const LOCAL_WRITE: u32 = 1;
        for access in 0..16 {
            let flags = access & REMOTE;
            for trust in [PeerTrust::Exact, PeerTrust::Trusting] {
                let uses = mappable(access, trust);
                let trusted = trust == PeerTrust::Trusting;
                assert_eq!(uses & !flags, 0, "{access:#x}: an operation that is not allowed");
                if uses == 0 {
                    continue;
                }
                // Who has the mapping can read, whatever it is used for.
                assert!(trusted || flags & REMOTE_READ != 0, "{access:#x} is readable");
                // And write, atomically or not, if the file lets it.
                assert!(
                    trusted || !is_writable(access) || flags & REMOTE_WRITE != 0,
                    "{access:#x}"
                );
                assert_eq!(
                    is_writable(uses),
                    is_writable(access),
                    "{access:#x}: another protection"
                );
                let writes = uses & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
                assert!(!writes || is_writable(access), "{access:#x} would be a fault");
            }
        }
        assert_eq!(mappable(FLUSH_GLOBAL, PeerTrust::Trusting), 0);
        assert_eq!(mappable(FLUSH_GLOBAL | REMOTE_READ, PeerTrust::Exact), REMOTE_READ);
        assert_eq!(mappable(LOCAL_WRITE | REMOTE_WRITE, PeerTrust::Exact), 0);
        assert_eq!(mappable(LOCAL_WRITE | REMOTE_WRITE, PeerTrust::Trusting), REMOTE_WRITE);
        assert_eq!(mappable(REMOTE_ATOMIC, PeerTrust::Exact), 0);
        assert_eq!(mappable(REMOTE_ATOMIC, PeerTrust::Trusting), REMOTE_ATOMIC);
        assert_eq!(mappable(REMOTE_READ | REMOTE_ATOMIC, PeerTrust::Trusting), REMOTE_READ);
    }

    #[test]
    fn what_may_only_be_read_is_in_no_window() {
        for access in 0..16 {
            for trust in [PeerTrust::Exact, PeerTrust::Trusting] {
                let uses = mappable_in_window(access, trust);
                assert!(uses == mappable(access, trust) || uses == 0);
                assert!(uses == 0 || is_writable(access), "{access:#x}");
            }
        }
        assert_eq!(mappable_in_window(REMOTE_READ, PeerTrust::Trusting), 0);
        assert_eq!(mappable_in_window(REMOTE, PeerTrust::Exact), REMOTE);
    }
}
