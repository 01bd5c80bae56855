//! Keeps the vNICs that a packet thread serves.

use super::fault_queue::FaultQueue;
use super::vnic::Vnic;
use omniverb_terms::VnicId;
use std::collections::BTreeMap;

/// All of them. One that is not there has no network: what is to be done with it is left undone.
#[derive(Default)]
pub(super) struct Vnics(BTreeMap<VnicId, Vnic>);

impl Vnics {
    /// This one is served from now on, in place of what was called so before.
    pub(super) fn open(&mut self, id: VnicId, vnic: Vnic) {
        self.0.insert(id, vnic);
    }

    /// And no longer; what it was.
    pub(super) fn close(&mut self, id: VnicId) -> Option<Vnic> {
        self.0.remove(&id)
    }

    pub(super) fn is_open(&self, id: VnicId) -> bool {
        self.0.contains_key(&id)
    }

    pub(super) fn get(&self, id: VnicId) -> Option<&Vnic> {
        self.0.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: VnicId) -> Option<&mut Vnic> {
        self.0.get_mut(&id)
    }

    /// Those that keep more than they may: they are to yield.
    pub(super) fn over(&self) -> Vec<VnicId> {
        let over = self.0.iter().filter(|(_, vnic)| vnic.allowance.kept.is_over());
        over.map(|(id, _)| *id).collect()
    }

    /// The queue of faults for packets to this vNIC, if it has one.
    pub(super) fn detour_mut(&mut self, id: VnicId) -> Option<&mut FaultQueue> {
        self.get_mut(id)?.fault_queue.as_mut()
    }

    /// vNICs with faults, and their queues.
    pub(super) fn detours(&self) -> impl Iterator<Item = (VnicId, &FaultQueue)> {
        self.0.iter().filter_map(|(id, vnic)| Some((*id, vnic.fault_queue.as_ref()?)))
    }
}
