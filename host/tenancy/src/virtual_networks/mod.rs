//! Translates vGIDs and QPNs of vNICs whose tenant has a key.
//!
//! A tenant with a key has a virtual network: its vNICs have virtual addresses, and programs name
//! each other by vGIDs (`omniverb_vgid`). A vGID is deciphered when a queue pair is connected or a
//! destination of datagrams is named, never per message. All other tables have physical QPNs;
//! `virtual_qpn_translation.rs` turns virtual ones into these, and back, where messages of
//! processes come and go.
//!
//! In: networks of tenants and places of vNICs, as the operator describes them. Out: the
//! destination of a vGID, seen from a vNIC. One that is forged, of another tenant, or of a vNIC
//! that is gone leads [nowhere](Destination::Nowhere).

mod peer_virtual_qpns;

use crate::directory::VnicAddress as Found;
use crate::policy::policies::TenantId;
use omniverb_session::body::GidEntry;
use omniverb_terms::{Gid, Qpn, UnderlayRoute, VnicId, group_at};
use omniverb_vgid::{Codec, PhysicalQpn, QpnOffset, QpnRange, VirtualQpn, VnicAddress};
use peer_virtual_qpns::PeerNumbers;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a vNIC of a tenant with a key is, and which QPNs it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnicPlace {
    /// Its address among the vNICs of its tenant.
    pub virtual_ip: Ipv4Addr,
    /// The address of its host that its packets carry.
    pub underlay: IpAddr,
    /// Its QPNs as packets carry them.
    pub range: QpnRange,
}

/// The virtual network of a tenant with a key.
#[derive(Clone, Debug)]
pub struct TenantNetwork {
    /// Makes and reads its vGIDs. `None`: its key could not be read, so its vNICs reach no peer.
    pub codec: Option<Codec>,
    /// Its vNICs, here and on other hosts, by their virtual addresses, as far as they are known.
    pub vnics: BTreeMap<Ipv4Addr, VnicPlace>,
    /// QPNs of a vNIC on another host that is not known.
    pub qpns: u32,
    /// Bytes of the largest packet on the underlay, IP header included.
    pub mtu: u32,
    /// Features that all engines of its hosts have, by their handshakes.
    pub features: u32,
}

/// The destination of a name, seen from a vNIC of a tenant with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To this vNIC of the host.
    Here(VnicId),
    /// To another host.
    There(IpAddr),
    /// No peer, for any reason.
    Nowhere,
}

/// A vNIC of this host that has a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seat {
    tenant: TenantId,
    place: VnicPlace,
    /// Its vGID; `None`: its tenant's key could not be read.
    gid: Option<Gid>,
}

/// The virtual networks of all tenants that have keys.
#[derive(Debug, Default)]
pub(crate) struct VirtualNetworks {
    tenants: BTreeMap<TenantId, TenantNetwork>,
    /// Virtual addresses by hosts and the offsets of ranges.
    by_range: BTreeMap<(TenantId, IpAddr, QpnOffset), VnicPlace>,
    seats: BTreeMap<VnicId, Seat>,
    by_address: BTreeMap<(TenantId, Ipv4Addr), VnicId>,
    peers: PeerNumbers,
}

impl VirtualNetworks {
    /// Takes the networks that the operator describes now.
    pub(crate) fn describe(&mut self, tenants: BTreeMap<TenantId, TenantNetwork>) {
        self.by_range = tenants
            .iter()
            .flat_map(|(tenant, network)| {
                let tenant = *tenant;
                let key = move |place: &VnicPlace| (tenant, place.underlay, place.range.offset());
                network.vnics.values().map(move |place| (key(place), *place))
            })
            .collect();
        self.tenants = tenants;
        let seats: Vec<_> = self.seats.iter().map(|(key, seat)| (*key, *seat)).collect();
        for (key, seat) in seats {
            self.seat(key, Some((seat.tenant, seat.place)));
        }
    }

