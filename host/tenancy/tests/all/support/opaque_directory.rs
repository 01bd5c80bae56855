//! Provides a second directory, and a second way to reach a vNIC, as another author would write
//! them.

use omniverb_session::body::GidEntry;
use omniverb_tenancy::testing::random_driver::{ip, vnic};
use omniverb_tenancy::{Access, Directory, Flat, Name, UnderlayRoute, VnicAddress, VnicId};
use omniverb_terms::{Gid, RouteKey};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

/// The name of the vNIC of this number: nothing in it says where that is.
pub fn virtual_gid(number: u64) -> Gid {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x7e7e, 0x4000 - number as u16).into()
}

/// The network of the virtual names, by which its routes are told from others.
pub fn key() -> Option<RouteKey> {
    NonZeroU32::new(0x7e7e).map(RouteKey)
}

/// Names of a virtual network: known by a table, and none of them an address of the underlay.
#[derive(Debug, Default)]
pub struct Virtual;

impl Virtual {
    fn number(gid: Gid) -> Option<u64> {
        (0..16).find(|number| virtual_gid(*number) == gid)
    }

    fn name(address: IpAddr) -> Option<Gid> {
        (0..16).find(|number| ip(*number) == address).map(virtual_gid)
    }
}

impl Directory for Virtual {
    fn table(&self, vnic: VnicId, addresses: &[VnicAddress], guid: [u8; 8]) -> Vec<GidEntry> {
        let named = |entry: GidEntry| match Virtual::name(entry.gid.address()) {
            Some(gid) => GidEntry { gid, ..entry },
            None => entry,
        };
        Flat.table(vnic, addresses, guid).into_iter().map(named).collect()
    }

    fn route(&self, name: &Name) -> Option<UnderlayRoute> {
        // A name outside the virtual network is no vNIC there, not even with an underlay address.
        let address = |gid: Gid| match Virtual::number(gid) {
            Some(number) => Some(ip(number)),
            None => gid.is_loopback().then_some(gid.address()),
        };
        let route = UnderlayRoute::plain(address(name.sgid)?, address(name.dgid)?, 0);
        Some(UnderlayRoute { key: Virtual::number(name.dgid).and(key()), ..route })
    }

    fn names(&self, _at: VnicId, underlay: &UnderlayRoute) -> Option<(Gid, Gid)> {
        // The same addresses in another network are others.
        if underlay.key != key() {
            return None;
        }
        Some((Virtual::name(underlay.local)?, Virtual::name(underlay.remote)?))
    }
}

/// The flat directory of a host where some vNICs are reached in one way only.
#[derive(Debug)]
pub struct Guests(pub Access, pub Vec<u64>);

impl Directory for Guests {
    fn table(&self, vnic: VnicId, addresses: &[VnicAddress], guid: [u8; 8]) -> Vec<GidEntry> {
        Flat.table(vnic, addresses, guid)
    }

    fn route(&self, name: &Name) -> Option<UnderlayRoute> {
        Flat.route(name)
    }

    fn names(&self, at: VnicId, underlay: &UnderlayRoute) -> Option<(Gid, Gid)> {
        Flat.names(at, underlay)
    }

    fn access(&self, of: VnicId) -> Access {
        match self.1.iter().any(|number| vnic(*number) == of) {
            true => self.0,
            false => Access::Any,
        }
    }
}
