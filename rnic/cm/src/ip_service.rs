//! Encodes what RDMA-CM adds (annex A11): port numbers as service ids, and IP addresses in private
//! data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kinds of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortSpace {
    /// RDMA_PS_TCP: for connections.
    Tcp,
    /// RDMA_PS_UDP: for datagrams.
    Udp,
    /// RDMA_PS_IPOIB: for IP over InfiniBand.
    Ipoib,
    /// RDMA_PS_IB: for ids that are no ports of IP.
    Ib,
}

impl PortSpace {
    /// Its number in service ids, which is that of `enum rdma_port_space`.
    pub fn number(self) -> u16 {
        match self {
            PortSpace::Tcp => 0x0106,
            PortSpace::Udp => 0x0111,
            PortSpace::Ipoib => 0x0002,
            PortSpace::Ib => 0x013f,
        }
    }

    /// The one of this number.
    pub fn from_number(number: u16) -> Option<PortSpace> {
        let all = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib];
        all.into_iter().find(|space| space.number() == number)
    }
}

/// A port of a port space as a service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceId {
    /// Kind of port.
    pub space: PortSpace,
    /// The port's number in its space, in host order.
    pub port: u16,
}

impl ServiceId {
    /// From a message; `None`: a service that RDMA-CM does not know.
    pub fn from_u64(id: u64) -> Option<ServiceId> {
        let space = PortSpace::from_number(u16::try_from(id >> 16).ok()?)?;
        Some(ServiceId { space, port: id as u16 })
    }

    /// The service's number, as REQ and SIDR_REQ have it.
    pub fn to_u64(self) -> u64 {
        u64::from(self.space.number()) << 16 | u64::from(self.port)
    }
}

/// What comes first in the private data of REQ and SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The port the connection comes from.
    pub port: u16,
    /// The address it comes from.
    pub source: IpAddr,
    /// The address it goes to.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes of private data it takes.
    pub const BYTES: usize = 36;

    /// From private data that came over a network. `None`: another version, or addresses that
    /// nobody has there.
    pub fn read(private: &[u8]) -> Option<IpHeader> {
        let header = IpHeader::read_at_home(private)?;
        let is_home = header.source.is_loopback() || header.destination.is_loopback();
        (!is_home).then_some(header)
    }

    /// The same of private data that never left its vNIC: there, loopback addresses are some, too.
    pub fn read_at_home(private: &[u8]) -> Option<IpHeader> {
        let header: &[u8; Self::BYTES] = private.first_chunk()?;
        if header[0] != 0 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
            match header[1] >> 4 {
                4 => {
                    let [.., a, b, c, d] = bytes;
                    Some(Ipv4Addr::new(a, b, c, d).into())
                }
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        let (source, destination) = (address(4)?, address(20)?);
        let impossible = |ip: IpAddr| {
            let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            ip.is_unspecified() || ip.is_multicast() || broadcast
        };
        if impossible(source) || impossible(destination) {
            return None;
        }
        let port = u16::from_be_bytes([header[2], header[3]]);
        Some(IpHeader { port, source, destination })
    }

    /// Into private data. Both addresses are of one family.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut header = [0; Self::BYTES];
        header[1] = if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 };
        header[2..4].copy_from_slice(&self.port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => header[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => header[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        header
    }
}
