//! Keeps the groups of vNICs that share a limit, and returns the engine's commands for them.
//!
//! A tenant is a group. A policy for all of its vNICs together is a group within each tenant that
//! has such vNICs: all these groups share one limit. A group is made when the first vNIC needs it.
//! It is told to the engine before the vNICs that are in it, and closed when none of them is left.
//! Limits of bytes and of operations have groups of their own.

use omniverb_engine::{Command, Limit, LimitGroup, LimitUnit, SharedLimiter};
use omniverb_tenancy::{RateLimit, TenantId};
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// Limits that a vNIC has in common with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedLimits {
    pub(crate) tenant: TenantId,
    /// What they may send together.
    pub(crate) rate: CommonLimits<RateLimit>,
    /// How many operations they may begin together per second.
    pub(crate) ops: CommonLimits<NonZeroU32>,
}

/// Limits of one unit that a vNIC has in common with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommonLimits<T> {
    /// That of all vNICs of the tenant.
    pub(crate) of_tenant: Option<T>,
    /// The policy that is for all of its vNICs together, and its limit.
    pub(crate) of_policy: Option<(String, T)>,
}

impl<T> Default for CommonLimits<T> {
    fn default() -> CommonLimits<T> {
        CommonLimits { of_tenant: None, of_policy: None }
    }
}

impl<T> CommonLimits<T> {
    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.of_tenant.is_some() || self.of_policy.is_some()
    }

    /// In other words.
    pub(super) fn map<U>(self, of: impl Fn(T) -> U) -> CommonLimits<U> {
        let CommonLimits { of_tenant, of_policy } = self;
        let of_policy = of_policy.map(|(name, limit)| (name, of(limit)));
        CommonLimits { of_tenant: of_tenant.map(of), of_policy }
    }

    /// These and its own, for people: `8mbit of its own, 1gbit of tenant blue`.
    pub(crate) fn show(&self, own: Option<T>, tenant: &str, show: impl Fn(&T) -> String) -> String {
        let of_policy = self.of_policy.as_ref();
        let own = own.map(|own| format!("{} of its own", show(&own)));
        let of_policy = of_policy.map(|(name, limit)| format!("{} of policy {name}", show(limit)));
        let of_tenant = self.of_tenant.as_ref();
        let of_tenant = of_tenant.map(|limit| format!("{} of tenant {tenant}", show(limit)));
        own.into_iter().chain(of_policy).chain(of_tenant).collect::<Vec<_>>().join(", ")
    }

    /// The group that a vNIC of this tenant is in, if it is in any.
    fn group(&self, tenant: TenantId) -> Option<Key> {
        let policy = self.of_policy.as_ref().map(|(name, _)| name.clone());
        self.is_any().then_some(Key { tenant, policy })
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
    limit: Option<Limit>,
    /// vNICs, and groups, in it.
    members: usize,
}

/// The limits of a served vNIC: its own, and those of its groups. If any of them changes the engine
/// gets the vNIC's limits again: notices of delay are part of the limit.
type Placed = (Option<Limit>, (TenantId, CommonLimits<Limit>));

/// Groups by their tenants and policies, and which vNIC is in which: those of one unit.
#[derive(Debug)]
pub(super) struct LimitGroups {
    unit: LimitUnit,
    groups: BTreeMap<Key, Group>,
    /// Limits by the policy, or the tenant, that they are of.
    limiters: BTreeMap<Key, (Limit, SharedLimiter)>,
    vnics: BTreeMap<VnicId, Placed>,
    last: u64,
}

/// A rate as the engine has it.
pub(super) fn of_rate(limit: RateLimit) -> Limit {
    let RateLimit { bits_per_second, burst_bytes } = limit;
    Limit { bits_per_second, burst_bytes }
}

/// A limit of operations as the engine has it.
pub(super) fn of_ops(per_second: NonZeroU32) -> Limit {
    Limit::of_operations(per_second.get())
}

impl LimitGroups {
    /// No groups yet; their limits count this.
    pub(super) fn new(unit: LimitUnit) -> LimitGroups {
        let (groups, limiters, vnics) = Default::default();
        LimitGroups { unit, groups, limiters, vnics, last: 0 }
    }

    /// The commands to the engine, in this order, that make these limits hold for a vNIC.
    pub(super) fn limit(
        &mut self,
        vnic: VnicId,
        limit: Option<Limit>,
        (tenant, shared): (TenantId, CommonLimits<Limit>),
        now: u64,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        let place = shared.group(tenant);
        if let Some(place) = &place {
            let outer = Key { tenant: place.tenant, policy: None };
            self.set(&outer, shared.of_tenant, None, now, &mut commands);
            if let Some((_, of_policy)) = &shared.of_policy {
                self.set(place, Some(*of_policy), Some(&outer), now, &mut commands);
            }
        }
        let placed = (limit, (tenant, shared));
        if self.vnics.get(&vnic) == Some(&placed) {
            return commands;
        }
        let group = place.and_then(|key| self.groups.get_mut(&key)).map(|group| {
            group.members += 1;
            group.number
        });
        self.leave(vnic);
        self.vnics.insert(vnic, placed);
        commands.push(Command::SetLimit { unit: self.unit, vnic, limit, group });
        commands
    }

    /// Makes a group, or gives it another limit.
    fn set(
        &mut self,
        key: &Key,
        limit: Option<Limit>,
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
        let (unit, group) = (self.unit, group.number);
        commands.push(Command::SetGroup { unit, group, within, limit: shared });
    }

    /// The limiter that all groups of a policy share, or one of a tenant.
    fn limiter(&mut self, key: &Key, limit: Limit, now: u64) -> SharedLimiter {
        let new = || (limit, SharedLimiter::new(limit, now));
        let (current, limiter) = self.limiters.entry(key.of_limiter()).or_insert_with(new);
        if *current != limit {
            limiter.change(limit, now);
            *current = limit;
        }
        limiter.clone()
    }

    /// A vNIC is not served any more.
    pub(super) fn leave(&mut self, vnic: VnicId) {
        if let Some(key) =
            self.vnics.remove(&vnic).and_then(|(_, (tenant, shared))| shared.group(tenant))
        {
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
                commands.push(Command::CloseGroup { unit: self.unit, group: group.number });
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
