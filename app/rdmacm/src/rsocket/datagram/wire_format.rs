//! Encodes what two datagram sockets say to each other: the header of each datagram between queue
//! pairs, and that of datagrams through the kernel, by which they learn of each other's queue
//! pairs.
//!
//! In: bytes from any sender, each checked here. Out: values. The format is that of rdma-core
//! (`librdmacm/docs/rsocket` there).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use omniverb_terms::Gid;

/// Bytes of the longest header.
pub(crate) const HEADER_MAX: usize = 28;
/// Bytes of the longest header between queue pairs.
pub(crate) const NAME_MAX: usize = 24;
/// Bytes in front of what a datagram queue pair receives (IBA 9.8.3): a global route header.
pub(crate) const ROUTE_BYTES: usize = 40;

/// By which datagrams of such sockets are known among others.
const TAG: u32 = 0x5555_5555;
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// What stands in front of a datagram's data: its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    bytes: [u8; HEADER_MAX],
    length: usize,
}

impl Header {
    fn new(length: usize) -> Header {
        Header { bytes: [0; HEADER_MAX], length }
    }

    fn put<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Header {
        self.bytes[at..at + N].copy_from_slice(&bytes);
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The sender, in front of data between queue pairs.
pub(crate) fn name(from: SocketAddr) -> Header {
    let port = from.port().to_be_bytes();
    match from {
        SocketAddr::V4(four) => {
            Header::new(8).put(0, [4, 8]).put(2, port).put(4, four.ip().octets())
        }
        SocketAddr::V6(six) => Header::new(NAME_MAX)
            .put(0, [6, NAME_MAX as u8])
            .put(2, port)
            .put(4, six.flowinfo().to_be_bytes())
            .put(8, six.ip().octets()),
    }
}

/// The sender, and how long the header is. `None`: it is none.
pub(crate) fn named(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let port = u16::from_be_bytes(part(bytes, 2)?);
    match part(bytes, 0)? {
        [4, 8] => {
            let ip: [u8; 4] = part(bytes, 4)?;
            Some((SocketAddr::from((ip, port)), 8))
        }
        [6, 24] => {
            let flow = u32::from_be_bytes(part(bytes, 4)?);
            let ip: [u8; 16] = part(bytes, 8)?;
            Some((SocketAddrV6::new(ip.into(), port, flow, 0).into(), NAME_MAX))
        }
        _ => None,
    }
}

/// What a datagram through the kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramPurpose {
    /// It has data, and an answer is expected.
    Data,
    /// It answers such a one.
    Answer,
}

/// The header of a datagram through the kernel, with the sender's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelDatagramHeader {
    pub(crate) purpose: DatagramPurpose,
    pub(crate) qpn: u32,
}

impl KernelDatagramHeader {
    /// With the sender's address, which is where the queue pair is.
    pub(crate) fn encode(self, from: IpAddr) -> Header {
        let op = match self.purpose {
            DatagramPurpose::Data => DATA,
            DatagramPurpose::Answer => CONTROL,
        };
        let (version, length) = if from.is_ipv4() { (4, 16) } else { (6, 28) };
        let header = Header::new(length)
            .put(0, TAG.to_be_bytes())
            .put(4, [version, op, length as u8, 0])
            .put(8, (self.qpn & 0xff_ffff).to_be_bytes());
        match from {
            IpAddr::V4(ip) => header.put(12, ip.octets()),
            IpAddr::V6(ip) => header.put(12, ip.octets()),
        }
    }

