//! Describes where packets go in the network below, which is not what verbs calls a peer.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU32;

/// What tells apart routes with the same addresses: the number of a tunnel or of a tenant's
/// network, as the sender knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey(pub NonZeroU32);

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A route to a peer through the network below: what the engine and probes send by. Says nothing of
/// names.
///
/// A directory makes them and tells them apart, the key included. The daemon's own sockets can send
/// by those without a key only: by others the engine attaches no link and no probe leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnderlayRoute {
    /// Ours: packets leave from this address.
    pub local: IpAddr,
    /// The peer's: packets go to this address.
    pub remote: IpAddr,
    /// Through this interface if the peer's address means something on one link only, else zero.
    pub interface: u32,
    /// In which of several networks with such addresses; `None`: in the vNIC's own.
    pub key: Option<RouteKey>,
}

impl UnderlayRoute {
    /// A route through the vNIC's own network.
    #[must_use]
    pub const fn plain(local: IpAddr, remote: IpAddr, interface: u32) -> UnderlayRoute {
        UnderlayRoute { local, remote, interface, key: None }
    }
}

/// How IPv4 groups begin in an IPv6 underlay: `ff0e::ffff:0:0/96`.
const MAPPED_GROUPS: u128 = 0xff0e << 112 | 0xffff << 32;

/// An IPv4 group of a virtual network as packets at an underlay address name it: both addresses of
/// a packet are of one IP version. No packet on the underlay is sent to it.
#[must_use]
pub const fn group_at(underlay: IpAddr, group: Ipv4Addr) -> IpAddr {
    match underlay {
        IpAddr::V4(_) => IpAddr::V4(group),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(MAPPED_GROUPS | group.to_bits() as u128)),
    }
}

/// The group that programs know by another name than [`group_at`] gave it; others stay.
#[must_use]
pub const fn group_of_programs(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V6(six) if six.to_bits() >> 32 == MAPPED_GROUPS >> 32 => {
            IpAddr::V4(Ipv4Addr::from_bits(six.to_bits() as u32))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_the_underlays_version_and_programs_see_theirs() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let six = IpAddr::V6("2001:db8::1".parse().unwrap());
        let mapped = group_at(six, group);
        assert_eq!(mapped, IpAddr::V6("ff0e::ffff:239.1.2.3".parse().unwrap()));
        assert!(mapped.is_multicast());
        assert_eq!(group_at(IpAddr::from([192, 0, 2, 1]), group), IpAddr::V4(group));
        let other = IpAddr::V6("ff15::1".parse().unwrap());
        for (seen, expected) in
            [(mapped, group.into()), (group.into(), group.into()), (other, other)]
        {
            assert_eq!(group_of_programs(seen), expected);
        }
    }

    #[test]
    fn a_key_is_part_of_a_route() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let plain = UnderlayRoute::plain(address, address, 0);
        let keyed = |key| UnderlayRoute { key: NonZeroU32::new(key).map(RouteKey), ..plain };
        assert!(keyed(7) == keyed(7) && keyed(7) != keyed(8) && keyed(7) != plain);
        assert_eq!(keyed(0), plain);
    }
}
