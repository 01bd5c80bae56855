//! Keeps the rate limits of a packet thread's vNICs, and says which of them sends next.
//!
//! The tree of limits is the pacer's (`host/pacer`). A vNIC that has a limit, or is in a group, is
//! a leaf of it. Groups are in the trees of all threads, and their limits are shared by these. What
//! the links of a vNIC wait for is kept by its [`super::rate_limit::Gate`].

use crate::command::LimitGroup;
use omniverb_pacer::{Limit, NodeId, Pacer, SharedLimiter};
use omniverb_terms::VnicId;
use std::collections::HashMap;

/// How long a vNIC that has used up its limit waits at least, in nanoseconds: then it has earned
/// several packets, which are sent in one go.
const PAUSE: u64 = 500_000;

/// The limits, and whose they are.
pub(super) struct RateLimits {
    pub(super) pacer: Pacer,
    vnics: HashMap<NodeId, VnicId>,
    groups: HashMap<LimitGroup, NodeId>,
}

impl Default for RateLimits {
    fn default() -> RateLimits {
        let pacer = Pacer::new(PAUSE);
        RateLimits { pacer, vnics: HashMap::new(), groups: HashMap::new() }
    }
}

impl RateLimits {
    /// There is a group from now on, within another, or it has another limit. Where it is does not
    /// change.
    pub(super) fn set_group(
        &mut self,
        group: LimitGroup,
        within: Option<LimitGroup>,
        limit: Option<SharedLimiter>,
        now: u64,
    ) {
        let node = match self.groups.get(&group) {
            Some(node) => *node,
            None => {
                let parent = self.place(within);
                let Ok(node) = self.pacer.add_group(parent, None, now) else { return };
                self.groups.insert(group, node);
                node
            }
        };
        let _ = match limit {
            Some(limit) => self.pacer.set_shared_limit(node, limit, now),
            None => self.pacer.set_limit(node, None, now),
        };
    }

    /// A group limits nobody any more, and is gone if nobody is in it.
    pub(super) fn close_group(&mut self, group: LimitGroup, now: u64) {
        let Some(node) = self.groups.remove(&group) else { return };
        if self.pacer.remove(node).is_err() {
            let _ = self.pacer.set_limit(node, None, now);
        }
    }

    /// A vNIC has a limit from now on, or is in a group.
    pub(super) fn add(
        &mut self,
        vnic: VnicId,
        limit: Option<Limit>,
        group: Option<LimitGroup>,
        now: u64,
    ) -> Option<NodeId> {
        let leaf = self.pacer.add_leaf(self.place(group), limit, now).ok()?;
        self.vnics.insert(leaf, vnic);
        Some(leaf)
    }

    /// It has another, or is in another.
    pub(super) fn change(
        &mut self,
        leaf: NodeId,
        limit: Option<Limit>,
        group: Option<LimitGroup>,
        now: u64,
    ) {
        let _ = self.pacer.set_limit(leaf, limit, now);
        let _ = self.pacer.move_to(leaf, self.place(group), now);
    }

    /// And no longer.
    pub(super) fn remove(&mut self, leaf: NodeId) {
        let _ = self.pacer.remove(leaf);
        self.vnics.remove(&leaf);
    }

    /// The limit of a group.
    pub(super) fn of_group(&self, group: LimitGroup) -> Option<Limit> {
        self.pacer.limit(*self.groups.get(&group)?)
    }

    fn place(&self, group: Option<LimitGroup>) -> NodeId {
        let node = group.and_then(|group| self.groups.get(&group));
        node.copied().unwrap_or(self.pacer.root())
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
