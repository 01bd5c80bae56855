//! Has owners move pages onto extents and take them back.
//!
//! It chooses the part of a region to ask for, and ends extents that no peer may have any more.

use crate::accounts::{Kind, Receipt};
use crate::action::Action;
use crate::decision_context::Context;
use crate::limits::Limits;
use crate::memory::Grants;
use crate::memory::Memory;
use crate::memory::extent_file_allocator::{FileId, FileRange, FreedPlace, Layout, PageHome};
use crate::memory::extent_table::{Extent, ExtentId, Extents, Pages, Part, RegionKey, choose};
use crate::memory::pending_grants::Token;
use crate::row_keys::SessionId;
use crate::sessions::memory_region::{Mr, PAGE_BYTES};
use omniverb_session::pinned_pages::RUNS_MAX;
use omniverb_terms::{Errno, Qpn, Rkey, VnicId};

/// Bytes of a part of a region whose pages are scattered in a machine's memory: a message has room
/// for them, if no two are side by side.
const SCATTERED_BYTES: u64 = 1 << 20;
const _: () = assert!(SCATTERED_BYTES / PAGE_BYTES <= RUNS_MAX as u64);

impl Memory {
    /// Has extents be where a layout says, before there are any.
    pub(crate) fn lay_out(&mut self, layout: Box<dyn Layout>) {
        debug_assert!(self.extents.is_empty(), "before any client");
        self.extents = Extents::new(layout);
    }

    /// The file of the memory that an owner was asked with `token` to move pages onto.
    pub(crate) fn file_asked_for(&self, token: u64) -> Option<FileId> {
        Some(self.extents.get(self.pending.get(token)?.extent)?.place.file)
    }

    /// The daemon has all memory of the machine that this vNIC is of, or has it no longer: pages of
    /// its processes may stay where they are when the engine is granted them, from now on.
    pub(crate) fn set_has_memory(&mut self, vnic: VnicId, has: bool) {
        match has {
            true => self.whole.insert(vnic),
            false => self.whole.remove(&vnic),
        };
    }

    /// Whether pages of a vNIC's processes stay where they are if the engine is granted them.
    pub(crate) fn stay_in_place(&self, vnic: VnicId) -> bool {
        self.whole.contains(&vnic)
    }

    /// The name and the bytes of the pages that a session was asked with `token` to keep where they
    /// are. `None`: it was not asked.
    pub(crate) fn asked_to_keep(&self, session: SessionId, token: u64) -> Option<(FileId, u64)> {
        let grant = self.pending.get(token).filter(|grant| grant.owner == session)?;
        let extent = self.extents.get(grant.extent)?;
        let waits = extent.home == PageHome::InPlace && extent.pages == Pages::OnTheirWay;
        waits.then_some((extent.place.file, extent.place.length))
    }

    /// The pages of a part are more places than one message has room for. From now on parts of this
    /// region are small enough for any; the caller is to ask again.
    fn is_scattered(&mut self, region: RegionKey, part: &Part) -> Errno {
        // Others as large may be under way.
        if part.length <= SCATTERED_BYTES {
            return Errno::ENOMEM;
        }
        self.scattered.insert(region);
        Errno::EAGAIN
    }

    /// Limits for parts of a region there.
    fn limits_at(&self, context: &Context, home: PageHome, region: RegionKey) -> Limits {
        let limits = home.limits(context.limits());
        let scattered = home == PageHome::InPlace && self.scattered.contains(&region);
        let most = if scattered { SCATTERED_BYTES } else { u64::MAX };
        Limits { extent_bytes: limits.extent_bytes.min(most), ..limits }
    }

    /// Whether parts of a region are in pair windows, which are small.
    fn has_some_in_pair(&self, owner: SessionId, rkey: Rkey) -> bool {
        self.extents.of_region((owner, rkey)).any(|(_, extent)| extent.home.is_pair())
    }

    /// The owner has moved pages onto an extent that it was asked for.
    pub(crate) fn extent_arrived(&mut self, id: ExtentId) {
        self.extents.arrived(id);
    }

    /// No process has this file open or mapped any more, of an [`Action::ForgetFile`] that was to
    /// be watched.
    pub(crate) fn file_gone(&mut self, file: FileId) {
        self.remains.gone(file);
    }
}

