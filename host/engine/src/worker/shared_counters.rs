//! Shares counters of packet threads with the control plane.

use crate::command::QpCounters;
use omniverb_sys::clock;
use omniverb_sys::lock;
use omniverb_terms::{Qpn, VnicId};
use omniverb_transport::fault_injection::FaultCounts;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Shown by packet threads now and then, all of them in one place.
#[derive(Clone, Default)]
pub(crate) struct Counters(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    /// By the application's QP and its peer.
    links: HashMap<(Qpn, Qpn), QpCounters>,
    /// Of links that have ended, by their vNIC, until that is forgotten: as many as the control
    /// plane remembers.
    ended: HashMap<VnicId, QpCounters>,
    /// Of vNICs that have or had faults, until that is forgotten as well.
    faults: HashMap<VnicId, Injected>,
}

/// What faults did to packets of a vNIC. Counters go on where others are set, or none.
#[derive(Clone, Copy, Default)]
struct Injected {
    /// Of the present faults.
    now: FaultCounts,
    /// Of those before.
    before: FaultCounts,
}

impl Counters {
    /// The last shown counters of a link.
    pub(crate) fn link(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<QpCounters> {
        lock(&self.0).links.get(&(qpn, peer_qpn)).copied()
    }

    /// The counters of a vNIC's ended links.
    pub(crate) fn ended(&self, vnic: VnicId) -> QpCounters {
        lock(&self.0).ended.get(&vnic).copied().unwrap_or_default()
    }

    /// Whether no counters are shown.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let counted = lock(&self.0);
        counted.links.is_empty() && counted.ended.is_empty() && counted.faults.is_empty()
    }

    /// The last shown counts of all faults that a vNIC has had.
    pub(crate) fn faults(&self, vnic: VnicId) -> Option<FaultCounts> {
        let Injected { now, mut before } = lock(&self.0).faults.get(&vnic).copied()?;
        before.add(&now);
        Some(before)
    }
}

/// Counters that one packet thread shows there, now and then.
pub(super) struct Showing {
    counters: Counters,
    /// When that was done last.
    shown: u64,
}

/// How often, in nanoseconds.
const EVERY: u64 = 100_000_000;

impl Showing {
    pub(super) fn new(counters: Counters) -> Showing {
        Showing { counters, shown: 0 }
    }

    /// Whether it was long ago.
    pub(super) fn is_due(&self) -> bool {
        clock::now().saturating_sub(self.shown) > EVERY
    }

    /// Shows these, of links that were served since and of all vNICs with faults.
    pub(super) fn show(
        &mut self,
        links: impl Iterator<Item = ((Qpn, Qpn), QpCounters)>,
        faults: impl Iterator<Item = (VnicId, FaultCounts)>,
    ) {
        self.shown = clock::now();
        let mut counted = lock(&self.counters.0);
        counted.links.extend(links);
        for (vnic, now) in faults {
            counted.faults.entry(vnic).or_default().now = now;
        }
    }

    /// A link of a vNIC's is gone, which had counted this at last.
    pub(super) fn end_link(&self, vnic: VnicId, link: (Qpn, Qpn), last: &QpCounters) {
        let mut counted = lock(&self.counters.0);
        counted.links.remove(&link);
        counted.ended.entry(vnic).or_default().add(last);
    }

    /// Drops the counters of this vNIC's ended links and of its faults.
    pub(super) fn forget(&self, vnic: VnicId) {
        let mut counted = lock(&self.counters.0);
        counted.ended.remove(&vnic);
        counted.faults.remove(&vnic);
    }

    /// A vNIC's faults are over, which did this.
    pub(super) fn end_faults(&self, vnic: VnicId, last: &FaultCounts) {
        let mut counted = lock(&self.counters.0);
        let injected = counted.faults.entry(vnic).or_default();
        injected.now = FaultCounts::default();
        injected.before.add(last);
    }
}
