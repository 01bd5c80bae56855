//! Takes the daemon's reports about memory and windows.

use crate::action::{Action, GrantOccasion};
use crate::memory::extent_file_allocator::{FileId, Layout};
use crate::row_keys::SessionId;
use crate::tenancy::Tenancy;
use crate::vm_pair_windows::window_table::PairWindows;
use omniverb_session::body::Granted;
use omniverb_terms::{Errno, Qpn, Rkey, VnicId};

impl Tenancy {
    /// The memory file of an [`Action::Adopt`] with this token could not be made.
    #[must_use]
    pub fn memory_failed(&mut self, token: u64) -> Vec<Action> {
        self.grants().no_memory(token);
        self.context.decided()
    }

    /// The process of an [`Action::Grant`] cannot be told the place of its pages at present.
    #[must_use]
    pub fn grant_failed(
        &mut self,
        session: SessionId,
        file: FileId,
        granted: &Granted,
        occasion: GrantOccasion,
    ) -> Vec<Action> {
        self.grants().not_granted(session, file, granted, occasion);
        self.context.decided()
    }

    /// Pages that an owner keeps where they are, or may, are not used, for this reason: the owner
    /// gets an event, since it pays for them. Links wait for them no longer.
    #[must_use]
    pub fn keeps_in_vain(&mut self, owner: SessionId, token: u64, errno: Errno) -> Vec<Action> {
        self.grants().pinned_in_vain(owner, token, errno);
        self.context.decided()
    }

    /// Sets the pair windows of the machine that has a vNIC.
    pub fn set_pair_windows(&mut self, machine: VnicId, windows: PairWindows) {
        self.pair_windows.set(machine, windows);
    }

    /// A machine is parted with, and its windows with it: owners take back what lies there.
    #[must_use]
    pub fn forget_pair_windows(&mut self, machine: VnicId) -> Vec<Action> {
        self.pair_windows.forget(machine);
        self.grants().take_back_of(machine);
        self.context.decided()
    }

    /// Machines whose processes wanted links with each other, both ways, and had no window in
    /// common: those since the last call.
    pub fn take_wanted_windows(&mut self) -> impl Iterator<Item = [VnicId; 2]> + use<> {
        self.pair_windows.take_wanted().into_iter()
    }

    /// Has extents be where a layout says, before there are any.
    pub fn lay_out(&mut self, layout: Box<dyn Layout>) {
        self.memory.lay_out(layout);
    }

    /// The file of the memory that an owner was asked with `token` to move pages onto.
    #[must_use]
    pub fn file_asked_for(&self, token: u64) -> Option<FileId> {
        self.memory.file_asked_for(token)
    }

    /// The daemon has all memory of the machine that this vNIC is of, or has it no longer: pages of
    /// its processes may stay where they are when the engine is granted them, from now on.
    pub fn set_has_memory(&mut self, vnic: VnicId, has: bool) {
        self.memory.set_has_memory(vnic, has);
    }

    /// The name and the bytes of the pages that a session was asked with `token` to keep where they
    /// are. `None`: it was not asked.
    #[must_use]
    pub fn asked_to_keep(&self, session: SessionId, token: u64) -> Option<(FileId, u64)> {
        self.memory.asked_to_keep(session, token)
    }

    /// A peer beyond the engine names these bytes of a key to `qpn`, which it is connected with.
    /// If nothing comes of it, everything goes on through the application. `u64::MAX` bytes are
    /// all of the region.
    pub fn engine_wants(
        &mut self,
        link: (Qpn, Qpn),
        rkey: Rkey,
        range: (u64, u64),
        now: u64,
    ) -> Vec<Action> {
        self.grants().engine_wants(link, rkey, range, now);
        self.context.decided()
    }

    /// The engine was granted pages at `start` that their owner keeps where they are, for a link,
    /// and has no room to map them: the owner is told to release them. The engine drops its
    /// mappings of them.
    #[must_use]
    pub fn engine_cannot_map(&mut self, link: (Qpn, Qpn), rkey: Rkey, start: u64) -> Vec<Action> {
        self.grants().engine_cannot_map(link, rkey, start);
        self.context.decided()
    }

    /// No process has this file open or mapped any more, of an [`Action::ForgetFile`] that was to
    /// be watched.
    pub fn file_gone(&mut self, file: FileId) {
        self.memory.file_gone(file);
    }
}
