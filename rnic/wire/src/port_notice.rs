//! Encodes and decodes notices of ports: by them two Omniverbs tell each other which UDP ports the
//! packets of a connection are to go to (decision 0096).
//!
//! They travel from UDP port 4791 to port 4791, as handshakes do, and any other RoCE v2 device
//! drops them: base transport header version 15 (only 0 exists), a manufacturer's opcode,
//! destination queue pair 0, and no valid checksum.

use omniverb_terms::Qpn;

const HEADER: [u8; 12] = [0xff, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const MARK: [u8; 8] = *b"omniver3";
/// `flags`: the sender wants an answer in kind.
const QUESTION: u16 = 1;

/// What one end of a connection tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortNotice {
    /// The sender's queue pair.
    pub from: Qpn,
    /// The receiver's queue pair.
    pub to: Qpn,
    /// Packets for the sender's are to go to this UDP port. [`crate::PORT`]: its engine. 0: its
    /// process has died.
    pub port: u16,
    /// The sender wants an answer, which is a notice, too.
    pub is_question: bool,
    /// Grows with each change of `port`: a notice with a smaller one is old.
    pub number: u64,
    /// The largest number that the sender has got from the receiver; 0: none.
    pub heard: u64,
}

impl PortNotice {
    /// Bit of an Omniverb's answer to a handshake: it knows these notices, and sends to the ports
    /// that they name.
    pub const FEATURE: u32 = 8;
    /// Bytes of the datagram.
    pub const BYTES: usize = 48;

    /// The datagram. An answer is not longer than its question, so that a forged sender gains
    /// nothing.
    #[must_use]
    pub fn datagram(&self) -> [u8; PortNotice::BYTES] {
        let mut bytes = [0; PortNotice::BYTES];
        bytes[..12].copy_from_slice(&HEADER);
        bytes[12..20].copy_from_slice(&MARK);
        bytes[20..24].copy_from_slice(&self.from.0.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.to.0.to_be_bytes());
        bytes[28..30].copy_from_slice(&self.port.to_be_bytes());
        let flags = if self.is_question { QUESTION } else { 0 };
        bytes[30..32].copy_from_slice(&flags.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_be_bytes());
        bytes[40..].copy_from_slice(&self.heard.to_be_bytes());
        bytes
    }

    /// Decodes a datagram, if it is a notice. Any bytes.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<PortNotice> {
        let bytes: &[u8; PortNotice::BYTES] = datagram.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let flags = word(28) & 0xffff;
        let (from, to) = (Qpn(word(20)), Qpn(word(24)));
        let known = bytes[..12] == HEADER && bytes[12..20] == MARK && flags <= QUESTION.into();
        let numbered = long(32) > 0 && from <= Qpn::MAX && to <= Qpn::MAX;
        (known && numbered).then(|| PortNotice {
            from,
            to,
            port: (word(28) >> 16) as u16,
            is_question: flags != 0,
            number: long(32),
            heard: long(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_written() {
        for (port, is_question) in [(4791, true), (0, false), (50_001, true)] {
            let (number, heard) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
            let notice =
                PortNotice { from: Qpn(77), to: Qpn::MAX, port, is_question, number, heard };
            assert_eq!(PortNotice::read(&notice.datagram()), Some(notice));
        }
    }

    #[test]
    fn nothing_else_is_a_notice() {
        let notice = PortNotice {
            from: Qpn(1),
            to: Qpn(2),
            port: 1024,
            is_question: false,
            number: 1,
            heard: 0,
        };
        let bytes = notice.datagram();
        for at in 0..20 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(PortNotice::read(&other), None, "byte {at}");
        }
        let changed = |at: usize, byte: u8| {
            let mut other = bytes;
            other[at] = byte;
            PortNotice::read(&other)
        };
        // QPNs beyond 24 bits, unknown flags, no number.
        assert_eq!(
            [(20, 1), (24, 1), (31, 2), (39, 0)].map(|(at, byte)| changed(at, byte)),
            [None; 4]
        );
        assert!((0..PortNotice::BYTES).all(|length| PortNotice::read(&bytes[..length]).is_none()));
        assert!(crate::Packet::parse(&bytes).is_err());
    }
}
