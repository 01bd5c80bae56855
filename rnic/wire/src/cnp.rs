//! Congestion notification packet (A17.9.3): a BTH with BECN and sixteen reserved bytes.

use crate::opcode::RESERVED_BYTES;
use crate::{Bth, Opcode, SUFFIX_BYTES};
use omniverb_terms::{Psn, Qpn};
use zerocopy::IntoBytes;

/// Writes a notification for the QP that is to slow down; returns its length with room for the
/// ICRC. `None`: no room.
pub fn write_notification(datagram: &mut [u8], destination: Qpn) -> Option<usize> {
    let length = Bth::BYTES + RESERVED_BYTES + SUFFIX_BYTES;
    let datagram = datagram.get_mut(..length)?;
    datagram.fill(0);
    let header = Bth::new(Opcode::NOTIFICATION.to_byte(), destination, Psn::default())
        .migrated(false)
        .backward_congestion();
    header.write_to_prefix(datagram).ok()?;
    Some(length)
}

/// What a report of an Omniverb begins with, where a notification has zeros.
const REPORT: [u8; 4] = *b"omv1";

/// Writes a report: a notification whose reserved bytes tell another Omniverb how far the QP
/// `source` has got with the unreliable packets of the QP `destination`. Nobody else is sent one.
pub fn write_report(datagram: &mut [u8], destination: Qpn, source: Qpn, psn: Psn) -> Option<usize> {
    let length = write_notification(datagram, destination)?;
    let reserved = datagram.get_mut(Bth::BYTES..Bth::BYTES + RESERVED_BYTES)?;
    reserved[..4].copy_from_slice(&REPORT);
    reserved[4..8].copy_from_slice(&source.0.to_be_bytes());
    reserved[8..12].copy_from_slice(&psn.number().to_be_bytes());
    Some(length)
}

/// QP and PSN of a report; `None`: a plain notification. `reserved` is what follows the BTH.
pub(crate) fn read_report(reserved: &[u8]) -> Option<(Qpn, Psn)> {
    let number = |at: usize| Some(u32::from_be_bytes(reserved.get(at..at + 4)?.try_into().ok()?));
    (reserved.get(..4)? == REPORT).then_some((Qpn(number(4)?), Psn::new(number(8)?)))
}

/// What a delay notice of an Omniverb begins with, where a notification has zeros.
const DELAY: [u8; 4] = *b"omv2";

/// Writes a delay notice: a notification whose reserved bytes tell another Omniverb that answers to
/// the QP `destination` may take so many microseconds, because of a rate limit; zero: that a
/// receive is there that was missing. Nobody else is sent one.
pub fn write_delay(datagram: &mut [u8], destination: Qpn, microseconds: u32) -> Option<usize> {
    let length = write_notification(datagram, destination)?;
    let reserved = datagram.get_mut(Bth::BYTES..Bth::BYTES + RESERVED_BYTES)?;
    reserved[..4].copy_from_slice(&DELAY);
    reserved[4..8].copy_from_slice(&microseconds.to_be_bytes());
    Some(length)
}

/// Microseconds of a delay notice; `None`: it is none.
pub(crate) fn read_delay(reserved: &[u8]) -> Option<u32> {
    let microseconds = u32::from_be_bytes(reserved.get(4..8)?.try_into().ok()?);
    (reserved.get(..4)? == DELAY).then_some(microseconds)
}

#[cfg(test)]
mod tests {
    use super::{write_delay, write_notification, write_report};
    use crate::Packet;
    use omniverb_terms::{Psn, Qpn};

    #[test]
    fn a_report_is_a_notification_that_says_more() {
        let mut datagram = [0xff; 64];
        let length = write_notification(&mut datagram, Qpn(9)).unwrap();
        assert_eq!(Packet::parse(&datagram[..length]).unwrap().report(), None);
        assert_eq!(write_report(&mut datagram, Qpn(9), Qpn(7), Psn::new(0x12_3456)), Some(length));
        let packet = Packet::parse(&datagram[..length]).unwrap();
        assert_eq!(packet.bth().destination(), Qpn(9));
        assert_eq!((packet.report(), packet.delay()), (Some((Qpn(7), Psn::new(0x12_3456))), None));
    }

    #[test]
    fn so_is_a_delay_notice() {
        let mut datagram = [0xff; 64];
        let length = write_delay(&mut datagram, Qpn(9), 0x12_3456).unwrap();
        let packet = Packet::parse(&datagram[..length]).unwrap();
        assert_eq!(packet.bth().destination(), Qpn(9));
        assert_eq!((packet.report(), packet.delay()), (None, Some(0x12_3456)));
    }
}
