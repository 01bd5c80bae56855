//! Grants memory that peers may map: keeps the extents that hold parts of regions, and their
//! grants.
//!
//! `region_registration.rs` registers keys. `extent_table.rs` keeps parts of regions on memory
//! files; `page_placement.rs` chooses the kind of memory; `extent_file_allocator.rs` the place in a
//! file; `extent_moves.rs` has owners move pages there and back. `grants.rs` grants extents to
//! peers; `pending_grants.rs` keeps requests that wait. `grants_by_link.rs` keeps the grants of
//! each link; `grant_revocation.rs` ends them with it; `lingering_files.rs` counts files of ended
//! grants that processes may still have.

pub(crate) mod extent_file_allocator;
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
use crate::decision_context::Context;
use crate::network::Network;
use crate::queue_pairs::queue_pair_table::QueuePairs;
use crate::row_keys::{LinkKey, SessionId};
use crate::vm_pair_windows::window_table::MachineWindows;
use crate::vnics_and_policies::Tenants;
use extent_file_allocator::PageHome;
use extent_table::{Extent, ExtentId, Extents, RegionKey};
use grants_by_link::Grantees;
use lingering_files::LingeringFiles;
use omniverb_terms::{Operations, Qpn, VnicId};
use pending_grants::{PendingGrant, PendingGrants};
use std::collections::BTreeSet;

/// The facts about links that grants need.
pub(crate) trait LinkTable {
    /// There is a direct link between two queue pairs.
    fn has_direct(&self, qpn: Qpn, peer: Qpn) -> bool;

    /// There is a link of a queue pair to the engine, for a peer of this number.
    fn has_engine(&self, qpn: Qpn, peer: Qpn) -> bool;

    /// Operations that a queue pair refuses from this peer.
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

/// Grants, and requests for them. The files of this folder change it; others read.
#[derive(Default)]
pub(crate) struct Memory {
    extents: Extents,
    grantees: Grantees,
    pending: PendingGrants,
    remains: LingeringFiles,
    /// Machines whose memory the daemon has: pages may stay there.
    whole: BTreeSet<VnicId>,
    /// Regions whose pages lie there so scattered that a message has room for small parts only.
    scattered: BTreeSet<RegionKey>,
}

impl Memory {
    /// No pages are granted or requested.
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

    /// Every grant by a link: the owner of the pages, and its receipt.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (LinkKey, SessionId, &Receipt)> {
        self.grantees.iter(&self.extents)
    }
}
