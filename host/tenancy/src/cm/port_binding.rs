//! Binds ports of port spaces in each vNIC.

use crate::directory::Family;
use crate::row_keys::SessionId;
use omniverb_cm::PortSpace;
use omniverb_terms::{Errno, VnicId};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Ports for users that name none, as Linux has them by default.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

/// How a port is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortSharing {
    /// Alone, among addresses that overlap.
    Alone,
    /// With all others that allow that as well.
    Shared,
    /// Alone; its holder accepts connections.
    Listening,
}

/// For which families a wildcard of IPv6 stands. One of IPv4 stands for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wildcard {
    /// For IPv4, too.
    Both,
    /// For IPv6 alone.
    OwnFamily,
}

/// The holder of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) owner: (SessionId, u32),
    /// Unspecified: any address.
    pub(super) ip: IpAddr,
    pub(super) hold: PortSharing,
    pub(super) wildcard: Wildcard,
}

impl Binding {
    /// Why the two cannot have a port both, as rdma_cm in Linux says it. Of a wildcard, and of an
    /// address of loopback, which is no device's and counts as one: `EADDRNOTAVAIL`; of one
    /// address: `EADDRINUSE`.
    fn conflict(&self, other: &Binding) -> Option<Errno> {
        let other_family = Family::of(self.ip) != Family::of(other.ip);
        if other_family && self.is_of_one_family() && other.is_of_one_family() {
            None
        } else if self.is_no_devices_address() || other.is_no_devices_address() {
            Some(Errno::EADDRNOTAVAIL)
        } else {
            (self.ip == other.ip).then_some(Errno::EADDRINUSE)
        }
    }

    fn is_of_one_family(&self) -> bool {
        Family::of(self.ip) == Family::V4 || self.wildcard == Wildcard::OwnFamily
    }

    /// No device has the address.
    fn is_no_devices_address(&self) -> bool {
        self.ip.is_unspecified() || self.ip.is_loopback()
    }

    /// An address is among those that this stands for.
    fn covers(&self, ip: IpAddr) -> bool {
        let family = Family::of(self.ip) == Family::of(ip) || !self.is_of_one_family();
        self.ip == ip || self.ip.is_unspecified() && family
    }
}

/// A port of a vNIC, in one of the port spaces.
pub(super) type Port = (VnicId, PortSpace, u16);

/// All ports in use.
#[derive(Debug, Default)]
pub(super) struct Ports(BTreeMap<Port, Vec<Binding>>);

