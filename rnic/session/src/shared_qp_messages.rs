//! Messages between a process that has made a queue pair which receives in an XRC domain, and one
//! that has it open, too (`ibv_open_qp`).
//!
//! They have a pair of sockets for each time that it is open, found by
//! [`OpenQp`](crate::body::OpenQp): the end of either is the end of that. Who has it open asks,
//! [`Ask`], one question at a time, and gets a [`Notice`] of what it asked, or of what happens to
//! it. Fixed-size and native-endian, one datagram a message.

use crate::message_macros::bodies;
use omniverb_terms::{Errno, Gid, Qkey, Qpn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `Ask::what`: which attributes it has.
pub const QUERY: u32 = 1;
/// `Ask::what`: it is to have these.
pub const MODIFY: u32 = 2;

/// `Notice::what`: an answer, with the tag of the question and what the attributes are now.
pub const ANSWER: u32 = 1;
/// `Notice::what`: this has happened to it.
pub const EVENT: u32 = 2;

bodies! {
    /// Attributes of a queue pair, as programs give them and get them: any values. What is said of
    /// an alternate path has been looked at, and is not kept.
    Attributes {
        /// `IBV_QPS_*`.
        state: u32,
        /// The state that the program believes it to be in.
        current: u32,
        path_mtu: u32,
        qkey: Qkey,
        rq_psn: u32,
        sq_psn: u32,
        dest_qpn: Qpn,
        access_flags: u32,
        flow_label: u32,
        pkey_index: u16,
        dlid: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        service_level: u8,
        is_global: u8,
        /// The port of the address vector.
        address_port: u8,
        port: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        min_rnr_timer: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        reserved: [u8; 3],
        dgid: Gid,
        /// What `sgid_index` names, of who asks.
        sgid: Gid,
    }
    /// From who has it open.
    Ask {
        tag: u64,
        what: u32,
        /// `IBV_QP_*`: which attributes are given.
        mask: u32,
        attributes: Attributes,
    }
    /// From who has made it.
    Notice {
        tag: u64,
        what: u32,
        errno: Errno,
        /// `IBV_EVENT_*`.
        event: u32,
        reserved: u32,
        attributes: Attributes,
    }
}

macro_rules! datagram {
    ($($name:ident)*) => {$(
        impl $name {
            /// The message as it is sent.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }

            /// What a datagram says; `None` if it is not as long. Any fields.
            #[must_use]
            pub fn read(datagram: &[u8]) -> Option<$name> {
                $name::read_from_bytes(datagram).ok()
            }
        }
    )*};
}

datagram! { Ask Notice }

impl Attributes {
    /// All fields zero.
    pub const NONE: Attributes = Attributes {
        state: 0,
        current: 0,
        path_mtu: 0,
        qkey: Qkey(0),
        rq_psn: 0,
        sq_psn: 0,
        dest_qpn: Qpn(0),
        access_flags: 0,
        flow_label: 0,
        pkey_index: 0,
        dlid: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
        service_level: 0,
        is_global: 0,
        address_port: 0,
        port: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        min_rnr_timer: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        reserved: [0; 3],
        dgid: Gid::ZERO,
        sgid: Gid::ZERO,
    };
}

impl Ask {
    /// What there is to know.
    pub const QUERY: Ask = Ask { tag: 0, what: QUERY, mask: 0, attributes: Attributes::NONE };
}

/// Bytes of the longest of these messages.
pub const BYTES_MAX: usize = size_of::<Notice>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{HandOver, HandedOver, OpenQp, QpOpened};

    /// Who states one thing states no other.
    #[test]
    fn statements_are_different_and_can_be_made() {
        let (none, most) = (Qpn(1), Qpn::MAX);
        let mut all = Vec::new();
        for (qpn, part, door) in [(none, 0, 0), (most, 0xfff, 0xf_ffff)] {
            let (from, front, sender, reserved) = (qpn, qpn, qpn, 0);
            let (to, gid, errno) = (part, Gid::ZERO, Errno::NONE);
            all.push(HandOver { from, front, sender, part, to, reserved, gid }.statement());
            all.push(HandedOver { from, by: qpn }.statement());
            all.push(OpenQp { qpn, door, part, reserved }.statement());
            all.push(QpOpened { qpn, door, by: door, errno }.statement(part));
        }
        let count = all.len();
        // `support/sys/src/record_lock_proofs.rs`
        assert!(all.iter().all(|number| number.is_some_and(|number| number < (1 << 62) - 1)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let (qpn, part, door, reserved) = (Qpn(1), 1 << 12, 1, 0);
        assert_eq!(OpenQp { qpn, door, part, reserved }.statement(), None);
        assert_eq!(OpenQp { qpn, door: 1 << 20, part: 1, reserved }.statement(), None);
        assert_eq!(OpenQp { qpn: Qpn(1 << 24), door, part: 1, reserved }.statement(), None);
    }

    #[test]
    fn a_datagram_is_one_message_and_no_other_length_is() {
        let attributes = Attributes { dlid: 7, dest_qpn: Qpn(9), ..Attributes::NONE };
        let ask = Ask { what: MODIFY, mask: 1, attributes, ..Ask::QUERY };
        assert_eq!(Ask::read(ask.bytes()), Some(ask));
        let (errno, event) = (Errno::EIO, 3);
        let notice = Notice { tag: 4, what: ANSWER, errno, event, reserved: 0, attributes };
        assert_eq!(Notice::read(notice.bytes()), Some(notice));
        for length in 0..BYTES_MAX + 8 {
            let bytes = vec![0xa5; length];
            assert_eq!(Ask::read(&bytes).is_some(), length == size_of::<Ask>());
            assert_eq!(Notice::read(&bytes).is_some(), length == size_of::<Notice>());
        }
    }
}
