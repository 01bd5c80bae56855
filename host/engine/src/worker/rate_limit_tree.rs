//! Keeps the rate limits of a packet thread's vNICs, and says which of them sends next.
//!
//! The tree of limits is the pacer's (`host/pacer`). A vNIC that has a limit, or is in a group, is
//! a leaf of it. Groups are in the trees of all threads, and their limits are shared by these. What
//! the links of a vNIC wait for is kept by its [`super::links_held_by_rate_limit::Gate`].
//!
//! A group that could not be made, or is not known, is an error for every vNIC that is to be in it:
//! none of them is put elsewhere, where less limits it.

use crate::command::LimitGroup;
use omniverb_pacer::{Limit, NodeId, Pacer, Refused, SharedLimiter};
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
    /// Groups without a name any more, which limit those that are still in them.
    closed: Vec<NodeId>,
}

impl Default for RateLimits {
    fn default() -> RateLimits {
        let pacer = Pacer::new(PAUSE);
        let (vnics, groups) = (HashMap::new(), HashMap::new());
        RateLimits { pacer, vnics, groups, closed: Vec::new() }
    }
}

impl RateLimits {
    /// There is a group from now on, within another, or it has another limit. Where it is does not
    /// change. If that cannot be, there is no such group.
    pub(super) fn set_group(
        &mut self,
        group: LimitGroup,
        within: Option<LimitGroup>,
        limit: Option<SharedLimiter>,
        now: u64,
    ) {
        let known = self.groups.get(&group).copied().ok_or(Refused::NoNode);
        let made = known.or_else(|_| self.pacer.add_group(self.place(within)?, None, now));
        let Ok(node) = made else { return };
        let set = match limit {
            Some(limit) => self.pacer.set_shared_limit(node, limit, now),
            None => self.pacer.set_limit(node, None, now),
        };
        match set {
            Ok(()) => drop(self.groups.insert(group, node)),
            Err(_) => drop(self.groups.remove(&group)),
        }
    }

    /// A group is not used any more: it is gone when the last that is in it has left, and limits
    /// what is in it until then.
    pub(super) fn close_group(&mut self, group: LimitGroup) {
        self.closed.extend(self.groups.remove(&group));
        self.remove_closed();
    }

    /// Removes closed groups that are empty: inner ones first, so that outer ones are, too.
    fn remove_closed(&mut self) {
        let mut before = usize::MAX;
        while self.closed.len() < before {
            before = self.closed.len();
            let pacer = &mut self.pacer;
            self.closed.retain(|node| pacer.remove(*node) == Err(Refused::InUse));
        }
    }

    /// A vNIC has a limit from now on, or is in a group.
    pub(super) fn add(
        &mut self,
        vnic: VnicId,
        limit: Option<Limit>,
        group: Option<LimitGroup>,
        now: u64,
    ) -> Result<NodeId, Refused> {
        let leaf = self.pacer.add_leaf(self.place(group)?, limit, now)?;
        self.vnics.insert(leaf, vnic);
        Ok(leaf)
    }

    /// It has another, or is in another. If that cannot be, the vNIC is as it was.
    pub(super) fn change(
        &mut self,
        leaf: NodeId,
        limit: Option<Limit>,
        group: Option<LimitGroup>,
        now: u64,
    ) -> Result<(), Refused> {
        self.pacer.move_to(leaf, self.place(group)?, now)?;
        self.pacer.set_limit(leaf, limit, now)?;
        self.remove_closed();
        Ok(())
    }

    /// And no longer.
    pub(super) fn remove(&mut self, leaf: NodeId) {
        let _ = self.pacer.remove(leaf);
        self.vnics.remove(&leaf);
        self.remove_closed();
    }

    /// The limit of a group.
    pub(super) fn of_group(&self, group: LimitGroup) -> Option<Limit> {
        self.pacer.limit(*self.groups.get(&group)?)
    }

    fn place(&self, group: Option<LimitGroup>) -> Result<NodeId, Refused> {
        let Some(group) = group else { return Ok(self.pacer.root()) };
        self.groups.get(&group).copied().ok_or(Refused::NoNode)
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

    /// Whether there is no vNIC nor group.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.vnics.is_empty() && self.groups.is_empty() && self.closed.is_empty()
    }
}
