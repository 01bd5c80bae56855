//! Captures under way: who asked for them, of which vNIC, and how far they are.

use crate::engine::Intake;
use omniverb_tenancy::{SessionId, VnicId};
use omniverb_terms::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Processes that may tell at the same time: each has memory of 8 MiB for it.
const TRACING_MAX: usize = 256;

#[derive(Debug)]
struct Recording {
    vnic: VnicId,
    intake: Intake,
}

/// All of them, by the operators who asked.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    recordings: BTreeMap<SessionId, Recording>,
    /// Those whose file is looked at, and the calls that wait for it.
    beginning: BTreeMap<SessionId, u64>,
    /// Those that end, and the calls that wait for it.
    finishing: BTreeMap<SessionId, u64>,
    /// Who has memory to tell through what is captured.
    tracing: BTreeSet<SessionId>,
}

impl Captures {
    /// Whether somebody may begin one: one at a time of each vNIC, and for each operator.
    pub(crate) fn may_begin(&self, id: SessionId, vnic: VnicId) -> Result<(), Errno> {
        let busy = self.recordings.contains_key(&id) || self.finishing.contains_key(&id);
        if busy || self.is_recorded(vnic) { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// One begins; call `tag` waits until the recorder has looked at its file.
    pub(crate) fn begin(&mut self, id: SessionId, tag: u64, vnic: VnicId, intake: Intake) {
        self.recordings.insert(id, Recording { vnic, intake });
        self.beginning.insert(id, tag);
    }

    /// The recorder has looked; the call that waits for that.
    pub(crate) fn begun(&mut self, id: SessionId) -> Option<u64> {
        self.beginning.remove(&id)
    }

    pub(crate) fn is_recorded(&self, vnic: VnicId) -> bool {
        self.intake_of(vnic).is_some()
    }

    /// Where a vNIC's packets are to be left, if somebody wants them.
    pub(crate) fn intake_of(&self, vnic: VnicId) -> Option<&Intake> {
        let mut all = self.recordings.values();
        all.find(|recording| recording.vnic == vnic).map(|recording| &recording.intake)
    }

    /// Call `tag` waits until this one is written down; false if there is none.
    pub(crate) fn finish(&mut self, id: SessionId, tag: u64) -> bool {
        let there = self.recordings.contains_key(&id);
        if there {
            self.finishing.insert(id, tag);
        }
        there
    }

    /// No more packets are wanted; of whom.
    pub(crate) fn end(&mut self, id: SessionId) -> Option<VnicId> {
        self.recordings.remove(&id).map(|recording| recording.vnic)
    }

    /// It is written down; the call that waits for that.
    pub(crate) fn ended(&mut self, id: SessionId) -> Option<u64> {
        self.finishing.remove(&id)
    }

    /// No call waits for anything any more.
    pub(crate) fn hang_up(&mut self, id: SessionId) {
        self.beginning.remove(&id);
        self.finishing.remove(&id);
    }

    /// One more process may tell what happens on its links.
    pub(crate) fn may_trace(&self) -> bool {
        self.tracing.len() < TRACING_MAX
    }

    /// This one does.
    pub(crate) fn trace(&mut self, id: SessionId) {
        self.tracing.insert(id);
    }

    /// It does no longer; false if it did not.
    pub(crate) fn end_trace(&mut self, id: SessionId) -> bool {
        self.tracing.remove(&id)
    }
}
