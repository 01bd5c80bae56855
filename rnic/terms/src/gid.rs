//! Defines GIDs, the names of ports (InfiniBand specification 4.1; of RoCE v2: A17.4.5).

use crate::newtype::name;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

name! {
    /// A GID: 128 bits in network order. That of RoCE v2 is an IP address, IPv4 mapped into IPv6.
    Gid([u8; 16])
}

impl Gid {
    /// All zeros: an empty entry of a table, or no node.
    pub const ZERO: Gid = Gid([0; 16]);
    /// The last in order.
    pub const MAX: Gid = Gid([0xff; 16]);

    /// From its bytes in network order, as in `union ibv_gid`.
    #[inline]
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// Its bytes in network order.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The address that it is written as; a mapped one is IPv4.
    #[inline]
    #[must_use]
    pub const fn address(self) -> IpAddr {
        Ipv6Addr::from_octets(self.0).to_canonical()
    }

    /// The IPv4 address that is mapped into it (RFC 4291, 2.5.5.2), if it is one.
    #[inline]
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let (prefix, address) = self.0.split_first_chunk::<12>()?;
        (*prefix == MAPPED).then(|| address.first_chunk::<4>().map(|&it| it.into()))?
    }

    /// The one after it in order, if it is not the last.
    #[must_use]
    pub fn next(self) -> Option<Gid> {
        u128::from_be_bytes(self.0).checked_add(1).map(|next| Gid(next.to_be_bytes()))
    }

    /// Whether it is all zeros: an empty entry of a table, or no node.
    #[inline]
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Gid::ZERO
    }

    /// `fe80::/10`: means something on one interface's link only (RFC 4291, 2.5.6).
    #[inline]
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The host that it is of, as far as it tells: a host has as many addresses as it likes in its
    /// IPv6 network. What senders share is shared by hosts.
    #[must_use]
    pub fn host(self) -> Gid {
        if self.ipv4().is_some() || self.is_link_local() {
            return self;
        }
        let mut bytes = self.0;
        bytes[8..].fill(0);
        Gid(bytes)
    }

    /// `224.0.0.0/4` and `ff00::/8`: a group (RoCE annex A17.4.9).
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.address().is_multicast()
    }

    /// `127.0.0.0/8` and `::1`: "myself" everywhere.
    #[inline]
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        self.address().is_loopback()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        match address {
            IpAddr::V4(four) => four.into(),
            IpAddr::V6(six) => six.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Gid {
        Gid(address.octets())
    }
}

impl fmt::Display for Gid {
    /// As an IPv6 address, mapped ones with the dotted form (RFC 5952, 5).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from_octets(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    fn gid(text: &str) -> Gid {
        let address: IpAddr = text.parse().unwrap();
        address.into()
    }

    #[test]
    fn an_address_is_a_name_and_back() {
        for text in ["10.0.0.1", "fe80::1", "2001:db8::7"] {
            assert_eq!(gid(text).address().to_string(), text);
        }
        assert_eq!(gid("10.0.0.1"), gid("::ffff:10.0.0.1"));
        assert_eq!(gid("10.0.0.1").to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid("10.0.0.1").ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        for other in ["::10.0.0.1", "::fffe:10.0.0.1", "64:ff9b::10.0.0.1", "::"] {
            assert_eq!(gid(other).ipv4(), None, "{other}");
        }
        assert_eq!(gid("::").bytes(), [0; 16]);
        assert!(gid("::").is_zero());
    }

    #[test]
    fn a_host_is_one_sender_whatever_addresses_it_takes() {
        let host = |text| gid(text).host();
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:3:4:5"));
        for (one, other) in
            [("2001:db8::1", "2001:db8:0:1::1"), ("fe80::1", "fe80::2"), ("10.0.0.1", "10.0.0.2")]
        {
            assert_ne!(host(one), host(other));
        }
    }

    #[test]
    fn they_have_an_order() {
        assert_eq!(gid("::ffff").next(), Some(gid("::1:0")));
        assert_eq!(Gid::MAX.next(), None);
        assert!(Gid::ZERO < gid("::1") && gid("::2") < gid("fe80::1") && gid("fe80::1") < Gid::MAX);
    }

    #[test]
    fn how_far_a_name_reaches() {
        assert!(gid("fe80::1").is_link_local() && gid("febf::1").is_link_local());
        assert!(!gid("fec0::1").is_link_local() && !gid("169.254.0.1").is_link_local());
        assert!(gid("127.0.0.1").is_loopback() && gid("127.255.0.9").is_loopback());
        assert!(gid("::1").is_loopback() && !gid("::2").is_loopback());
    }
}
