//! Encodes which sockets of a process stay the kernel's, and why, in a file that the broker reads.
//!
//! Rows of eight words. A new one takes the place of the oldest. The process writes the file, so a
//! row may be anything, and half of it old: a reader asks the kernel whether there is such a
//! socket.
//!
//! ```text
//! 0  reason:8 | 1:1 << 63
//! 1  the socket's cookie
//! 2  its address, as of IPv6    4  the other end's
//! 6  its port:16 | the other end's:16 << 16
//! ```

use crate::socket_status_rows::{Reason, halves, whole};
use core::net::SocketAddr;

/// Bytes of the file.
pub const BYTES: usize = 16 << 10;
/// Words of a row.
pub const ROW: usize = 8;
/// How many rows there is room for.
pub const ROWS: usize = BYTES / 8 / ROW;

const IS_THERE: u64 = 1 << 63;

/// A socket that is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Names the socket.
    pub cookie: u64,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other one.
    pub remote: SocketAddr,
    /// Why it is the kernel's.
    pub reason: Reason,
}

impl Kept {
    /// As a row.
    #[must_use]
    pub fn encode(&self) -> [u64; ROW] {
        let [[a, b], [c, d]] = [self.local.ip(), self.remote.ip()].map(halves);
        let ports = u64::from(self.local.port()) | u64::from(self.remote.port()) << 16;
        [IS_THERE | self.reason as u64, self.cookie, a, b, c, d, ports, 0]
    }

    /// From a row, if that has one.
    #[must_use]
    pub fn decode(row: &[u64; ROW]) -> Option<Kept> {
        let [first, cookie, a, b, c, d, ports, _] = *row;
        let reason = Reason::of(first as u8).filter(|_| first & IS_THERE != 0)?;
        let local = SocketAddr::new(whole([a, b]), ports as u16);
        let remote = SocketAddr::new(whole([c, d]), (ports >> 16) as u16);
        Some(Kept { cookie, local, remote, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_it_was() {
        let kept = Kept {
            cookie: u64::MAX,
            local: ([10, 0, 0, 1], 1).into(),
            remote: "[::1]:65535".parse().unwrap(),
            reason: Reason::Shared,
        };
        assert_eq!(Kept::decode(&kept.encode()), Some(kept));
        assert_eq!(Kept::decode(&[0; ROW]), None);
        assert_eq!(Kept::decode(&[IS_THERE | 255; ROW]), None);
    }
}
