//! Writes capture files: packets with made-up Ethernet, IP and UDP headers, as packet analysers
//! read them.

use crate::grh::receive_area;
use crate::{IcrcFlow, Identification, PORT};
use std::io::{self, Write};
use std::net::IpAddr;

/// "Times are nanoseconds", in our byte order.
const MAGIC: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
/// Bytes of a packet that are kept if nobody says another number: all of any packet.
pub const SNAP_BYTES: u32 = 1 << 16;
/// Bytes of a packet that must be kept at least: the headers.
pub const SNAP_BYTES_MIN: u32 = 128;
const HEADERS_MAX: usize = 14 + 40 + 8;

/// Writes one capture file.
pub struct Capture<W> {
    target: W,
    snap_bytes: u32,
}

/// What a captured packet came with.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// Addresses and source port.
    pub flow: IcrcFlow,
    /// Identification of the IPv4 header; IPv6 has none, and this is not looked at.
    pub identification: Identification,
    /// DSCP (six bits) and ECN (two): type of service of IPv4, traffic class of IPv6.
    pub traffic_class: u8,
    /// TTL of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
}

impl<W: Write> Capture<W> {
    /// Begins a file that keeps whole packets.
    pub fn new(target: W) -> io::Result<Capture<W>> {
        Capture::with_snap(target, SNAP_BYTES)
    }

    /// Begins a file that keeps so many bytes of each packet, within reason.
    pub fn with_snap(mut target: W, snap_bytes: u32) -> io::Result<Capture<W>> {
        let snap_bytes = snap_bytes.clamp(SNAP_BYTES_MIN, SNAP_BYTES);
        target.write_all(&MAGIC.to_ne_bytes())?;
        target.write_all(&2_u16.to_ne_bytes())?;
        target.write_all(&4_u16.to_ne_bytes())?;
        for word in [0, 0, snap_bytes, ETHERNET] {
            target.write_all(&word.to_ne_bytes())?;
        }
        Ok(Capture { target, snap_bytes })
    }

    /// Adds a datagram (a UDP payload, ICRC included) at a time in nanoseconds since 1970.
    pub fn add(&mut self, time: u64, envelope: &Envelope, datagram: &[u8]) -> io::Result<()> {
        self.add_beginning(time, envelope, datagram, datagram.len())
    }

    /// Adds a datagram of which only the first `known` bytes are known.
    pub fn add_beginning(
        &mut self,
        time: u64,
        envelope: &Envelope,
        datagram: &[u8],
        known: usize,
    ) -> io::Result<()> {
        let (headers, used) = headers(envelope, datagram);
        let length = (used + datagram.len()) as u32;
        let kept = ((used + known.min(datagram.len())) as u32).min(self.snap_bytes);
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        for word in [seconds as u32, nanoseconds as u32, kept, length] {
            self.target.write_all(&word.to_ne_bytes())?;
        }
        self.target.write_all(&headers[..used])?;
        self.target.write_all(&datagram[..kept as usize - used])
    }

    /// Hands over what the writer holds back.
    pub fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }

    /// Ends the file; hands the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.target.flush()?;
        Ok(self.target)
    }
}

/// Locally administered hardware address derived from an IP address.
fn hardware(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [2, 0, a, b, c, d]
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            [2, 6, octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

fn headers(envelope: &Envelope, datagram: &[u8]) -> ([u8; HEADERS_MAX], usize) {
    let flow = &envelope.flow;
    let udp_length = (datagram.len() + 8) as u16;
    let mut bytes = [0; HEADERS_MAX];
    bytes[..6].copy_from_slice(&hardware(flow.destination));
    bytes[6..12].copy_from_slice(&hardware(flow.source));
    let area = receive_area(
        flow.source,
        flow.destination,
        envelope.traffic_class,
        envelope.hop_limit,
        udp_length,
    );
    let udp = if flow.source.is_ipv4() && flow.destination.is_ipv4() {
        bytes[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
        bytes[14..34].copy_from_slice(&area[20..]);
        bytes[18..22].copy_from_slice(&envelope.identification.bytes());
        bytes[24..26].fill(0);
        let checksum = crate::grh::ipv4_checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        34
    } else {
        bytes[12..14].copy_from_slice(&0x86dd_u16.to_be_bytes());
        bytes[14..54].copy_from_slice(&area);
        54
    };
    bytes[udp..udp + 2].copy_from_slice(&flow.source_port.to_be_bytes());
    bytes[udp + 2..udp + 4].copy_from_slice(&PORT.to_be_bytes());
    bytes[udp + 4..udp + 6].copy_from_slice(&udp_length.to_be_bytes());
    if udp == 54 {
        // Over IPv4 it may be left out; here analysers miss it.
        let checksum = checksum([&bytes[22..62], &[0, 17], &udp_length.to_be_bytes(), datagram]);
        bytes[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    }
    (bytes, udp + 8)
}

/// UDP checksum over IPv6 (RFC 8200, 8.1): addresses and UDP header, protocol, length, payload.
fn checksum(parts: [&[u8]; 4]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            let word = [pair[0], pair.get(1).copied().unwrap_or(0)];
            sum += u64::from(u16::from_be_bytes(word));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Zero means that there is none.
    match !sum as u16 {
        0 => 0xffff,
        checksum => checksum,
    }
}