    /// It, and how long it is, of a datagram that came from such an address. `None`: it is none.
    pub(crate) fn decode(bytes: &[u8], from: IpAddr) -> Option<(KernelDatagramHeader, usize)> {
        let (version, length) = if from.is_ipv4() { (4, 16) } else { (6, 28) };
        let [said, op, says, _] = part(bytes, 4)?;
        let purpose = match op {
            DATA => DatagramPurpose::Data,
            CONTROL => DatagramPurpose::Answer,
            _ => return None,
        };
        let is_one = u32::from_be_bytes(part(bytes, 0)?) == TAG
            && (said, usize::from(says)) == (version, length)
            && bytes.len() >= length;
        let qpn = u32::from_be_bytes(part(bytes, 8)?) & 0xff_ffff;
        is_one.then_some((KernelDatagramHeader { purpose, qpn }, length))
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Whose address is in a global route header: of RoCE v2 over IPv4 it is an IPv4 header in the last
/// twenty bytes (annex A17.4.5.2).
pub(crate) fn sender(route: &[u8; ROUTE_BYTES]) -> IpAddr {
    let [first, ..] = *route;
    let four: Option<[u8; 4]> = part(route, 32);
    let six: Option<[u8; 16]> = part(route, 8);
    match (four, six) {
        (Some(four), _) if first >> 4 != 6 => Ipv4Addr::from(four).into(),
        (_, Some(six)) => Ipv6Addr::from(six).to_canonical(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The GID of a sender whose address is no IPv4 address: of the same header.
pub(crate) fn sender_gid(route: &[u8; ROUTE_BYTES]) -> Option<Gid> {
    let gid = part(route, 8).map(Gid::new)?;
    (route[0] >> 4 == 6).then_some(gid)
}

/// Whether the sender may call itself so.
pub(crate) fn may_be(name: IpAddr, sender: IpAddr) -> bool {
    let name = name.to_canonical();
    name == sender || name.is_loopback() && sender.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FOUR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 0x1c06);
    const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    #[test]
    fn headers_are_as_rdma_core_has_them() {
        assert_eq!(name(FOUR).bytes(), [4, 8, 0x1c, 6, 10, 1, 2, 3]);
        let knock = KernelDatagramHeader { purpose: DatagramPurpose::Data, qpn: 0x12_3456 };
        assert_eq!(
            knock.encode(FOUR.ip()).bytes(),
            [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3]
        );
        let six = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7, 0x0102_0304, 9);
        let header = name(six.into());
        assert_eq!(header.bytes()[..8], [6, 24, 0, 7, 1, 2, 3, 4]);
        assert_eq!(header.bytes()[8..], Ipv6Addr::LOCALHOST.octets());
        let answer = KernelDatagramHeader { purpose: DatagramPurpose::Answer, qpn: 5 }
            .encode((*six.ip()).into());
        assert_eq!((answer.bytes()[4..8].to_vec(), answer.bytes().len()), (vec![6, 7, 28, 0], 28));
    }

    #[test]
    fn others_are_no_such_datagrams() {
        let good =
            KernelDatagramHeader { purpose: DatagramPurpose::Data, qpn: 1 }.encode(FOUR.ip());
        assert!(KernelDatagramHeader::decode(good.bytes(), FOUR.ip()).is_some());
        assert_eq!(KernelDatagramHeader::decode(good.bytes(), SIX), None);
        assert_eq!(KernelDatagramHeader::decode(&good.bytes()[..15], FOUR.ip()), None);
        for at in [0, 3, 4, 6] {
            let mut bad = good.bytes().to_vec();
            bad[at] ^= 1;
            assert_eq!(KernelDatagramHeader::decode(&bad, FOUR.ip()), None, "{at}");
        }
        let mut unknown = good.bytes().to_vec();
        unknown[5] = 3;
        assert_eq!(KernelDatagramHeader::decode(&unknown, FOUR.ip()), None);
        assert_eq!(named(&[4, 24, 0, 1, 1, 2, 3, 4]), None);
        assert_eq!(named(&name(FOUR).bytes()[..7]), None);
    }

    #[test]
    fn no_process_may_claim_another_identity() {
        let mut route = [0; ROUTE_BYTES];
        route[20] = 0x45;
        route[32..36].copy_from_slice(&[10, 1, 2, 3]);
        assert_eq!(sender(&route), FOUR.ip());
        assert!(may_be(FOUR.ip(), sender(&route)));
        let mapped = Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped();
        assert!(may_be(mapped.into(), sender(&route)));
        assert!(!may_be([10, 1, 2, 4].into(), sender(&route)));
        assert!(!may_be([127, 0, 0, 1].into(), sender(&route)));
        assert!(may_be([127, 0, 0, 2].into(), [127, 0, 0, 1].into()));
        route[0] = 0x60;
        route[8..24].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        assert_eq!(sender(&route), IpAddr::V6(Ipv6Addr::LOCALHOST));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            ip: [u8; 16],
            four: bool,
            port: u16,
            flow: u32,
            qpn: u32,
            has_data: bool,
        ) {
            let [a, b, c, d, ..] = ip;
            let from: SocketAddr = match four {
                true => ([a, b, c, d], port).into(),
                false => SocketAddrV6::new(ip.into(), port, flow, 0).into(),
            };
            prop_assert_eq!(named(name(from).bytes()), Some((from, name(from).bytes().len())));
            let purpose = if has_data { DatagramPurpose::Data } else { DatagramPurpose::Answer };
            let knock = KernelDatagramHeader { purpose, qpn: qpn & 0xff_ffff };
            let header = knock.encode(from.ip());
            let read = KernelDatagramHeader::decode(header.bytes(), from.ip());
            prop_assert_eq!(read, Some((knock, header.bytes().len())));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64), four: bool) {
            let from = if four { FOUR.ip() } else { SIX };
            let header = KernelDatagramHeader::decode(&bytes, from);
            for length in [named(&bytes).map(|n| n.1), header.map(|header| header.1)] {
                prop_assert!(length.is_none_or(|length| length <= bytes.len()));
            }
        }
    }
}
