//! Waking another process that need not be trusted.
//!
//! A wake is a datagram on a unix socket pair, one end per process. An eventfd would be simpler,
//! but its blocking mode is shared by all holders: a hostile peer could make it blocking, fill it,
//! and hang whoever rings next. Here every call says for itself that it must not block, the two
//! ends share no state, and a dead peer does not make our end readable for ever.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Wakes that one [`WakeEnd::take`] removes. The kernel queues about ten; a flood beyond this is
/// left for the next call, so that it cannot hold us.
const TAKEN_AT_ONCE: usize = 16;

/// One end of a pair: [`signal`](Self::signal) wakes the other end's sleeper.
#[derive(Debug)]
pub struct WakeEnd(OwnedFd);

/// A new pair.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn pair() -> io::Result<(WakeEnd, WakeEnd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    Ok((WakeEnd(one), WakeEnd(other)))
}

impl WakeEnd {
    /// Makes the other end readable. Never blocks. A full queue means the other side has been
    /// woken often enough, and a dead one needs no waking: neither is an error.
    pub fn signal(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while let Err(Errno::INTR) = send(&self.0, &[0], flags) {}
    }

    /// Removes what is pending; `true` if there was anything. Never blocks.
    pub fn take(&self) -> bool {
        let mut any = false;
        for _ in 0..TAKEN_AT_ONCE {
            match recv(&self.0, &mut [0u8; 1], RecvFlags::DONTWAIT) {
                Ok(_) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        any
    }

    /// Sleeps until the other end signals; `false` after `timeout`. Does not take.
    ///
    /// # Errors
    /// What `poll` says, `EINTR` included.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        crate::event::readable(self.0.as_fd(), timeout)
    }
}

impl AsFd for WakeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for WakeEnd {
    fn from(file: OwnedFd) -> WakeEnd {
        WakeEnd(file)
    }
}

impl From<WakeEnd> for OwnedFd {
    fn from(end: WakeEnd) -> OwnedFd {
        end.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_the_other_end_only() {
        let (ours, theirs) = pair().unwrap();
        ours.signal();
        assert!(!ours.take());
        assert!(theirs.wait(None).unwrap());
        assert!(theirs.take());
        assert!(!theirs.take());
        assert!(!theirs.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_full_queue_and_a_dead_peer_do_not_block() {
        let (ours, theirs) = pair().unwrap();
        for _ in 0..10_000 {
            ours.signal();
        }
        assert!(theirs.take());
        drop(theirs);
        ours.signal();
        assert!(!ours.wait(Some(Duration::ZERO)).unwrap(), "a dead peer must not look like a wake");
    }
}
