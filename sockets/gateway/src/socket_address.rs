//! Socket addresses, as rdma_cm reads and writes them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of any address.
const ROOM: usize = size_of::<libc::sockaddr_storage>();

/// A `sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Address([u8; ROOM]);

impl Address {
    /// As C has this one.
    pub(crate) fn new(of: SocketAddr) -> Self {
        let mut bytes = [0; ROOM];
        let family = if of.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        bytes[2..4].copy_from_slice(&of.port().to_be_bytes());
        match of.ip() {
            IpAddr::V4(address) => bytes[4..8].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes[8..24].copy_from_slice(&address.octets()),
        }
        Self(bytes)
    }

    /// Of these bytes.
    pub(crate) fn from_bytes(bytes: [u8; ROOM]) -> Self {
        Self(bytes)
    }

    /// The address without its port, if it is one of IP.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let [a, b, _, _, four @ ..] = self.0;
        let [_, _, _, _, six @ ..] = four;
        match i32::from(libc::sa_family_t::from_ne_bytes([a, b])) {
            libc::AF_INET => four.first_chunk::<4>().map(|four| IpAddr::from(*four)),
            libc::AF_INET6 => {
                six.first_chunk::<16>().map(|six| Ipv6Addr::from(*six).to_canonical())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_were() {
        for text in ["10.1.2.3:65535", "[fd77::1]:1", "0.0.0.0:0"] {
            let of: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::new(of).ip(), Some(of.ip()));
        }
        let mapped = Address::new("[::ffff:10.1.2.3]:7".parse().unwrap());
        assert_eq!(mapped.ip(), Some(IpAddr::from([10, 1, 2, 3])), "that is the same");
        assert_eq!(Address::from_bytes([0; ROOM]).ip(), None);
    }

    #[test]
    fn an_address_has_the_layout_of_c() {
        let Address(bytes) = Address::new("10.1.2.3:258".parse().unwrap());
        assert_eq!(bytes[2..8], [1, 2, 10, 1, 2, 3]);
        let Address(bytes) = Address::new("[102:304::ff]:258".parse().unwrap());
        assert_eq!(bytes[2..12], [1, 2, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!((bytes[23], bytes[24]), (0xff, 0));
    }
}
