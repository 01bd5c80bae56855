//! Describes where packets go in the network below, which is not what verbs calls a peer.

use core::fmt;
use core::net::IpAddr;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_part_of_a_route() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let plain = UnderlayRoute::plain(address, address, 0);
        let keyed = |key| UnderlayRoute { key: NonZeroU32::new(key).map(RouteKey), ..plain };
        assert!(keyed(7) == keyed(7) && keyed(7) != keyed(8) && keyed(7) != plain);
        assert_eq!(keyed(0), plain);
    }
}
