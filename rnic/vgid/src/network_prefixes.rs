//! Says which addresses a tenant's vNICs may have, and their hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that vNICs of a tenant may have, as their programs see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualNetwork {
    prefix: Ipv4Addr,
    length: u8,
}

impl VirtualNetwork {
    /// Without a prefix: whatever IPv4 can have.
    pub const ANY: VirtualNetwork = VirtualNetwork { prefix: Ipv4Addr::UNSPECIFIED, length: 0 };

    /// Those that begin with the first `length` bits of `prefix`, of which the rest are zero.
    #[must_use]
    pub fn new(prefix: Ipv4Addr, length: u8) -> Option<VirtualNetwork> {
        let rest = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        (length <= 32 && prefix.to_bits() & rest == 0).then_some(VirtualNetwork { prefix, length })
    }

    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let other = address.to_bits() ^ self.prefix.to_bits();
        other.leading_zeros() >= u32::from(self.length)
    }

    /// Bits that all have in common.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }
}

/// The addresses that hosts of a tenant may have, to which packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnderlayNetwork {
    /// Any IPv4 address.
    Ipv4,
    /// IPv6 addresses that begin so: a vGID has the last 72 bits.
    Ipv6 {
        /// How they begin; the rest is zero.
        prefix: Ipv6Addr,
        /// Bits of it, 56 or more.
        length: u8,
    },
}

/// Bits of an IPv6 address that a vGID does not have.
const LEFT_OUT: u8 = 56;

impl UnderlayNetwork {
    /// IPv6 addresses that begin with the first `length` bits of `prefix`: at least 56, and the
    /// more the sooner a forgery shows ([`crate::Codec::new`] refuses too short ones). The rest of
    /// `prefix` is zero.
    #[must_use]
    pub fn ipv6(prefix: Ipv6Addr, length: u8) -> Option<UnderlayNetwork> {
        let rest = u128::MAX.checked_shr(length.into()).unwrap_or(0);
        let fits = (LEFT_OUT..=128).contains(&length) && prefix.to_bits() & rest == 0;
        fits.then_some(UnderlayNetwork::Ipv6 { prefix, length })
    }

    /// Whether an address is one of these.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.encode(address).is_some()
    }

    /// The 72 bits of an address that a vGID has, if it is one of these.
    pub(crate) fn encode(&self, address: IpAddr) -> Option<[u8; 9]> {
        let mut bits = [0; 9];
        match (self, address) {
            (UnderlayNetwork::Ipv4, IpAddr::V4(address)) => {
                bits[5..].copy_from_slice(&address.octets());
            }
            (UnderlayNetwork::Ipv6 { prefix, length }, IpAddr::V6(address)) => {
                let other = address.to_bits() ^ prefix.to_bits();
                if other.leading_zeros() < u32::from(*length) {
                    return None;
                }
                bits.copy_from_slice(&address.octets()[7..]);
            }
            _ => return None,
        }
        Some(bits)
    }

    /// The address that has these 72 bits, if it is one of these.
    pub(crate) fn decode(&self, bits: [u8; 9]) -> Option<IpAddr> {
        match self {
            UnderlayNetwork::Ipv4 => match bits {
                [0, 0, 0, 0, 0, a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
                _ => None,
            },
            UnderlayNetwork::Ipv6 { prefix, length } => {
                let mut octets = prefix.octets();
                octets[7..].copy_from_slice(&bits);
                let address = Ipv6Addr::from(octets);
                let other = address.to_bits() ^ prefix.to_bits();
                (other.leading_zeros() >= u32::from(*length)).then_some(address.into())
            }
        }
    }

    /// Bits of the 72 that say nothing.
    pub(crate) fn redundancy(&self) -> u8 {
        match self {
            UnderlayNetwork::Ipv4 => 40,
            UnderlayNetwork::Ipv6 { length, .. } => length - LEFT_OUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_what_begins_like_them() {
        let net = VirtualNetwork::new(Ipv4Addr::new(10, 64, 0, 0), 10).unwrap();
        assert!(net.contains(Ipv4Addr::new(10, 127, 255, 255)));
        assert!(!net.contains(Ipv4Addr::new(10, 128, 0, 0)));
        assert!(VirtualNetwork::new(Ipv4Addr::new(10, 64, 0, 1), 10).is_none());
        assert!(VirtualNetwork::new(Ipv4Addr::UNSPECIFIED, 33).is_none());
        let one = VirtualNetwork::new(Ipv4Addr::LOCALHOST, 32).unwrap();
        assert!(one.contains(Ipv4Addr::LOCALHOST) && !one.contains(Ipv4Addr::UNSPECIFIED));
        assert!(VirtualNetwork::ANY.contains(Ipv4Addr::BROADCAST));

        let prefix: Ipv6Addr = "2001:db8:0:ab00::".parse().unwrap();
        let net = UnderlayNetwork::ipv6(prefix, 56).unwrap();
        let inside: IpAddr = "2001:db8:0:abcd:1:2:3:4".parse().unwrap();
        assert_eq!(net.decode(net.encode(inside).unwrap()), Some(inside));
        assert_eq!(net.encode("2001:db8:0:aa00::1".parse().unwrap()), None);
        assert_eq!(net.encode(Ipv4Addr::LOCALHOST.into()), None);
        assert!(UnderlayNetwork::ipv6(prefix, 55).is_none());
        assert!(UnderlayNetwork::ipv6(inside.to_string().parse().unwrap(), 56).is_none());
        let narrow = UnderlayNetwork::ipv6(prefix, 120).unwrap();
        assert!(narrow.encode(inside).is_none() && narrow.redundancy() == 64);
        assert_eq!(
            narrow.decode([0, 0, 0, 0, 0, 0, 0, 0, 7]).unwrap().to_string(),
            "2001:db8:0:ab00::7"
        );
        assert_eq!(narrow.decode([0, 0, 0, 0, 0, 0, 0, 1, 7]), None);
    }
}
