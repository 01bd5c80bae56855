//! What packet threads count, where the control plane looks at it.

use crate::command::QpCounters;
use crate::identity::VnicId;
use crate::lock::lock;
use omniverb_terms::Qpn;
use omniverb_transport::faults::Done;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Shown by packet threads now and then, all of them in one place.
#[derive(Clone, Default)]
pub(crate) struct Counters(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    /// By QP and peer.
    links: HashMap<(Qpn, Qpn), QpCounters>,
    /// Of those with faults.
    faults: HashMap<VnicId, Done>,
}

impl Counters {
    /// What was shown last of a link.
    pub(crate) fn link(&self, qpn: Qpn, peer_qpn: Qpn) -> Option<QpCounters> {
        lock(&self.0).links.get(&(qpn, peer_qpn)).copied()
    }

    /// What was shown last of a vNIC's faults.
    pub(crate) fn faults(&self, vnic: VnicId) -> Option<Done> {
        lock(&self.0).faults.get(&vnic).copied()
    }

    /// Shows these.
    pub(crate) fn show(
        &self,
        links: impl Iterator<Item = ((Qpn, Qpn), QpCounters)>,
        faults: impl Iterator<Item = (VnicId, Done)>,
    ) {
        let mut counted = lock(&self.0);
        counted.links.extend(links);
        counted.faults.extend(faults);
    }

    /// A link is gone.
    pub(crate) fn forget_link(&self, qpn: Qpn, peer_qpn: Qpn) {
        lock(&self.0).links.remove(&(qpn, peer_qpn));
    }

    /// A vNIC has other faults, or none.
    pub(crate) fn forget_faults(&self, vnic: VnicId) {
        lock(&self.0).faults.remove(&vnic);
    }
}