    /// A vNIC has this place in a tenant's virtual network; `None`: it is flat. True: that is new.
    pub(crate) fn seat(&mut self, key: VnicId, place: Option<(TenantId, VnicPlace)>) -> bool {
        let before = self.seats.remove(&key);
        if let Some(seat) = before {
            // An object may have come to another vNIC since, with its address.
            let at = (seat.tenant, seat.place.virtual_ip);
            if self.by_address.get(&at) == Some(&key) {
                self.by_address.remove(&at);
            }
        }
        let seat = place.map(|(tenant, place)| {
            let codec = self.tenants.get(&tenant).and_then(|network| network.codec.as_ref());
            Seat { tenant, place, gid: codec.and_then(|codec| codec.encipher(address(&place))) }
        });
        if let Some(seat) = seat {
            self.seats.insert(key, seat);
            self.by_address.insert((seat.tenant, seat.place.virtual_ip), key);
        }
        let kept = |seat: Option<Seat>| seat.map(|seat| (seat.tenant, seat.place));
        kept(before) != kept(seat)
    }

    /// No vNIC has a virtual address.
    pub(crate) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Whether a vNIC has a virtual address, and so no other.
    pub(crate) fn has(&self, key: VnicId) -> bool {
        self.seats.contains_key(&key)
    }

    /// The tenant and the place of a vNIC with a virtual address.
    pub(crate) fn place(&self, key: VnicId) -> Option<(TenantId, VnicPlace)> {
        self.seats.get(&key).map(|seat| (seat.tenant, seat.place))
    }

    /// The vNICs that have virtual addresses.
    pub(crate) fn vnics(&self) -> Vec<VnicId> {
        self.seats.keys().copied().collect()
    }

    /// The physical QPNs of a vNIC with a virtual address.
    pub(crate) fn range(&self, key: VnicId) -> Option<QpnRange> {
        self.seats.get(&key).map(|seat| seat.place.range)
    }

    /// The GID table of a vNIC with a virtual address: its vGID alone, at the interface that comes
    /// first among those of its namespace. Packets do not pass that: their size is the underlay's.
    pub(crate) fn table(
        &self,
        key: VnicId,
        found: &[Found],
        flat: &[GidEntry],
    ) -> Option<Vec<GidEntry>> {
        let seat = self.seats.get(&key)?;
        let outside = found.iter().find(|address| !address.is_loopback);
        let interface = outside.map(|address| address.interface);
        let ifindex = interface.or(flat.first().map(|entry| entry.ifindex)).unwrap_or(1);
        let mtu = self.tenants.get(&seat.tenant)?.mtu;
        Some(seat.gid.map(|gid| GidEntry { gid, ifindex, mtu }).into_iter().collect())
    }

    /// Whether a GID is a vNIC's own vGID, of the key before the current one, too.
    pub(crate) fn is_own(&self, key: VnicId, gid: Gid) -> bool {
        let Some(seat) = self.seats.get(&key) else { return false };
        seat.gid == Some(gid) || self.read(seat.tenant, gid) == Some(address(&seat.place))
    }

    /// The destination of a GID, seen from a vNIC; `None`: the vNIC is flat.
    pub(crate) fn destination(&self, from: VnicId, gid: Gid) -> Option<Destination> {
        let seat = self.seats.get(&from)?;
        if gid.is_loopback() || seat.gid == Some(gid) {
            return Some(Destination::Here(from));
        }
        let Some(to) = self.read(seat.tenant, gid) else { return Some(Destination::Nowhere) };
        let here = self.by_address.get(&(seat.tenant, to.virtual_ip));
        let place = here.and_then(|key| Some((*key, self.seats.get(key)?.place)));
        Some(match place {
            Some((key, place)) if address(&place) == to => Destination::Here(key),
            // Its address is another vNIC's now, or was one of this host's.
            Some(_) => Destination::Nowhere,
            None if self.is_of_this_host(to.underlay) => Destination::Nowhere,
            None => Destination::There(to.underlay),
        })
    }

    fn is_of_this_host(&self, underlay: IpAddr) -> bool {
        self.seats.values().any(|seat| seat.place.underlay == underlay)
    }

    /// The route to a GID's destination; `None`: the vNIC is flat.
    pub(crate) fn route(&self, from: VnicId, gid: Gid) -> Option<UnderlayRoute> {
        let local = self.seats.get(&from)?.place.underlay;
        if gid.is_multicast() {
            // Copies reach members of the tenant alone.
            let group = match gid.address().to_canonical() {
                IpAddr::V4(group) => group_at(local, group),
                six => six,
            };
            return Some(UnderlayRoute::plain(local, group, 0));
        }
        let remote = match self.destination(from, gid)? {
            Destination::Here(key) => self.seats.get(&key)?.place.underlay,
            Destination::There(underlay) => underlay,
            Destination::Nowhere if local.is_ipv4() => Ipv4Addr::UNSPECIFIED.into(),
            Destination::Nowhere => Ipv6Addr::UNSPECIFIED.into(),
        };
        Some(UnderlayRoute::plain(local, remote, 0))
    }