impl Ports {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Binds a port.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`, `EADDRINUSE`: others have it ([`Binding::conflict`]).
    pub(super) fn bind(&mut self, port: Port, binding: Binding) -> Result<(), Errno> {
        let there = self.0.get(&port).into_iter().flatten();
        let shared = |other: &&Binding| [binding.hold, other.hold] == [PortSharing::Shared; 2];
        let mut alone = there.filter(|other| !shared(other));
        if let Some(errno) = alone.find_map(|other| other.conflict(&binding)) {
            return Err(errno);
        }
        self.0.entry(port).or_default().push(binding);
        Ok(())
    }

    /// Like `bind`, for any port, tried from a random one on.
    pub(super) fn bind_any(
        &mut self,
        (vnic, space): (VnicId, PortSpace),
        binding: Binding,
        random: u64,
    ) -> Result<u16, Errno> {
        let count = EPHEMERAL.end() - EPHEMERAL.start() + 1;
        let first = (random % u64::from(count)) as u16;
        let ports = (0..count).map(|n| {
            EPHEMERAL.start() + ((u32::from(first) + u32::from(n)) % u32::from(count)) as u16
        });
        let mut free = ports.filter(|port| !self.0.contains_key(&(vnic, space, *port)));
        let port = free.next().ok_or(Errno::EADDRNOTAVAIL)?;
        self.bind((vnic, space, port), binding).map(|()| port)
    }

    /// The holder of this accepts connections from now on, and shares it no longer.
    ///
    /// # Errors
    /// As [`Self::bind`]: others share it. `EINVAL`: it is not the owner's.
    pub(super) fn listen(&mut self, port: Port, owner: (SessionId, u32)) -> Result<(), Errno> {
        let there = self.0.get_mut(&port).ok_or(Errno::EINVAL)?;
        let own = there.iter().position(|binding| binding.owner == owner).ok_or(Errno::EINVAL)?;
        let mut others = there.iter().filter(|other| other.owner != owner);
        if let Some(errno) = others.find_map(|other| other.conflict(&there[own])) {
            return Err(errno);
        }
        there[own].hold = PortSharing::Listening;
        Ok(())
    }

    /// The listener of this address.
    pub(super) fn listener(&self, port: Port, ip: IpAddr) -> Option<(SessionId, u32)> {
        let listens = |binding: &&Binding| binding.hold == PortSharing::Listening;
        let waiting = || self.0.get(&port).into_iter().flatten().filter(listens);
        let exact = waiting().find(|binding| binding.ip == ip);
        exact.or_else(|| waiting().find(|binding| binding.covers(ip))).map(|b| b.owner)
    }

    /// Releases a port.
    pub(super) fn release(&mut self, port: Port, owner: (SessionId, u32)) {
        if let Some(there) = self.0.get_mut(&port) {
            there.retain(|binding| binding.owner != owner);
            if there.is_empty() {
                self.0.remove(&port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Port = (VnicId(1), PortSpace::Tcp, 7471);

    fn binding(id: u32, ip: &str) -> Binding {
        Binding {
            owner: (SessionId(1), id),
            ip: ip.parse().unwrap(),
            hold: PortSharing::Alone,
            wildcard: Wildcard::Both,
        }
    }

    #[test]
    fn a_port_has_two_holders_only_with_different_addresses() {
        const TAKEN: Result<(), Errno> = Err(Errno::EADDRINUSE);
        const UNAVAILABLE: Result<(), Errno> = Err(Errno::EADDRNOTAVAIL);
        for (one, other, expected) in [
            ("10.0.0.1", "10.0.0.2", Ok(())),
            ("10.0.0.1", "10.0.0.1", TAKEN),
            ("10.0.0.1", "0.0.0.0", UNAVAILABLE),
            ("10.0.0.1", "127.0.0.1", UNAVAILABLE),
            ("127.0.0.1", "127.0.0.1", UNAVAILABLE),
            ("0.0.0.0", "0.0.0.0", UNAVAILABLE),
            ("10.0.0.1", "::", UNAVAILABLE),
            ("0.0.0.0", "::", UNAVAILABLE),
            ("0.0.0.0", "2001:db8::1", UNAVAILABLE),
            ("10.0.0.1", "::1", UNAVAILABLE),
            ("10.0.0.1", "2001:db8::1", Ok(())),
            ("2001:db8::1", "2001:db8::1", TAKEN),
            ("2001:db8::1", "2001:db8::2", Ok(())),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let mut ports = Ports::default();
                ports.bind(PORT, binding(1, one)).unwrap();
                assert_eq!(ports.bind(PORT, binding(2, other)), expected, "{one} {other}");
                let elsewhere = (VnicId(2), PORT.1, PORT.2);
                assert!(ports.bind(elsewhere, binding(3, other)).is_ok());
                assert!(ports.bind((PORT.0, PortSpace::Udp, PORT.2), binding(4, other)).is_ok());
            }
        }
        let only = Binding { wildcard: Wildcard::OwnFamily, ..binding(1, "::") };
        let mut ports = Ports::default();
        ports.bind(PORT, only).unwrap();
        assert!(ports.bind(PORT, binding(2, "0.0.0.0")).is_ok());
    }

    #[test]
    fn a_port_is_shared_by_holders_that_do_not_listen() {
        for (ip, errno) in [("0.0.0.0", Errno::EADDRNOTAVAIL), ("10.0.0.1", Errno::EADDRINUSE)] {
            let shared = |id| Binding { hold: PortSharing::Shared, ..binding(id, ip) };
            let mut ports = Ports::default();
            ports.bind(PORT, shared(1)).unwrap();
            ports.bind(PORT, shared(2)).unwrap();
            assert_eq!(ports.bind(PORT, binding(3, ip)), Err(errno));
            assert_eq!(ports.listen(PORT, (SessionId(1), 1)), Err(errno));
            ports.release(PORT, (SessionId(1), 2));
            ports.listen(PORT, (SessionId(1), 1)).unwrap();
            assert_eq!(ports.bind(PORT, shared(4)), Err(errno));
            ports.release(PORT, (SessionId(1), 1));
            assert!(ports.is_empty());
        }
    }

    #[test]
    fn a_listener_of_the_address_is_preferred() {
        let mut ports = Ports::default();
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!(ports.listener(PORT, ip), None);
        for (id, address) in [(1, "10.0.0.1"), (2, "10.0.0.2")] {
            ports.bind(PORT, binding(id, address)).unwrap();
        }
        assert_eq!(ports.listener(PORT, ip), None, "no listener yet");
        ports.listen(PORT, (SessionId(1), 1)).unwrap();
        assert_eq!(ports.listener(PORT, ip), Some((SessionId(1), 1)));
        assert_eq!(ports.listener(PORT, "10.0.0.3".parse().unwrap()), None);
        let any = (VnicId(1), PortSpace::Tcp, 1);
        ports.bind(any, binding(3, "::")).unwrap();
        ports.listen(any, (SessionId(1), 3)).unwrap();
        assert_eq!(ports.listener(any, ip), Some((SessionId(1), 3)));
    }

    #[test]
    fn any_port_is_a_free_one_until_there_is_none() {
        let mut ports = Ports::default();
        let place = (VnicId(1), PortSpace::Tcp);
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let mut seen = std::collections::BTreeSet::new();
        for id in 0..count {
            let port = ports.bind_any(place, binding(id, "0.0.0.0"), 28_000).unwrap();
            assert!(EPHEMERAL.contains(&port) && seen.insert(port));
            if id > 3 && id < count - 3 {
                // All of them one after the other would take long.
                ports.release((place.0, place.1, port), (SessionId(1), id));
                seen.remove(&port);
            }
        }
        assert!(seen.len() >= 4);
    }
}
