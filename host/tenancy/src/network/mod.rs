//! Models the network for the tables: names, routes, and the vNIC or host at each route's end.
//!
//! Probes find out the latter (`route_destination_probes.rs`, `route_destination_cache.rs`).
//! Attachments of vNICs are here as well.

pub(crate) mod route_destination_cache;
pub(crate) mod route_destination_probes;

use crate::accounts::Receipt;
use crate::directory::{Access, Directory, VnicAddress};
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::GidEntry;
use omniverb_terms::{Gid, Qpn, UnderlayRoute, VnicId};
use route_destination_cache::Neighbours;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The memory that processes of two vNICs can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedMemory {
    /// Any memory: a file for each thing.
    Any,
    /// That of a window: of the first or the second of the two.
    Window(usize),
    /// None: no window is in both.
    Nothing,
}

/// The network as the tables know it: names, routes, and the vNICs or hosts at their ends.
pub(crate) struct Network {
    directory: Box<dyn Directory>,
    /// Attachments of vNICs, as reported.
    attached: BTreeMap<VnicId, Access>,
    pub(crate) neighbours: Neighbours,
}

impl Network {
    /// A network of which only the directory is known.
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

    /// The names of both ends of what came to a vNIC from queue pair `source`: see
    /// [`Directory::names`].
    pub(crate) fn names(
        &self,
        tenants: &Tenants,
        at: VnicId,
        source: Qpn,
        underlay: &UnderlayRoute,
    ) -> Option<(Gid, Gid)> {
        match tenants.virtual_networks.has(at) {
            true => tenants.virtual_networks.names(at, source, underlay),
            false => self.directory.names(at, underlay),
        }
    }

    /// The address that people call a name by, seen from a vNIC: see [`Directory::address_of`].
    pub(crate) fn address_of(&self, tenants: &Tenants, from: VnicId, gid: Gid) -> IpAddr {
        let known = tenants.virtual_networks.address(from, gid);
        known.unwrap_or_else(|| self.directory.address_of(gid))
    }

    /// The name of an address in a vNIC's network: see [`Directory::name_of`]. `None`: no vNIC
    /// there has it.
    pub(crate) fn name_of(&self, tenants: &Tenants, from: VnicId, address: IpAddr) -> Option<Gid> {
        if tenants.virtual_networks.has(from) && !address.is_loopback() {
            return tenants.virtual_networks.name(from, address);
        }
        Some(self.directory.name_of(address))
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

    /// Its attachment was reported so, or the [directory](Directory::access) has it.
    fn says(&self, vnic: VnicId, access: Access) -> bool {
        self.attached.get(&vnic) == Some(&access) || self.directory.access(vnic) == access
    }

    /// The memory that processes of these two can share, if the engine is not the only way to one.
    pub(crate) fn common(&self, vnics: [VnicId; 2]) -> SharedMemory {
        let windows = vnics.map(|vnic| self.is_machine(vnic));
        match windows {
            _ if vnics[0] == vnics[1] => SharedMemory::Any,
            [false, false] => SharedMemory::Any,
            [true, false] => SharedMemory::Window(0),
            [false, true] => SharedMemory::Window(1),
            [true, true] => SharedMemory::Nothing,
        }
    }

    /// No probe is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.neighbours.is_idle()
    }

    /// The receipts of the questions under way.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = &Receipt> {
        self.neighbours.receipts()
    }
}