    /// The vNICs of a tenant's virtual network, here and on other hosts: places and vGIDs.
    pub(crate) fn names_in(&self, tenant: TenantId) -> Vec<(VnicPlace, Gid)> {
        let Some(network) = self.tenants.get(&tenant) else { return Vec::new() };
        let Some(codec) = &network.codec else { return Vec::new() };
        let named = |place: &VnicPlace| Some((*place, codec.encipher(address(place))?));
        network.vnics.values().filter_map(named).collect()
    }

    /// Whether a vNIC can be in a group: in a virtual network in IPv4 groups, as its addresses are.
    pub(crate) fn has_group(&self, key: VnicId, group: Gid) -> bool {
        self.has(key) && group.address().to_canonical().is_ipv4()
    }

    /// Features that all engines of other hosts of a vNIC's tenant have.
    pub(crate) fn features(&self, from: VnicId) -> u32 {
        let tenant = self.seats.get(&from).and_then(|seat| self.tenants.get(&seat.tenant));
        tenant.map_or(0, |network| network.features)
    }

    /// The names of both ends of a packet that came to a vNIC from queue pair `source` of another
    /// host; `None`: no vNIC there has that number in this one's tenant.
    pub(crate) fn names(
        &self,
        at: VnicId,
        source: Qpn,
        underlay: &UnderlayRoute,
    ) -> Option<(Gid, Gid)> {
        let seat = self.seats.get(&at)?;
        if underlay.local != seat.place.underlay || underlay.key.is_some() {
            return None;
        }
        let offset = QpnOffset::new(source.0 / QpnOffset::GRANULE * QpnOffset::GRANULE)?;
        let place = (seat.tenant, underlay.remote);
        let all = (place.0, place.1, first_offset()?)..=(place.0, place.1, offset);
        let (_, sender) = self.by_range.range(all).next_back()?;
        let end = sender.range.offset().number() + sender.range.count();
        let codec = self.tenants.get(&seat.tenant)?.codec.as_ref()?;
        let gid = codec.encipher(address(sender))?;
        (source.0 < end).then_some((seat.gid?, gid))
    }

    /// The vGID of an address in a vNIC's virtual network, if a vNIC there has it. A group is its
    /// own name.
    pub(crate) fn name(&self, from: VnicId, ip: IpAddr) -> Option<Gid> {
        let seat = self.seats.get(&from)?;
        let IpAddr::V4(ip) = ip.to_canonical() else { return None };
        if ip.is_multicast() {
            return Some(ip.into());
        }
        if ip == seat.place.virtual_ip {
            return seat.gid;
        }
        let network = self.tenants.get(&seat.tenant)?;
        network.codec.as_ref()?.encipher(address(network.vnics.get(&ip)?))
    }

    /// The virtual address that a vGID has in a vNIC's network.
    pub(crate) fn address(&self, from: VnicId, gid: Gid) -> Option<IpAddr> {
        let seat = self.seats.get(&from)?;
        Some(self.read(seat.tenant, gid)?.virtual_ip.into())
    }

    /// Whether two vGIDs are names of one vNIC, seen from another: keys change, vNICs stay.
    pub(crate) fn is_same(&self, from: VnicId, one: Gid, other: Gid) -> bool {
        let Some(tenant) = self.seats.get(&from).map(|seat| seat.tenant) else { return false };
        self.read(tenant, one).is_some_and(|place| self.read(tenant, other) == Some(place))
    }

    /// Whether queue pair `source` of a sender with this name is of a vNIC that is described in a
    /// vNIC's network, or the vNIC is flat. A name of a key that is not valid any more says nothing
    /// of the sender.
    pub(crate) fn is_described(&self, at: VnicId, source: Qpn, sender: Gid) -> bool {
        let Some(seat) = self.seats.get(&at) else { return true };
        let Some(network) = self.tenants.get(&seat.tenant) else { return false };
        let Some(name) = self.read(seat.tenant, sender) else { return true };
        let place = network.vnics.get(&name.virtual_ip);
        place.is_some_and(|place| {
            address(place) == name
                && PhysicalQpn::new(source).and_then(|qpn| place.range.virtual_of(qpn)).is_some()
        })
    }

