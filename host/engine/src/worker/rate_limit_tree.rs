//! Keeps the rate limits of a packet thread's vNICs: which of them sends next.
//!
//! The tree of limits is the pacer's (`host/pacer`); a vNIC that has a limit is a leaf of it. What
//! the links of a vNIC wait for is kept by its [`super::rate_limit::Gate`].

use omniverb_pacer::{Limit, NodeId, Pacer};
use omniverb_terms::VnicId;
use std::collections::HashMap;

/// How long a vNIC that has used up its limit waits at least, in nanoseconds: then it has earned
/// several packets, which are sent in one go.
const PAUSE: u64 = 500_000;

/// The limits, and whose they are.
pub(super) struct RateLimits {
    pub(super) pacer: Pacer,
    vnics: HashMap<NodeId, VnicId>,
}

impl Default for RateLimits {
    fn default() -> RateLimits {
        RateLimits { pacer: Pacer::new(PAUSE), vnics: HashMap::new() }
    }
}

impl RateLimits {
    /// A vNIC has a limit from now on.
    pub(super) fn add(&mut self, vnic: VnicId, limit: Limit, now: u64) -> Option<NodeId> {
        let leaf = self.pacer.add_leaf(self.pacer.root(), Some(limit), now).ok()?;
        self.vnics.insert(leaf, vnic);
        Some(leaf)
    }

    /// And no longer.
    pub(super) fn remove(&mut self, leaf: NodeId) {
        let _ = self.pacer.remove(leaf);
        self.vnics.remove(&leaf);
    }

    /// The vNIC whose turn it is.
    pub(super) fn next(&mut self, now: u64) -> Option<VnicId> {
        let leaf = self.pacer.next(now)?;
        self.vnics.get(&leaf).copied()
    }

    /// When it is the turn of one.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.pacer.next_at()
    }
}
