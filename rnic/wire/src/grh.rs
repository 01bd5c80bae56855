//! Makes the forty bytes before a UD message in its receive: the IP header it came with
//! (A17.4.5.2).

use std::net::IpAddr;

/// Bytes of that area.
pub const GRH_BYTES: usize = 40;

/// Fills the area: an IPv6 header as it is, an IPv4 header in the last twenty bytes behind zeros.
/// It is made up from what a UDP socket tells of a packet. `udp_length` counts the UDP header.
pub fn receive_area(
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    udp_length: u16,
) -> [u8; GRH_BYTES] {
    let mut area = [0; GRH_BYTES];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = &mut area[20..];
            header[0] = 0x45;
            header[1] = traffic_class;
            header[2..4].copy_from_slice(&udp_length.saturating_add(20).to_be_bytes());
            header[6] = 0x40;
            header[8] = hop_limit;
            header[9] = 17;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let checksum = ipv4_checksum(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (source, destination) => {
            area[0] = 0x60 | traffic_class >> 4;
            area[1] = traffic_class << 4;
            area[4..6].copy_from_slice(&udp_length.to_be_bytes());
            area[6] = 17;
            area[7] = hop_limit;
            for (target, address) in [(8, source), (24, destination)] {
                let octets = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                area[target..target + 16].copy_from_slice(&octets);
            }
        }
    }
    area
}

/// Checksum of an IPv4 header whose checksum field is zero (RFC 791).
pub(crate) fn ipv4_checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
