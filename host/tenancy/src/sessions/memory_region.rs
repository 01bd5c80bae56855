//! Describes a region with remote access.

use omniverb_session::body::RegMr;
use std::ops::Range;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The attributes of a registration; they do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    /// The process's own number of the protection domain.
    pub(crate) pd: u32,
    /// `IBV_ACCESS_*` bits.
    pub(crate) access: u32,
    /// First address, as peers name it.
    pub(crate) addr: u64,
    /// Bytes from there on; they do not wrap.
    pub(crate) length: u64,
}

impl From<&RegMr> for Mr {
    fn from(m: &RegMr) -> Mr {
        Mr { pd: m.pd, access: m.access, addr: m.addr, length: m.length }
    }
}

impl Mr {
    /// The whole pages of a region.
    pub(crate) fn pages(&self) -> Range<u64> {
        let end = self.addr.saturating_add(self.length) & !(PAGE_BYTES - 1);
        let start = self.addr.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end);
        start..end.max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mr(addr: u64, length: u64) -> Mr {
        Mr { pd: 1, access: 4, addr, length }
    }

    #[test]
    fn whole_pages() {
        assert_eq!(mr(0x10800, 0x3000).pages(), 0x11000..0x13000);
        assert!(mr(0x10800, 0x900).pages().is_empty());
        assert!(mr(u64::MAX - 10, 5).pages().is_empty());
    }
}
