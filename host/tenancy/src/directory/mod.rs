//! The directory: which way through the network below a name leads, and which name a way has.
//!
//! A GID is what verbs call a peer: a name. What packets are sent to is an address of the network
//! below, the *underlay*: a route. Here, and nowhere else, the one becomes the other. What is at
//! the end of a route, a vNIC of this host, another Omniverb or neither, `asking.rs` finds out by
//! asking along it; so whoever brings another directory has nothing to say about that.
//!
//! `gids.rs`: tables of names; `names.rs`: what is known of one vNIC's; `neighbours.rs`: what is
//! known of who is where, and being asked.
//!
//! In: names as clients say them, addresses of vNICs, underlays that datagrams came by. Out:
//! routes, names. No state of the tables.

pub(crate) mod asking;
mod family;
mod gids;
pub(crate) mod names;
pub(crate) mod neighbours;

pub(crate) use family::Family;
pub(crate) use gids::LOOPBACK_INTERFACE;
pub use gids::{Reach, VnicAddress};

use crate::accounts::Receipt;
use neighbours::Neighbours;
use omniverb_session::body::GidEntry;
use omniverb_terms::{Gid, Underlay, VnicId};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A name, and who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The vNIC that names a peer.
    pub from: VnicId,
    /// What it calls itself in that.
    pub sgid: Gid,
    /// The interface of that entry of its table; zero if there is no such entry any more.
    pub interface: u32,
    /// What it calls the peer.
    pub dgid: Gid,
}

/// What somebody says of how a vNIC may be reached from others of the same host. These are in no
/// order, and what one says takes nothing away from what another says: that the way to a virtual
/// machine is closed does not make it a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// In whichever way: its processes can share memory with others.
    #[default]
    Any,
    /// By memory of its windows, or by the engine: it is a virtual machine. Which addresses it has
    /// is its own word.
    Window,
    /// By the engine alone.
    Forwarded,
}

/// What memory processes of two vNICs can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Common {
    /// Any memory: a file for each thing.
    Any,
    /// That of a window: of the first or the second of the two.
    Window(usize),
    /// None: no window is in both.
    Nothing,
}

/// Names and routes of all vNICs.
pub trait Directory {
    /// The GID table of a vNIC with these addresses in the underlay.
    fn table(&self, vnic: VnicId, addresses: &[VnicAddress], guid: [u8; 8]) -> Vec<GidEntry>;

    /// The route to whom this name means; `None`: to nobody.
    fn route(&self, name: &Name) -> Option<Underlay>;

    /// What a vNIC and whoever sent to it by this route are called: its own name, the sender's.
    fn names(&self, at: VnicId, underlay: &Underlay) -> Option<(Gid, Gid)>;

    /// The address by which programs of `rdma_cm`, and people, call whom this name means.
    fn address_of(&self, gid: Gid) -> IpAddr {
        gid.address()
    }

    /// The name of whom they call by this address.
    fn name_of(&self, address: IpAddr) -> Gid {
        address.into()
    }

    /// How a vNIC may be reached.
    fn access(&self, vnic: VnicId) -> Access {
        let _ = vnic;
        Access::Any
    }
}

/// The directory of a network without tenants: every name is an address of the underlay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat;

impl Directory for Flat {
    fn table(&self, _vnic: VnicId, addresses: &[VnicAddress], guid: [u8; 8]) -> Vec<GidEntry> {
        gids::table(addresses, guid)
    }

    fn route(&self, name: &Name) -> Option<Underlay> {
        let by_interface = name.dgid.is_link_local() || name.dgid.is_multicast();
        let interface = if by_interface { name.interface } else { 0 };
        Some(Underlay::plain(name.sgid.address(), name.dgid.address(), interface))
    }

    fn names(&self, _at: VnicId, underlay: &Underlay) -> Option<(Gid, Gid)> {
        // Of other networks with such addresses there are none here.
        underlay.key.is_none().then(|| (underlay.local.into(), underlay.remote.into()))
    }
}

