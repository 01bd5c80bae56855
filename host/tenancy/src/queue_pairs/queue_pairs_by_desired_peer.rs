//! Finds the queue pairs that wish for a given peer.

use omniverb_terms::Qpn;
use std::collections::{BTreeMap, BTreeSet};

/// The wishers of all wished peers; peers without any are not kept.
#[derive(Debug, Default)]
pub(crate) struct Wishers {
    by_peer: BTreeMap<Qpn, BTreeSet<Qpn>>,
}

impl Wishers {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }

    /// How many wishes there are, of all queue pairs.
    pub(crate) fn count(&self) -> usize {
        self.by_peer.values().map(BTreeSet::len).sum()
    }

    /// A queue pair wishes for `peer`.
    pub(crate) fn add(&mut self, peer: Qpn, wisher: Qpn) {
        self.by_peer.entry(peer).or_default().insert(wisher);
    }

    /// A queue pair wishes for this peer no longer.
    pub(crate) fn remove(&mut self, peer: Qpn, wisher: Qpn) {
        if let Some(wishers) = self.by_peer.get_mut(&peer) {
            wishers.remove(&wisher);
            if wishers.is_empty() {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// Queue pairs that wish for `peer`, in order.
    pub(crate) fn of(&self, peer: Qpn) -> Vec<Qpn> {
        self.by_peer.get(&peer).into_iter().flatten().copied().collect()
    }
}
