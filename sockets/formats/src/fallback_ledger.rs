//! Encodes which sockets of a process stay the kernel's, and why, in a file that the broker reads.
//!
//! A new row takes the place of the oldest. The process writes the file, so a row may be anything,
//! and half of it old: a reader asks the kernel whether there is such a socket.

use crate::message_codec::{self, fields};
use crate::socket_status_rows::Reason;
use core::net::SocketAddr;

/// Bytes of the file.
pub const BYTES: usize = 16 << 10;
/// Words of a row.
pub const ROW: usize = 9;
/// How many rows there is room for.
pub const ROWS: usize = BYTES / 8 / ROW;

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

fields!(Kept { cookie, local, remote, reason });

impl Kept {
    /// As a row.
    #[must_use]
    pub fn encode(&self) -> [u64; ROW] {
        let mut row = [0; ROW];
        message_codec::put(&Some(*self), &mut row);
        row
    }

    /// From a row, if that has one.
    #[must_use]
    pub fn decode(row: &[u64; ROW]) -> Option<Kept> {
        message_codec::take::<Option<Kept>>(row).flatten()
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
        assert_eq!(Kept::decode(&[2; ROW]), None);
    }
}