/// The network as the tables know it: names, routes, and who is at their ends. `asking.rs` changes
/// it; others look.
pub(crate) struct Network {
    directory: Box<dyn Directory>,
    /// How vNICs are attached, as those say who know it.
    attached: BTreeMap<VnicId, Access>,
    neighbours: Neighbours,
}

impl Network {
    /// One of which nothing is known but what the directory says.
    pub(crate) fn new(directory: Box<dyn Directory>) -> Network {
        Network { directory, attached: BTreeMap::new(), neighbours: Neighbours::default() }
    }

    /// See [`Directory::table`].
    pub(crate) fn table(
        &self,
        vnic: VnicId,
        addresses: &[VnicAddress],
        guid: [u8; 8],
    ) -> Vec<GidEntry> {
        self.directory.table(vnic, addresses, guid)
    }

    /// See [`Directory::names`].
    pub(crate) fn names(&self, at: VnicId, underlay: &Underlay) -> Option<(Gid, Gid)> {
        self.directory.names(at, underlay)
    }

    /// See [`Directory::address_of`].
    pub(crate) fn address_of(&self, gid: Gid) -> IpAddr {
        self.directory.address_of(gid)
    }

    /// See [`Directory::name_of`].
    pub(crate) fn name_of(&self, address: IpAddr) -> Gid {
        self.directory.name_of(address)
    }

    /// A vNIC is attached so.
    pub(crate) fn attach(&mut self, vnic: VnicId, access: Access) {
        self.attached.insert(vnic, access);
    }

    /// A vNIC is attached no more.
    pub(crate) fn detach(&mut self, vnic: VnicId) {
        self.attached.remove(&vnic);
    }

    /// Whether the memory that its processes share is that of windows, and which addresses it has
    /// is its own word.
    pub(crate) fn is_machine(&self, vnic: VnicId) -> bool {
        self.says(vnic, Access::Window)
    }

    /// Whether the engine is the only way to it from others.
    pub(crate) fn is_closed(&self, vnic: VnicId) -> bool {
        self.says(vnic, Access::Forwarded)
    }

    /// Who attached it says so, or the [directory](Directory::access).
    fn says(&self, vnic: VnicId, access: Access) -> bool {
        self.attached.get(&vnic) == Some(&access) || self.directory.access(vnic) == access
    }

    /// What memory processes of these two can share, if the engine is not the only way to one.
    pub(crate) fn common(&self, vnics: [VnicId; 2]) -> Common {
        let windows = vnics.map(|vnic| self.is_machine(vnic));
        match windows {
            _ if vnics[0] == vnics[1] => Common::Any,
            [false, false] => Common::Any,
            [true, false] => Common::Window(0),
            [false, true] => Common::Window(1),
            [true, true] => Common::Nothing,
        }
    }

    /// No probe is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.neighbours.is_idle()
    }

    /// What the questions under way pay.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = &Receipt> {
        self.neighbours.receipts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::RouteKey;

    fn name(sgid: &str, dgid: &str) -> Name {
        let gid = |text: &str| Gid::from(text.parse::<std::net::IpAddr>().unwrap());
        Name { from: VnicId(1), sgid: gid(sgid), interface: 7, dgid: gid(dgid) }
    }

    #[test]
    fn flat_names_are_addresses_both_ways() {
        for (sgid, dgid, interface) in
            [("10.0.0.1", "10.0.0.2", 0), ("fe80::1", "fe80::2", 7), ("10.0.0.1", "2001:db8::1", 0)]
        {
            let name = name(sgid, dgid);
            let route = Flat.route(&name).unwrap();
            assert_eq!((route.local.to_string(), route.interface), (sgid.into(), interface));
            assert_eq!(route.remote.to_string(), dgid);
            assert_eq!(Flat.names(VnicId(1), &route), Some((name.sgid, name.dgid)));
            let key = std::num::NonZeroU32::new(7).map(RouteKey);
            assert_eq!(Flat.names(VnicId(1), &Underlay { key, ..route }), None);
        }
    }
}
