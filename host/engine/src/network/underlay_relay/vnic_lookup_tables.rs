//! Finds the vNICs of virtual networks: by their ids, by underlay addresses and QPNs, and by the
//! groups that they are in.

use crate::command::Encryption;
use crate::network::virtual_network_senders::NetworkPlaces;
use omniverb_psp::tunnel::Addresses;
use omniverb_sys::proxied_udp::{HEAD_BYTES, ProxiedHeader};
use omniverb_sys::seqpacket;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_terms::{Qpn, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A vNIC whose packets are carried.
#[derive(Debug)]
pub struct Seat {
    /// By which the control plane closes it.
    pub vnic: VnicId,
    /// Its virtual network, by a number that no other has. Only vNICs of one reach each other.
    pub network: u64,
    /// The address of this host that its packets carry.
    pub underlay: IpAddr,
    /// Whether it has peers on other hosts.
    pub has_far_peers: bool,
    /// Its QPNs: the first, and how many.
    pub qpns: (Qpn, u32),
    /// The other end of its port.
    pub end: OwnedFd,
    /// The port of the agent, if it is a virtual machine's.
    pub agent: Option<Arc<UdpPort>>,
    /// All vNICs of its virtual network.
    pub places: Arc<NetworkPlaces>,
    /// How packets of its virtual network are encrypted between hosts; the port is given apart.
    pub encryption: Option<Encryption>,
}

impl Seat {
    /// Gives the vNIC a packet. One without room is lost, as in a network.
    pub(super) fn put(&self, head: &ProxiedHeader, datagram: &[u8]) {
        let mut message = Vec::with_capacity(HEAD_BYTES + datagram.len());
        message.extend_from_slice(&head.written());
        message.extend_from_slice(datagram);
        let _ = seqpacket::try_send(self.end.as_fd(), &message, &[]);
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Seats {
    seats: BTreeMap<VnicId, Seat>,
    /// vNICs by underlay addresses and first QPNs; one past the last QPN.
    ranges: BTreeMap<(IpAddr, u32), (u32, VnicId)>,
    /// vNICs by virtual network and underlay address.
    networks: BTreeSet<(u64, IpAddr, VnicId)>,
    /// vNICs that are in a group of a virtual network.
    members: BTreeSet<(IpAddr, u64, VnicId)>,
}

impl Seats {
    pub(super) fn get(&self, vnic: VnicId) -> Option<&Seat> {
        self.seats.get(&vnic)
    }

    pub(super) fn add(&mut self, seat: Seat) {
        let (first, count) = seat.qpns;
        self.ranges.insert((seat.underlay, first.0), (first.0 + count, seat.vnic));
        self.networks.insert((seat.network, seat.underlay, seat.vnic));
        self.seats.insert(seat.vnic, seat);
    }

    pub(super) fn remove(&mut self, vnic: VnicId) -> Option<Seat> {
        let seat = self.seats.remove(&vnic)?;
        // The numbers may be another vNIC's already.
        let range = (seat.underlay, seat.qpns.0.0);
        if self.ranges.get(&range).is_some_and(|(_, of)| *of == vnic) {
            self.ranges.remove(&range);
        }
        self.networks.remove(&(seat.network, seat.underlay, vnic));
        self.members.retain(|(_, _, member)| *member != vnic);
        Some(seat)
    }

    /// A vNIC is in a group of its virtual network from now on.
    pub(super) fn join_group(&mut self, vnic: VnicId, group: IpAddr) {
        if let Some(seat) = self.seats.get(&vnic) {
            self.members.insert((group, seat.network, vnic));
        }
    }

    /// It is in it no longer.
    pub(super) fn leave_group(&mut self, vnic: VnicId, group: IpAddr) {
        if let Some(seat) = self.seats.get(&vnic) {
            self.members.remove(&(group, seat.network, vnic));
        }
    }

    /// The vNICs of a virtual network that are in a group.
    pub(super) fn members(&self, group: IpAddr, network: u64) -> impl Iterator<Item = &Seat> {
        let all = (group, network, VnicId(0))..=(group, network, VnicId(u64::MAX));
        self.members.range(all).filter_map(|(_, _, vnic)| self.seats.get(vnic))
    }

    /// Virtual networks with vNICs in a group.
    pub(super) fn networks_in(&self, group: IpAddr) -> impl Iterator<Item = u64> {
        let first = move |from: Option<u64>| {
            let begin = (group, from?, VnicId(0));
            let mut behind = self.members.range(begin..);
            behind.next().filter(|(of, ..)| *of == group).map(|(_, network, _)| *network)
        };
        std::iter::successors(first(Some(0)), move |before| first(before.checked_add(1)))
    }

    /// Whether a vNIC of a virtual network may be what sends to a group of it from there.
    pub(super) fn may_send(&self, network: u64, ends: Addresses, source: Qpn) -> bool {
        let all = (network, ends.local, VnicId(0))..=(network, ends.local, VnicId(u64::MAX));
        let first = self.networks.range(all).next().and_then(|(_, _, vnic)| self.seats.get(vnic));
        first.is_some_and(|seat| seat.places.sender(ends.remote, source).is_some())
    }

    /// All vNICs of a virtual network are these now.
    pub(super) fn set_places(&mut self, network: u64, places: &Arc<NetworkPlaces>) {
        for (_, _, vnic) in self.networks.range(whole(network)) {
            if let Some(seat) = self.seats.get_mut(vnic) {
                seat.places = places.clone();
            }
        }
    }

    /// Whether some vNIC has this underlay address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.ranges.range((address, u32::MIN)..=(address, u32::MAX)).next().is_some()
    }

    /// The vNIC in whose range a QPN is.
    pub(super) fn with_qpn(&self, underlay: IpAddr, qpn: Qpn) -> Option<&Seat> {
        let range = (underlay, u32::MIN)..=(underlay, qpn.0);
        let (_, (end, vnic)) = self.ranges.range(range).next_back()?;
        if qpn.0 < *end { self.seats.get(vnic) } else { None }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Seat> {
        self.seats.values()
    }

    /// The vNICs of a virtual network.
    pub(super) fn of_network(&self, network: u64) -> impl Iterator<Item = &Seat> {
        let all = self.networks.range(whole(network));
        all.filter_map(|(_, _, vnic)| self.seats.get(vnic))
    }

    /// The vNICs of a virtual network that have peers on other hosts are encrypted so from now on,
    /// or not at all.
    pub(super) fn set_encryption(&mut self, network: u64, encryption: Option<&Encryption>) {
        for (_, _, vnic) in self.networks.range(whole(network)) {
            if let Some(seat) = self.seats.get_mut(vnic).filter(|seat| seat.has_far_peers) {
                seat.encryption = encryption.cloned();
            }
        }
    }
}

/// All places of a virtual network's vNICs.
fn whole(network: u64) -> RangeInclusive<(u64, IpAddr, VnicId)> {
    let (first, last) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::from([0xff; 16]).into());
    (network, first, VnicId(0))..=(network, last, VnicId(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::tests::seat;
    use super::*;
    use omniverb_terms::Gid;

    #[test]
    fn a_sender_to_a_group_is_of_the_network_and_sends_to_an_address_that_it_has_here() {
        let [a, b, there] = [1, 2, 9].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut seats = Seats::default();
        for (vnic, network, underlay) in [(1, 7, a), (2, 7, b), (3, 8, b), (4, 9, a)] {
            let (_, end) = seqpacket::pair().unwrap();
            let first = 0x40_0000 + 0x400 * vnic as u32;
            seats.add(Seat { network, ..seat(vnic, underlay, first, end) });
        }
        let places = NetworkPlaces::new([(there, Qpn(0x40_0000), 1024, Gid::from(there))]);
        seats.set_places(7, &Arc::new(places));
        let may = |seats: &Seats, network, local, remote, source| {
            seats.may_send(network, Addresses { local, remote }, Qpn(source))
        };
        for (network, local, expected) in
            [(7, a, true), (7, b, true), (8, b, false), (9, a, false), (7, there, false)]
        {
            assert_eq!(may(&seats, network, local, there, 0x40_0005), expected);
        }
        assert!(!may(&seats, 7, a, a, 0x40_0005) && !may(&seats, 7, a, there, 0x40_0400));
        let of = |seats: &Seats, network| -> Vec<u64> {
            seats.of_network(network).map(|seat| seat.vnic.0).collect()
        };
        assert_eq!([of(&seats, 6), of(&seats, 7), of(&seats, 8)], [vec![], vec![1, 2], vec![3]]);
        seats.remove(VnicId(1));
        assert!(!may(&seats, 7, a, there, 0x40_0005) && may(&seats, 7, b, there, 0x40_0005));
        assert_eq!(of(&seats, 7), [2]);
    }
}
