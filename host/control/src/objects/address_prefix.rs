//! Parses prefixes of addresses, as objects and rules say them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that have their first bits in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u32,
}

impl Prefix {
    /// As `10.1.0.0/16`, `fd00::/8`, or a single address.
    pub(super) fn parse(text: &str) -> Result<Prefix, String> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let no_prefix = || format!("{text:?} is no prefix of addresses: use one as 10.1.0.0/16");
        let address: IpAddr = address.parse().map_err(|_| no_prefix())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = if text.contains('/') { bits.parse().map_err(|_| no_prefix())? } else { most };
        let prefix = Prefix { address, bits };
        if bits > most {
            return Err(no_prefix());
        }
        match masked(address, bits) == masked(address, most) {
            true => Ok(prefix),
            false => Err(format!("{text:?} has bits behind its prefix")),
        }
    }

    /// The first of them, if they are of IPv4, and the length of the prefix.
    pub(super) fn ipv4(self) -> Option<(Ipv4Addr, u8)> {
        match self.address {
            IpAddr::V4(four) => Some((four, self.bits as u8)),
            IpAddr::V6(_) => None,
        }
    }

    /// The first of them, if they are of IPv6, and the length of the prefix.
    pub(super) fn ipv6(self) -> Option<(Ipv6Addr, u8)> {
        match self.address {
            IpAddr::V4(_) => None,
            IpAddr::V6(six) => Some((six, self.bits as u8)),
        }
    }

    /// Whether an address is one of them.
    pub(super) fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && masked(self.address, self.bits) == masked(address, self.bits)
    }
}

/// The first bits of an address, from the top.
fn masked(address: IpAddr, bits: u32) -> u128 {
    let number = match address {
        IpAddr::V4(four) => u128::from(four.to_bits()) << 96,
        IpAddr::V6(six) => six.to_bits(),
    };
    number & u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Prefix, D::Error> {
        Prefix::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_nothing_behind_them() {
        let contains =
            |prefix: &str, ip: &str| Prefix::parse(prefix).unwrap().contains(ip.parse().unwrap());
        assert!(contains("10.1.0.0/16", "10.1.255.1") && !contains("10.1.0.0/16", "10.2.0.1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("fd00::/8", "fd12::1") && contains("10.0.0.1", "10.0.0.1"));
        assert!(contains("::/0", "fe80::1") && !contains("fd00::/8", "10.0.0.1"));
        for wrong in ["10.1.0.0/33", "10.1.2.3/16", "x", "10.0.0.0/", "fd00::/129", ""] {
            assert!(Prefix::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Prefix::parse("10.1.0.0/16").unwrap().to_string(), "10.1.0.0/16");
    }
}
