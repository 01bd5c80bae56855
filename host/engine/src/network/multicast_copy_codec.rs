//! Encodes copies of packets to groups, which go to each host of a virtual network by itself.
//!
//! A packet does not say its group: the address that it is sent to does. A copy is sent to a host,
//! so the group stands before the packet. No RoCE device takes that for a packet: its base
//! transport header has version 15, as that of [handshakes](super::handshake_datagram).
//!
//! | bytes | what |
//! |---|---|
//! | 4 | 0xff, version 15, `G`, 1 |
//! | 16 | the group, IPv4 as a mapped address |
//! | the rest | the packet |

use omniverb_terms::Qpn;
use std::net::{IpAddr, Ipv6Addr};

const MARK: [u8; 4] = [0xff, 0x0f, b'G', 1];
/// Bytes of a packet up to the end of the QPN that sends it: its base and datagram headers.
const SOURCE_END: usize = 20;

/// A copy of a packet for a group.
pub(super) fn write(group: IpAddr, packet: &[u8]) -> Vec<u8> {
    let group = match group {
        IpAddr::V4(group) => group.to_ipv6_mapped(),
        IpAddr::V6(group) => group,
    };
    [&MARK[..], &group.octets(), packet].concat()
}

/// The group and the packet of a copy, and the QPN that sends it.
pub(super) fn read(datagram: &[u8]) -> Option<(IpAddr, Qpn, &[u8])> {
    let rest = datagram.strip_prefix(&MARK)?;
    let (group, packet) = rest.split_first_chunk::<16>()?;
    let group = Ipv6Addr::from(*group).to_canonical();
    let source = source(packet).filter(|_| group.is_multicast())?;
    Some((group, source, packet))
}

/// The QPN that sends a packet to all members of a group; `None`: it is no packet to a group.
pub(super) fn source(packet: &[u8]) -> Option<Qpn> {
    let head = packet.first_chunk::<SOURCE_END>()?;
    let number = |at: usize| u32::from_be_bytes([0, head[at], head[at + 1], head[at + 2]]);
    (Qpn(number(5)) == Qpn::MULTICAST).then(|| Qpn(number(17)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes before the packet.
    const HEAD_BYTES: usize = MARK.len() + 16;

    #[test]
    fn a_copy_says_its_group_and_nothing_else_is_one() {
        let mut packet = [7; 40];
        packet[5..8].copy_from_slice(&[0xff; 3]);
        packet[17..20].copy_from_slice(&[0x41, 0x20, 5]);
        for group in [IpAddr::from([239, 1, 2, 3]), "ff15::20".parse().unwrap()] {
            let copy = write(group, &packet);
            assert_eq!(copy.len(), HEAD_BYTES + packet.len());
            assert_eq!(read(&copy), Some((group, Qpn(0x41_2005), &packet[..])));
            assert!(super::super::handshake_datagram::begins(&copy));
            (0..HEAD_BYTES + SOURCE_END).for_each(|end| assert_eq!(read(&copy[..end]), None));
        }
        assert_eq!(read(&write(IpAddr::from([10, 0, 0, 1]), &packet)), None, "no group");
        packet[7] = 0;
        assert_eq!(read(&write(IpAddr::from([239, 1, 2, 3]), &packet)), None, "to one");
        assert_eq!(read(&packet), None);
    }
}
