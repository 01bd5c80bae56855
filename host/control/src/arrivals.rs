//! Connections of processes that are not identified yet. Bounded; over the bound whoever has the
//! most of them loses the oldest.

use omniverb_sys::pidfd::Peer;
use omniverb_tenancy::{Circle, Holder, Holders, SessionId};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connections whose process is being identified: two descriptors each, for less than a millisecond
/// in peace.
const ARRIVALS: usize = 1024;

/// A connection whose process is being identified.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) calls: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    /// Who may look into it.
    pub(crate) circle: Option<Circle>,
    /// As far as that is known.
    pub(crate) holder: Holder,
}

/// All of them, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    waiting: BTreeMap<SessionId, Arrival>,
    of: Holders<SessionId>,
}

impl Arrivals {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Adds one; who has to make room for it, which may be itself.
    pub(crate) fn add(&mut self, id: SessionId, arrival: Arrival) -> Option<SessionId> {
        self.of.add(&arrival.holder, id);
        self.waiting.insert(id, arrival);
        let full = self.waiting.len() > ARRIVALS;
        full.then(|| self.of.yields().copied()).flatten()
    }

    /// Takes one out.
    pub(crate) fn take(&mut self, id: SessionId) -> Option<Arrival> {
        self.of.remove(&id);
        self.waiting.remove(&id)
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Arrival> + use<> {
        std::mem::take(self).waiting.into_values()
    }
}
