//! Memory that peers may map: the extents that hold parts of regions, who was granted which.
//!
//! `region_registration.rs`: how keys come and go. `extent_table.rs`: parts of regions on memory
//! files; `page_placement.rs`: on which kind of memory; `extent_layout.rs`: where in which file;
//! `extent_moves.rs`: owners put pages there and take them back. `grants.rs`: how a peer comes to
//! be granted an extent; `pending_grants.rs`: what it waits for. `grants_by_link.rs`: who was
//! granted what, by which link; `grant_revocation.rs`: what follows when a link ends;
//! `lingering_files.rs`: what somebody may have yet of what is over.

pub(crate) mod extent_layout;
mod extent_moves;
pub(crate) mod extent_table;
mod grant_revocation;
mod grants;
pub(crate) mod grants_by_link;
mod lingering_files;
mod page_placement;
pub(crate) mod pending_grants;
mod region_registration;

use crate::accounts::{Paid, Receipt};
use crate::context::Context;
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::row_keys::{LinkKey, SessionId};
use crate::tenants::Tenants;
use crate::vm_pair_windows::window_table::MachineWindows;
use extent_layout::PageHome;
use extent_table::{Extent, ExtentId, Extents, RegionKey};
use grants_by_link::Grantees;
use lingering_files::LingeringFiles;
use omniverb_terms::{Operations, Qpn, VnicId};
use pending_grants::{PendingGrant, PendingGrants};
use std::collections::BTreeSet;

/// What grants need to know of links.
pub(crate) trait LinkTable {
    /// There is a direct link between two queue pairs.
    fn has_direct(&self, qpn: Qpn, peer: Qpn) -> bool;

    /// There is a link of a queue pair to the engine, for a peer of this number.
    fn has_engine(&self, qpn: Qpn, peer: Qpn) -> bool;

    /// What a queue pair refuses to be asked by this peer.
    fn refused(&self, qpn: Qpn, peer: Qpn) -> Operations;

    /// The processes at the ends of a direct link.
    fn ends(&self, key: LinkKey) -> Option<[SessionId; 2]>;
}

/// Grants pages to peers, and takes them back: with the tables that this needs.
pub(crate) struct Grants<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) tenants: &'a mut Tenants,
    pub(crate) network: &'a Network,
    pub(crate) pair_windows: &'a MachineWindows,
    pub(crate) queue_pairs: &'a QueuePairs,
    pub(crate) links: &'a dyn LinkTable,
    pub(crate) memory: &'a mut Memory,
}

/// What is granted, or is to be. The files of this folder change it; others look.
#[derive(Default)]
pub(crate) struct Memory {
    extents: Extents,
    grantees: Grantees,
    pending: PendingGrants,
    remains: LingeringFiles,
    /// Machines whose memory the daemon has: pages may stay there.
    whole: BTreeSet<VnicId>,
    /// Regions whose pages lie there so scattered that only small parts of them can be told of.
    scattered: BTreeSet<RegionKey>,
}

impl Memory {
    /// Nobody is granted anything, nor waits for it.
    pub(crate) fn has_no_grants(&self) -> bool {
        self.pending.is_empty() && self.grantees.is_empty()
    }

    /// No region has an extent.
    pub(crate) fn has_no_extents(&self) -> bool {
        self.extents.is_empty() && self.scattered.is_empty() && self.remains.is_empty()
    }

    /// All extents, with what they pay.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &Paid<Extent>> {
        self.extents.rows()
    }

    /// Extents in pair windows of a machine's.
    fn in_pairs_of(&self, vnic: VnicId) -> BTreeSet<ExtentId> {
        let is_in =
            |home: &PageHome| matches!(home, PageHome::Pair { machine, .. } if *machine == vnic);
        self.extents.at_home(is_in).collect()
    }

    /// All grants that wait for pages.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &PendingGrant> {
        self.pending.iter()
    }

    /// Every grant by a link: whose what is granted is, and what is paid for it.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (LinkKey, SessionId, &Receipt)> {
        self.grantees.iter(&self.extents)
    }
}
