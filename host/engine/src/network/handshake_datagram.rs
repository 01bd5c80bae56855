//! Encodes and decodes the datagrams of handshakes.
//!
//! They travel to UDP port 4791, where any RoCE v2 device listens, and are made so that none will
//! take them for its own: base transport header version 15 (only 0 exists), a manufacturer's
//! opcode, destination queue pair 0, and no valid checksum. Devices drop such packets without an
//! answer.

/// Bytes of a handshake datagram: a base transport header, our mark, the question's number, and,
/// where a checksum would be, four zero bytes or the features of the Omniverb that replies.
pub const DATAGRAM_BYTES: usize = 40;

/// A transport version that does not exist.
const VERSION_OTHER: u8 = 15;
const HEADER: [u8; 12] = [0xff, VERSION_OTHER, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const PROBE: [u8; 8] = *b"omniver1";
const REPLY: [u8; 8] = *b"omniver2";

/// The contents of such a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Asks what is there: the number is drawn for it, and valid once.
    Probe(u128),
    /// Another Omniverb, which can do this.
    Reply(u128, u32),
}

fn write(mark: [u8; 8], number: u128, features: u32) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0; DATAGRAM_BYTES];
    bytes[..12].copy_from_slice(&HEADER);
    bytes[12..20].copy_from_slice(&mark);
    bytes[20..36].copy_from_slice(&number.to_be_bytes());
    bytes[36..].copy_from_slice(&features.to_be_bytes());
    bytes
}

/// The datagram of a probe.
#[must_use]
pub fn probe(number: u128) -> [u8; DATAGRAM_BYTES] {
    write(PROBE, number, 0)
}

/// The reply to it: not longer, so that sending it elsewhere gains an attacker nothing.
#[must_use]
pub fn reply(number: u128, features: u32) -> [u8; DATAGRAM_BYTES] {
    write(REPLY, number, features)
}

/// Decodes a datagram, if it is one of these.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Handshake> {
    let bytes: &[u8; DATAGRAM_BYTES] = bytes.try_into().ok()?;
    let number = u128::from_be_bytes(bytes[20..36].try_into().ok()?);
    let last = u32::from_be_bytes(bytes[36..].try_into().ok()?);
    match (bytes[..12] == HEADER, &bytes[12..20]) {
        (true, mark) if mark == PROBE && last == 0 => Some(Handshake::Probe(number)),
        (true, mark) if mark == REPLY => Some(Handshake::Reply(number, last)),
        _ => None,
    }
}

/// Whether a datagram, which is no sound packet, begins as handshakes do: with a transport version
/// that does not exist.
pub(crate) fn begins(datagram: &[u8]) -> bool {
    datagram.get(1).is_some_and(|byte| byte & 0x0f == VERSION_OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_datagrams_count() {
        let number = 0x1234_5678_9abc_def0_1122_3344_5566_7788;
        let bytes = probe(number);
        assert_eq!(read(&bytes), Some(Handshake::Probe(number)));
        assert_eq!(read(&reply(number, 9)), Some(Handshake::Reply(number, 9)));
        assert!(begins(&bytes));
        for at in (0..20).chain(36..40) {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(read(&other), None);
        }
        assert_eq!(read(&bytes[..39]), None);
        assert_eq!(read(&[]), None);
    }
}
