//! Keeps the groups of vNICs that share a limit, and returns the engine's commands for them.
//!
//! A tenant is a group. A policy for all of its vNICs together is a group within each tenant that
//! has such vNICs: all these groups share one limit. A group is made when the first vNIC needs it.
//! It is told to the engine before the vNICs that are in it, and closed when none of them is left.

use omniverb_engine::{Command, Limit, LimitGroup, SharedLimiter};
use omniverb_tenancy::{RateLimit, TenantId};
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};

/// Limits that a vNIC has in common with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedLimits {
    pub(crate) tenant: TenantId,
    /// That of all vNICs of the tenant.
    pub(crate) of_tenant: Option<RateLimit>,
    /// The policy that is for all of its vNICs together, and its limit.
    pub(crate) of_policy: Option<(String, RateLimit)>,
}

impl SharedLimits {
    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.of_tenant.is_some() || self.of_policy.is_some()
    }

    /// The group that the vNIC is in, if it is in any.
    fn group(&self) -> Option<Key> {
        let policy = self.of_policy.as_ref().map(|(name, _)| name.clone());
        self.is_any().then_some(Key { tenant: self.tenant, policy })
    }
}

/// A tenant, or a policy within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tenant: TenantId,
    policy: Option<String>,
}

impl Key {
    /// By what its limiter is known: that of a policy is one for all tenants.
    fn of_limiter(&self) -> Key {
        let tenant = if self.policy.is_some() { TenantId::default() } else { self.tenant };
        Key { tenant, policy: self.policy.clone() }
    }
}

#[derive(Debug)]
struct Group {
    number: LimitGroup,
    /// The limit that the engine was told last.
    limit: Option<RateLimit>,
    /// vNICs, and groups, in it.
    members: usize,
}

/// The limits of a served vNIC: its own, and those of its groups. If any of them changes the engine
/// gets the vNIC's limits again: notices of delay are part of the limit.
type Placed = (Option<RateLimit>, SharedLimits);

/// Groups by their tenants and policies, and which vNIC is in which.
#[derive(Debug, Default)]
pub(super) struct LimitGroups {
    groups: BTreeMap<Key, Group>,
    /// Limits by the policy, or the tenant, that they are of.
    limiters: BTreeMap<Key, (RateLimit, SharedLimiter)>,
    vnics: BTreeMap<VnicId, Placed>,
    last: u64,
}

fn in_words_of_engine(limit: RateLimit) -> Limit {
    let RateLimit { bits_per_second, burst_bytes } = limit;
    Limit { bits_per_second, burst_bytes }
}

impl LimitGroups {
    /// The commands to the engine, in this order, that make these limits hold for a vNIC.
    pub(super) fn limit(
        &mut self,
        vnic: VnicId,
        limit: Option<RateLimit>,
        shared: &SharedLimits,
        now: u64,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        let place = shared.group();
        if let Some(place) = &place {
            let outer = Key { tenant: place.tenant, policy: None };
            self.set(&outer, shared.of_tenant, None, now, &mut commands);
            if let Some((_, of_policy)) = &shared.of_policy {
                self.set(place, Some(*of_policy), Some(&outer), now, &mut commands);
            }
        }
        let placed = (limit, shared.clone());
        if self.vnics.get(&vnic) == Some(&placed) {
            return commands;
        }
        let group = place.and_then(|key| self.groups.get_mut(&key)).map(|group| {
            group.members += 1;
            group.number
        });
        self.leave(vnic);
        self.vnics.insert(vnic, placed);
        let limit = limit.map(in_words_of_engine);
        commands.push(Command::SetLimit { vnic, limit, group });
        commands
    }

    /// Makes a group, or gives it another limit.
    fn set(
        &mut self,
        key: &Key,
        limit: Option<RateLimit>,
        within: Option<&Key>,
        now: u64,
        commands: &mut Vec<Command>,
    ) {
        let known = self.groups.get(key);
        if known.is_some_and(|group| group.limit == limit) {
            return;
        }
        let is_new = known.is_none();
        let within = within.and_then(|key| self.groups.get_mut(key)).map(|outer| {
            outer.members += usize::from(is_new);
            outer.number
        });
        let shared = limit.map(|limit| self.limiter(key, limit, now));
        self.last += u64::from(is_new);
        let new = Group { number: LimitGroup(self.last), limit, members: 0 };
        let group = self.groups.entry(key.clone()).or_insert(new);
        group.limit = limit;
        commands.push(Command::SetGroup { group: group.number, within, limit: shared });
    }

    /// The limiter that all groups of a policy share, or one of a tenant.
    fn limiter(&mut self, key: &Key, limit: RateLimit, now: u64) -> SharedLimiter {
        let new = || (limit, SharedLimiter::new(in_words_of_engine(limit), now));
        let (current, limiter) = self.limiters.entry(key.of_limiter()).or_insert_with(new);
        if *current != limit {
            limiter.change(in_words_of_engine(limit), now);
            *current = limit;
        }
        limiter.clone()
    }

    /// A vNIC is not served any more.
    pub(super) fn leave(&mut self, vnic: VnicId) {
        if let Some(key) = self.vnics.remove(&vnic).and_then(|(_, shared)| shared.group()) {
            self.lose_member(&key);
        }
    }

    fn lose_member(&mut self, key: &Key) {
        if let Some(group) = self.groups.get_mut(key) {
            group.members = group.members.saturating_sub(1);
        }
    }

    /// Closes groups without members, inner ones first. Returns the commands to the engine.
    pub(super) fn close_empty(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        for is_inner in [true, false] {
            let is_empty = |key: &Key, group: &mut Group| {
                group.members == 0 && key.policy.is_some() == is_inner
            };
            let gone: Vec<_> = self.groups.extract_if(.., is_empty).collect();
            for (key, group) in gone {
                commands.push(Command::CloseGroup { group: group.number });
                if is_inner {
                    self.lose_member(&Key { tenant: key.tenant, policy: None });
                }
            }
        }
        let used: BTreeSet<Key> = self.groups.keys().map(Key::of_limiter).collect();
        self.limiters.retain(|key, _| used.contains(key));
        commands
    }
}

#[cfg(test)]
mod tests;
