//! Translates names (GIDs) into routes through the underlay, and back.
//!
//! A GID is the name of a peer in verbs. Packets are sent to an address of the network below, the
//! *underlay*: a route. Only a directory turns one into the other. `network/` finds out what is at
//! the end of a route, a vNIC of this host, another Omniverb or neither, by probing it; another
//! directory changes nothing about that.
//!
//! `gid_table.rs`: tables of names; `vnic_gids_and_addresses.rs`: the names of one vNIC.
//!
//! In: names from clients, addresses of vNICs, underlays that datagrams came by. Out: routes,
//! names. No state of the tables.

mod address_family;
mod gid_table;
pub(crate) mod vnic_gids_and_addresses;
pub(crate) mod vnics_by_address;

pub(crate) use address_family::Family;
pub(crate) use gid_table::{LOOPBACK_INTERFACE, loopbacks};
pub use gid_table::{Reach, VnicAddress};

use omniverb_session::body::GidEntry;
use omniverb_terms::{Gid, UnderlayRoute, VnicId};
use std::net::IpAddr;

/// A name, and the vNIC that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The vNIC that names a peer.
    pub from: VnicId,
    /// The sender's own name.
    pub sgid: Gid,
    /// The interface of that entry of its table; zero if there is no such entry any more.
    pub interface: u32,
    /// The peer's name.
    pub dgid: Gid,
}

/// Restrictions on how others of the same host may reach a vNIC. They have no order and add up:
/// that the way to a virtual machine is closed does not make it a namespace.
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

/// Names and routes of all vNICs.
pub trait Directory {
    /// The GID table of a vNIC with these addresses in the underlay.
    fn table(&self, vnic: VnicId, addresses: &[VnicAddress], guid: [u8; 8]) -> Vec<GidEntry>;

    /// The route to this name; `None`: it leads nowhere.
    fn route(&self, name: &Name) -> Option<UnderlayRoute>;

    /// The names of a vNIC and of the sender by this route: its own, the sender's.
    fn names(&self, at: VnicId, underlay: &UnderlayRoute) -> Option<(Gid, Gid)>;

    /// The address of this name in `rdma_cm` and in logs.
    fn address_of(&self, gid: Gid) -> IpAddr {
        gid.address()
    }

    /// The name of this address.
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
        gid_table::table(addresses, guid)
    }

    fn route(&self, name: &Name) -> Option<UnderlayRoute> {
        let by_interface = name.dgid.is_link_local() || name.dgid.is_multicast();
        let interface = if by_interface { name.interface } else { 0 };
        Some(UnderlayRoute::plain(name.sgid.address(), name.dgid.address(), interface))
    }

    fn names(&self, _at: VnicId, underlay: &UnderlayRoute) -> Option<(Gid, Gid)> {
        // Of other networks with such addresses there are none here.
        underlay.key.is_none().then(|| (underlay.local.into(), underlay.remote.into()))
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
            assert_eq!(Flat.names(VnicId(1), &UnderlayRoute { key, ..route }), None);
        }
    }
}