impl Grants<'_> {
    /// Pages that an owner keeps where they are, or may, are not used, for this reason: the owner
    /// gets an event, since it pays for them. Links wait for them no longer.
    pub(crate) fn pinned_in_vain(&mut self, owner: SessionId, token: Token, errno: Errno) {
        self.tenants.has_answered(owner);
        if self.memory.pending.get(token).is_some_and(|grant| grant.owner == owner) {
            let Some(grant) = self.take_grant(token) else { return };
            let errno = match errno {
                Errno::E2BIG => self.memory.is_scattered((owner, grant.rkey), &grant.part),
                errno => errno,
            };
            self.take_extent_back(None, grant.extent);
            self.deny(&grant, errno);
        } else if self.memory.pending.owner_of_abandoned(token) == Some(owner) {
            let question = self.memory.pending.take_abandoned(token);
            question.into_iter().for_each(|of| self.take_extent_back(None, of.extent));
        }
    }

    /// The engine was granted pages at `start` that their owner keeps where they are, for a link,
    /// and has no room to map them: the owner is told to release them. The engine drops its
    /// mappings of them.
    pub(crate) fn engine_cannot_map(
        &mut self,
        (qpn, peer_qpn): (Qpn, Qpn),
        rkey: Rkey,
        start: u64,
    ) {
        if self.links.has_engine(qpn, peer_qpn)
            && let Ok((owner, _)) = self.grantable(qpn, rkey)
            && let Some(id) = self.memory.extents.at((owner, rkey), start)
            && let Some(extent) = self.memory.extents.get(id)
            && (extent.home, extent.pages) == (PageHome::InPlace, Pages::There)
        {
            self.take_extent_back(None, id);
        }
    }

    /// The part of a key's region to ask its owner for, with the receipt of a new extent for it;
    /// `u64::MAX` bytes are all of the region.
    pub(crate) fn choose_part(
        &self,
        owner: SessionId,
        (rkey, mr): (Rkey, &Mr),
        (address, length): (u64, u64),
        home: PageHome,
    ) -> Result<(Part, Option<Receipt>), Errno> {
        let session = self.tenants.sessions.get(&owner).ok_or(Errno::ENOENT)?;
        let known = self.memory.extents.of_region((owner, rkey));
        let known = known.map(|(_, extent)| extent.span());
        let part = choose(
            &mr.pages(),
            known,
            (address, length),
            &self.memory.limits_at(self.context, home, (owner, rkey)),
        );
        let part = part.map_err(|errno| match errno {
            // There are more parts of what lies in a pair window, and they go when a link ends.
            Errno::ENOMEM if self.memory.has_some_in_pair(owner, rkey) => Errno::EAGAIN,
            errno => errno,
        })?;
        let there = self.memory.extents.at((owner, rkey), part.start);
        let there = there.and_then(|extent| self.memory.extents.get(extent));
        // The first grantee has it elsewhere, and may have it for long.
        if there.is_some_and(|extent| extent.home != home) {
            return Err(Errno::EAGAIN);
        }
        let receipt =
            part.is_fresh().then(|| session.account().charge(&[Kind::Extent])).transpose()?;
        Ok((part, receipt))
    }

    /// Ends an extent's grants and removes it. Other extents in its file stay as they are.
    pub(crate) fn remove_extent(&mut self, id: ExtentId) {
        self.end_grants_of(id);
        let owner = self.memory.extents.get(id).map(|extent| extent.region.0);
        let Some((place, freed)) = self.memory.extents.remove(id) else { return };
        self.memory.pending.forget_abandoned(id);
        let FileRange { file, length, .. } = place;
        let action = match (freed, owner) {
            (FreedPlace::File, Some(owner)) => {
                let watch = self.memory.remains.ended(id, owner, (file, length));
                Action::ForgetFile { file, watch }
            }
            (FreedPlace::File, None) => Action::ForgetFile { file, watch: false },
            (FreedPlace::Place, _) => {
                self.memory.remains.forget(id);
                Action::EmptyPlace { place }
            }
        };
        self.context.act(action);
    }

    /// Its owner has taken back all extents of this key. It still answers questions under way.
    pub(crate) fn extents_released(&mut self, owner: SessionId, rkey: Rkey) {
        self.remove_those((owner, rkey), |extent| extent.pages == Pages::There);
    }

    /// A key is no more, nor any extent of its region.
    pub(crate) fn remove_extents(&mut self, owner: SessionId, rkey: Rkey) {
        self.memory.scattered.remove(&(owner, rkey));
        self.remove_those((owner, rkey), |_| true);
    }

    fn remove_those(&mut self, region: RegionKey, which: impl Fn(&Extent) -> bool) {
        let those = self.memory.extents.of_region(region).filter(|(_, extent)| which(extent));
        for id in those.map(|(id, _)| id).collect::<Vec<_>>() {
            self.remove_extent(id);
        }
    }

    /// A process is no more, nor any extent of its regions.
    pub(crate) fn remove_all_extents(&mut self, owner: SessionId) {
        self.memory.scattered.retain(|(of, _)| *of != owner);
        for id in self.memory.extents.of_owner(owner) {
            self.memory.remains.forget(id);
            self.remove_extent(id);
        }
        for file in self.memory.remains.end(owner) {
            self.context.act(Action::Unwatch { file });
        }
    }
}
