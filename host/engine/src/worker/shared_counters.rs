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
    /// Since faults were set, of vNICs that have some.
    faults: HashMap<VnicId, FaultCounts>,
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

    /// The last shown counts of a vNIC's faults.
    pub(crate) fn faults(&self, vnic: VnicId) -> Option<FaultCounts> {
        lock(&self.0).faults.get(&vnic).copied()
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
        counted.faults.extend(faults);
    }

    /// A link of a vNIC's is gone, which had counted this at last.
    pub(super) fn end_link(&self, vnic: VnicId, link: (Qpn, Qpn), last: &QpCounters) {
        let mut counted = lock(&self.counters.0);
        counted.links.remove(&link);
        counted.ended.entry(vnic).or_default().add(last);
    }

    /// Drops the counters of this vNIC's ended links.
    pub(super) fn forget_ended(&self, vnic: VnicId) {
        lock(&self.counters.0).ended.remove(&vnic);
    }

    /// A vNIC has other faults, or none.
    pub(super) fn forget_faults(&self, vnic: VnicId) {
        lock(&self.counters.0).faults.remove(&vnic);
    }
}
