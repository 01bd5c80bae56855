//! Chooses the memory that granted pages are moved to: one that their owner and the grantee both
//! have.
//!
//! In: owner and grantee. Out: a file of its own, one of the windows of virtual machines, or, for
//! the engine, their place in a virtual machine's memory. An extent is in one place, which its
//! first grantee decides: peers that cannot reach that place are mediated as long as the extent is
//! there.

use super::pending_grants::{Abandoned, Grantee, PendingGrant, Token};
use crate::limits::Limits;
use crate::memory::Grants;
use crate::memory::extent_file_allocator::PageHome;
use crate::memory::extent_table::{ExtentId, Pages};
use crate::network::SharedMemory;
use crate::row_keys::SessionId;
use crate::sessions::revocations_caused_by_peers::PeerKey;
use omniverb_session::page_rights::{self, PeerTrust};
use omniverb_terms::{Errno, VnicId};

/// Bytes of a part of a region that goes to a pair window at a time: these are small, and for more
/// regions than one.
const PAIR_EXTENT_BYTES: u64 = 512 << 10;

impl PageHome {
    /// In a window of a machine and a neighbour.
    pub(super) fn is_pair(&self) -> bool {
        matches!(self, PageHome::Pair { .. })
    }

    /// Limits for parts of regions there.
    pub(super) fn limits(&self, limits: &Limits) -> Limits {
        let extent_bytes = match self {
            PageHome::File | PageHome::Window | PageHome::InPlace => limits.extent_bytes,
            PageHome::Pair { .. } => limits.extent_bytes.min(PAIR_EXTENT_BYTES),
        };
        Limits { extent_bytes, ..limits.clone() }
    }

    /// The accesses that mapped pages of a region with these flags allow there.
    pub(super) fn mappable(&self, access: u32, trust: PeerTrust) -> u32 {
        match self {
            // In place only the engine has them, which keeps to the flags.
            PageHome::File | PageHome::InPlace => page_rights::mappable(access, trust),
            PageHome::Window | PageHome::Pair { .. } => {
                page_rights::mappable_in_window(access, trust)
            }
        }
    }
}

impl Grants<'_> {
    /// The kind of memory by which an owner's pages are lent to a grantee.
    pub(super) fn home(&self, initiator: Grantee, owner: SessionId) -> Result<PageHome, Errno> {
        let vnic_of =
            |id| Ok::<_, Errno>(self.tenants.sessions.get(&id).ok_or(Errno::ENOENT)?.client().vnic);
        let home = vnic_of(owner)?;
        let in_machine = self.network.is_machine(home);
        let peer = match initiator {
            Grantee::Session(peer) => peer,
            Grantee::Engine if self.memory.stay_in_place(home) => return Ok(PageHome::InPlace),
            Grantee::Engine if in_machine => return Err(Errno::EOPNOTSUPP),
            Grantee::Engine => return Ok(PageHome::File),
        };
        let (vnics, sessions) = ([home, vnic_of(peer)?], [owner, peer]);
        match self.pair_windows.common(self.network, vnics) {
            SharedMemory::Any if in_machine => Ok(PageHome::Window),
            SharedMemory::Any => Ok(PageHome::File),
            SharedMemory::Nothing => Err(Errno::EOPNOTSUPP),
            SharedMemory::Window(end) => {
                let neighbour = self
                    .pair_windows
                    .neighbour(self.tenants, self.network, sessions[1 - end])
                    .ok_or(Errno::EOPNOTSUPP)?;
                Ok(PageHome::Pair { machine: vnics[end], neighbour })
            }
        }
    }

    /// A grant to this initiator failed. In a pair window no extent stays without grantee: there is
    /// little room, and other peers cannot have the pages there.
    pub(super) fn drop_unused(&mut self, initiator: Grantee, id: ExtentId) {
        let in_pair = self.memory.extents.get(id).is_some_and(|extent| extent.home.is_pair());
        let granted = self.memory.grantees.links_of(id).next().is_some();
        if in_pair && !granted && !self.memory.pending().any(|grant| grant.extent == id) {
            self.take_extent_back(self.peer_of(initiator), id);
        }
    }

    /// The peer that is charged for what an initiator causes.
    fn peer_of(&self, initiator: Grantee) -> Option<PeerKey> {
        match initiator {
            Grantee::Session(id) => self.tenants.peer_key(id),
            Grantee::Engine => None,
        }
    }

    /// No link waits any more for the owner's answer, which may be moving pages to an extent. In a
    /// pair window they must not stay: the neighbour has them as well, and no link would end that.
    /// The extent is known until there is an answer, and then it is taken back; so are pages that
    /// stay where they are, for which their owner pays. From a file of its own and from its
    /// machine's window the owner takes them back when it is asked for them on another.
    pub(super) fn give_up_extent(&mut self, token: Token, grant: &PendingGrant) {
        let PendingGrant { owner, extent, initiator, .. } = *grant;
        if !grant.part.is_fresh() {
            return;
        }
        match self.memory.extents.get(extent).map(|extent| extent.home) {
            Some(PageHome::Pair { .. } | PageHome::InPlace) => {
                let peer = self.peer_of(initiator);
                self.memory.pending.abandon(token, Abandoned { owner, extent, peer });
            }
            Some(PageHome::File | PageHome::Window) => self.remove_extent(extent),
            None => {}
        }
    }

    /// An owner answers an abandoned question, or one that was never asked.
    pub(super) fn answered_late(&mut self, owner: SessionId, token: Token, errno: Errno) {
        if self.memory.pending.owner_of_abandoned(token) != Some(owner) {
            return;
        }
        let Some(Abandoned { extent, peer, .. }) = self.memory.pending.take_abandoned(token) else {
            return;
        };
        match errno {
            Errno::NONE => self.take_extent_back(peer, extent),
            _ => self.remove_extent(extent),
        }
    }

    /// The windows of a machine are over: extents in them are granted no longer. An owner that is
    /// asked to move pages there may do so after it was told to take them back: it is told when it
    /// has answered.
    pub(crate) fn take_back_of(&mut self, machine: VnicId) {
        let those = self.memory.in_pairs_of(machine);
        for token in self.memory.pending.fresh_of(&those) {
            self.give_up(token, Errno::EAGAIN);
        }
        for id in those {
            let extent = self.memory.extents.get(id);
            if extent.is_some_and(|extent| extent.pages == Pages::There) {
                self.take_extent_back(None, id);
            }
        }
    }
}
