//! Invariant CRC (7.8.1 and A17.3.3): CRC-32 over everything that no switch or router may change.
//!
//! The fields they may change count as ones. It begins with eight bytes of ones in the place of the
//! InfiniBand local route header, and is stored with its least significant byte first.

use crate::{Bth, crc};
use std::net::IpAddr;

/// Bytes of the ICRC.
pub const SUFFIX_BYTES: usize = 4;
/// CRC-32 of eight bytes of ones.
pub(crate) const SEED: u32 = !0xdebb_20e3;
const UDP_BYTES: usize = 8;
/// The longest masked headers: IPv6 and UDP.
const MASKED_BYTES: usize = 40 + UDP_BYTES;
/// The byte of the BTH that counts as ones: FECN, BECN and reserved bits.
pub(crate) const MASKED_AT: usize = 4;
const UDP_PROTOCOL: u8 = 17;

/// Computes the ICRC of `packet`, a UDP payload without its ICRC. `fragment` are the four bytes of
/// an IPv4 header that hold identification, flags and offset.
pub fn icrc(
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    fragment: [u8; 4],
    packet: &[u8],
) -> u32 {
    // Masked headers and the BTH go through the CRC in one piece.
    let (mut head, bth) = masked(source, destination, source_port, fragment, packet.len());
    let split = packet.len().min(Bth::BYTES);
    head[bth..bth + split].copy_from_slice(&packet[..split]);
    if split > MASKED_AT {
        head[bth + MASKED_AT] = 0xff; // FECN, BECN and reserved bits
    }
    let before = crc::go_on(SEED, &head[..bth + split]);
    crc::go_on(before, &packet[split..])
}

/// Headers before a packet of `length` bytes without its ICRC, with ones in the fields that may
/// change; how long they are; and room for a BTH.
pub(crate) fn masked(
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    fragment: [u8; 4],
    length: usize,
) -> ([u8; MASKED_BYTES + Bth::BYTES], usize) {
    let mut head = [0xff_u8; MASKED_BYTES + Bth::BYTES];
    let udp_bytes = UDP_BYTES + length + SUFFIX_BYTES;
    let ip_bytes = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            head[0] = 0x45;
            head[2..4].copy_from_slice(&((20 + udp_bytes) as u16).to_be_bytes());
            head[4..8].copy_from_slice(&fragment);
            head[9] = UDP_PROTOCOL;
            head[12..16].copy_from_slice(&source.octets());
            head[16..20].copy_from_slice(&destination.octets());
            20
        }
        (source, destination) => {
            head[0] = 0x6f;
            head[4..6].copy_from_slice(&(udp_bytes as u16).to_be_bytes());
            head[6] = UDP_PROTOCOL;
            head[8..24].copy_from_slice(&octets(source));
            head[24..40].copy_from_slice(&octets(destination));
            40
        }
    };
    head[ip_bytes..ip_bytes + 2].copy_from_slice(&source_port.to_be_bytes());
    head[ip_bytes + 2..ip_bytes + 4].copy_from_slice(&crate::PORT.to_be_bytes());
    head[ip_bytes + 4..ip_bytes + 6].copy_from_slice(&(udp_bytes as u16).to_be_bytes());
    (head, ip_bytes + UDP_BYTES)
}

/// Addresses of two families do not meet in one packet; if they do, the check fails, no more.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