    /// The virtual address of a vNIC itself.
    pub(crate) fn own_address(&self, key: VnicId) -> Option<IpAddr> {
        self.seats.get(&key).map(|seat| seat.place.virtual_ip.into())
    }

    /// The number on the wire of queue pair 1 at the end of a name; `None`: the vNIC is flat.
    pub(crate) fn services(&self, from: VnicId, gid: Gid) -> Option<Qpn> {
        let offset = self.offset(from, gid)?;
        Some(Qpn(offset.number() + Qpn::GENERAL_SERVICES.0))
    }

    /// A queue pair is no more.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        self.peers.forget(qpn);
    }

    /// A process knows the peer of its queue pair, which exists, by this number. `in_use` says
    /// which peers it has links with, or wishes to have.
    pub(crate) fn learn_peer(
        &mut self,
        qpn: Qpn,
        peer: Qpn,
        shown: Qpn,
        in_use: impl Fn(Qpn) -> bool,
    ) {
        self.peers.learn(qpn, peer, shown, in_use);
    }

    /// Queue pairs whose processes have named peers, and how many are remembered.
    pub(crate) fn named_peers(&self) -> impl Iterator<Item = (Qpn, usize)> {
        self.peers.counts()
    }

    /// The number by which a process knows the peer of its queue pair.
    pub(crate) fn shown_peer(&self, qpn: Qpn, peer: Qpn) -> Option<Qpn> {
        self.peers.shown(qpn, peer)
    }

    /// The peer of a queue pair that its process knows by this number.
    pub(crate) fn physical_peer(&self, qpn: Qpn, shown: Qpn) -> Option<Qpn> {
        self.peers.physical(qpn, shown)
    }

    /// Other peers that a queue pair's process knows by the number that it knows this one by.
    pub(crate) fn namesakes(&self, qpn: Qpn, peer: Qpn) -> Vec<Qpn> {
        self.peers.namesakes(qpn, peer)
    }

    fn read(&self, tenant: TenantId, gid: Gid) -> Option<VnicAddress> {
        let codec = self.tenants.get(&tenant)?.codec.as_ref()?;
        codec.decipher(gid).map(|found| found.address)
    }

    fn offset(&self, from: VnicId, gid: Gid) -> Option<QpnOffset> {
        let seat = self.seats.get(&from)?;
        if gid.is_loopback() {
            return Some(seat.place.range.offset());
        }
        self.read(seat.tenant, gid).map(|to| to.offset)
    }

    /// The QPNs at the end of a name: as many as are known, or as vNICs have if nothing is said.
    fn range_of(&self, from: VnicId, gid: Gid) -> Option<QpnRange> {
        let seat = self.seats.get(&from)?;
        let offset = self.offset(from, gid)?;
        if offset == seat.place.range.offset() && self.is_own(from, gid) || gid.is_loopback() {
            return Some(seat.place.range);
        }
        let network = self.tenants.get(&seat.tenant)?;
        let to = self.read(seat.tenant, gid)?;
        let known = network.vnics.get(&to.virtual_ip).filter(|place| address(place) == to);
        known.map(|place| place.range).or_else(|| QpnRange::new(offset, network.qpns))
    }

    /// The number that packets carry for a peer's virtual QPN.
    pub(crate) fn physical(&self, from: VnicId, gid: Gid, number: Qpn) -> Option<Qpn> {
        let range = self.range_of(from, gid)?;
        range.physical(VirtualQpn::new(number.0)?).map(PhysicalQpn::qpn)
    }

    /// The number that a program sees for a peer's physical QPN.
    pub(crate) fn shown(&self, from: VnicId, gid: Gid, number: Qpn) -> Option<Qpn> {
        let range = self.range_of(from, gid)?;
        range.virtual_of(PhysicalQpn::new(number)?).map(VirtualQpn::qpn)
    }
}

fn address(place: &VnicPlace) -> VnicAddress {
    let VnicPlace { virtual_ip, underlay, range } = *place;
    VnicAddress { virtual_ip, offset: range.offset(), underlay }
}

fn first_offset() -> Option<QpnOffset> {
    QpnOffset::new(QpnOffset::GRANULE)
}

#[cfg(test)]
mod tests;
