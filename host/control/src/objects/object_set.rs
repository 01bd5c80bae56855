//! Defines tenants, policies and vNICs as an operator describes them, by their names.
//!
//! The configuration file, the state file and commands have the same keys: what this crate reads
//! from one of them it can read from the others. Unknown keys are refused.

use super::address_prefix::Prefix;
use super::container_rules::{ContainerRule, RULES_MAX};
use super::object_name_syntax::{NAME_BYTES_MAX, is_name};
use super::remote_vnic::{RemoteVnic, parse_name};
use super::rule_serialization::RuleValue;
use super::value_syntax::{
    AdoptionValue, DatapathValue, Encryption, EncryptionValue, FaultsValue, Mode, ModeValue,
    OperationRateValue, OpsValue, RateValue, SizeValue,
};
use crate::engine::CommonLimits;
use omniverb_session::tc_units::burst_for;
use omniverb_tenancy::{PeerMatch, Policy, RateLimit, RuleOrigin, RuleSet, SharedLimit, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Objects of one kind, so that a file of them is read and written in a moment.
const OBJECTS_MAX: usize = 16384;
/// Seconds after which the keys of packets change, if nothing else is said.
const KEY_LIFETIME: u32 = 3600;
/// What may be said: a second, for tests, to a day.
const KEY_LIFETIMES: std::ops::RangeInclusive<u32> = 1..=86_400;
/// Policies that one vNIC may have.
const POLICIES_MAX: usize = 16;
/// Budget: rules that one policy may have.
const POLICY_RULES_MAX: usize = 32;
/// Budget: characters of all of them, so that a policy fits into one message.
const RULES_BYTES_MAX: usize = 3072;
/// The tenant of every vNIC that names no other. It need not be described.
pub const DEFAULT_TENANT: &str = "default";

/// One owner of vNICs, which trust each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tenant {
    /// Whether its vNICs map each other's pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption: Option<AdoptionValue>,
    /// What all of its vNICs may send together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateValue>,
    /// What they may send at once above the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<SizeValue>,
    /// Operations that they may begin together per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpsValue>,
    /// By what packets of its vNICs are encrypted between hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionValue>,
    /// The path of the file that holds its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Seconds after which the keys of packets change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_lifetime: Option<u32>,
    /// The address of this host that packets of its vNICs carry: these have virtual addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlay: Option<IpAddr>,
    /// IPv6 addresses of the underlay, in which all hosts' are: needed for an IPv6 one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlay_prefix: Option<Prefix>,
    /// The virtual addresses that its vNICs may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_prefix: Option<Prefix>,
    /// Bytes of the largest packet on the underlay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

impl Tenant {
    /// Whether packets of its vNICs are encrypted between hosts.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.encryption.is_some_and(|EncryptionValue(encryption)| encryption == Encryption::Psp)
    }

    /// The time after which the keys of packets change.
    pub(crate) fn key_lifetime(&self) -> Duration {
        Duration::from_secs(self.key_lifetime.unwrap_or(KEY_LIFETIME).into())
    }

    fn problem(&self) -> Option<String> {
        if self.is_encrypted() && self.key_file.is_none() {
            return Some("encryption \"psp\" needs a key_file".into());
        }
        if self.key_file.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Some("key_file is not an absolute path".into());
        }
        let (least, most) = (KEY_LIFETIMES.start(), KEY_LIFETIMES.end());
        self.key_lifetime
            .is_some_and(|seconds| !KEY_LIFETIMES.contains(&seconds))
            .then(|| format!("key_lifetime is {least} to {most} seconds"))
    }
}

/// What holds for every vNIC that has a policy, or for one vNIC itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyObject {
    /// How traffic within the host travels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datapath: Option<DatapathValue>,
    /// The rate at which a vNIC may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateValue>,
    /// Bytes that it may send at once above the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<SizeValue>,
    /// Operations that a vNIC may begin per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpsValue>,
    /// Whether rate and operations are for each vNIC or shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeValue>,
    /// What happens to packets that arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsValue>,
    /// Which pages may be mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption: Option<AdoptionValue>,
    /// Control operations per second of each vNIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_rate: Option<OperationRateValue>,
    /// Queue pairs that each vNIC may make per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_rate: Option<OperationRateValue>,
    /// Queue pairs that each vNIC may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pairs: Option<u32>,
    /// The address of this host that packets of its vNICs carry, instead of their tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlay: Option<IpAddr>,
    /// Which operations are allowed with which peers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<RuleValue>,
}

impl PolicyObject {
    /// Whether its rate is for all of its vNICs together.
    fn is_shared(&self) -> bool {
        self.mode == Some(ModeValue(Mode::Shared))
    }
}

/// A device, whenever it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct VnicObject {
    /// The tenant that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Names of policies. A later one decides where two say something of the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// The path of a network namespace, or the name of a vNIC as `omniverb vnic list` shows it; by
    /// default the object's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<String>,
    /// Its address in the virtual network of a tenant with a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// The address of its host, if that is another one than the tenant's here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlay: Option<IpAddr>,
    /// Where its QPNs begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpn_offset: Option<u32>,
    /// How many QPNs it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpns: Option<u32>,
    /// A rule about containers has made it: what operators describe comes before it.
    #[serde(skip)]
    pub is_by_rule: bool,
    /// As in a policy; decides before all of the vNIC's policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datapath: Option<DatapathValue>,
    /// As in a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateValue>,
    /// As in a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<SizeValue>,
    /// As in a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpsValue>,
    /// As in a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsValue>,
    /// As in a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption: Option<AdoptionValue>,
}

impl VnicObject {
    /// The one that a rule gives.
    pub(crate) fn of_rule(rule: &ContainerRule) -> VnicObject {
        let (tenant, policies) = (rule.tenant.clone(), rule.policies.clone());
        VnicObject { tenant, policies, is_by_rule: true, ..VnicObject::default() }
    }

    /// The path that it is attached to, if it is attached by a path; `name` is the object's own.
    pub(crate) fn path<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        Some(self.attach.as_deref().unwrap_or(name)).filter(|text| text.starts_with('/'))
    }
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectKind {
    /// A [`Tenant`].
    Tenant,
    /// A [`PolicyObject`].
    Policy,
    /// A [`VnicObject`].
    Vnic,
    /// A [`RemoteVnic`]: from the cluster only, named by its tenant and address.
    Address,
    /// A [`ContainerRule`]: in the configuration only, named by its place among them.
    #[serde(skip)]
    Container,
}

impl ObjectKind {
    /// The word for it in files, commands and messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ObjectKind::Tenant => "tenant",
            ObjectKind::Policy => "policy",
            ObjectKind::Vnic => "vnic",
            ObjectKind::Address => "address",
            ObjectKind::Container => "container",
        }
    }
}

/// The problem of a set of objects: the object, and its fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectError {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The name of the object that is wrong.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.kind.word(), self.name, self.problem)
    }
}

/// What becomes of a network namespace that nothing describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Undescribed {
    /// It has a vNIC, in the tenant `default`.
    #[default]
    Served,
    /// It has none.
    Isolated,
}

/// Objects by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectSet {
    /// Owners, which do not reach each other.
    pub tenant: BTreeMap<String, Tenant>,
    /// What several vNICs have in common.
    pub policy: BTreeMap<String, PolicyObject>,
    /// Devices, by names that operators give.
    pub vnic: BTreeMap<String, VnicObject>,
    /// vNICs of other hosts as their agents announce them, by tenants and addresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub address: BTreeMap<String, RemoteVnic>,
    /// Which containers get which vNIC. The first that matches decides.
    #[serde(skip)]
    pub container: Vec<ContainerRule>,
    /// What becomes of others.
    #[serde(skip)]
    pub undescribed: Undescribed,
}

impl ObjectSet {
    /// These, and those of `above`, which decide where both have an object.
    #[must_use]
    pub fn overlaid(&self, above: &ObjectSet) -> ObjectSet {
        let mut all = self.clone();
        all.tenant.extend(above.tenant.clone());
        all.policy.extend(above.policy.clone());
        all.vnic.extend(above.vnic.clone());
        all.address.extend(above.address.clone());
        all
    }

    /// Checks names, numbers, and that what objects name exists.
    ///
    /// # Errors
    /// The first object that something is wrong with.
    pub fn check(&self) -> Result<(), ObjectError> {
        let error = |kind, name: &str, problem: String| {
            Err(ObjectError { kind, name: name.to_owned(), problem })
        };
        let names = [
            (ObjectKind::Tenant, self.tenant.keys().collect::<Vec<_>>()),
            (ObjectKind::Policy, self.policy.keys().collect()),
            (ObjectKind::Vnic, self.vnic.keys().collect()),
        ];
        for (kind, names) in names {
            for (number, name) in names.into_iter().enumerate() {
                if !is_name(name) {
                    let most = NAME_BYTES_MAX;
                    let text = format!("a name has 1 to {most} letters, digits and any of . _ - @");
                    return error(kind, name, text);
                }
                if number >= OBJECTS_MAX {
                    return error(kind, name, format!("there are more than {OBJECTS_MAX}"));
                }
            }
        }
        for (name, tenant) in &self.tenant {
            if let Err(problem) = limit(tenant.rate, tenant.burst) {
                return error(ObjectKind::Tenant, name, problem.into());
            }
            if let Some(problem) = tenant.problem() {
                return error(ObjectKind::Tenant, name, problem);
            }
        }
        for (name, policy) in &self.policy {
            if let Err(problem) = limit(policy.rate, policy.burst) {
                return error(ObjectKind::Policy, name, problem.into());
            }
            if let Some(problem) = self.problem_of_rules(&policy.rule) {
                return error(ObjectKind::Policy, name, problem);
            }
        }
        for (name, tenant) in &self.tenant {
            if let Some(problem) = ObjectSet::problem_of_tenant(name, tenant) {
                return error(ObjectKind::Tenant, name, problem);
            }
        }
        if let Some((name, problem)) = self.problem_of_policy_addresses() {
            return error(ObjectKind::Policy, name, problem);
        }
        for (number, (name, remote)) in self.address.iter().enumerate() {
            let many = || format!("there are more than {OBJECTS_MAX}");
            let problem = match parse_name(name) {
                Some(_) => remote.problem(),
                None => Some("a name is a tenant, a slash and an IPv4 address".into()),
            };
            if let Some(problem) = problem.or_else(|| (number >= OBJECTS_MAX).then(many)) {
                return error(ObjectKind::Address, name, problem);
            }
        }
        let mut attached = BTreeMap::new();
        for (name, vnic) in &self.vnic {
            let problem = self.problem_of(vnic);
            if let Some(problem) = problem {
                return error(ObjectKind::Vnic, name, problem);
            }
            if let Some(other) = attached.insert(vnic.attach.as_ref().unwrap_or(name), name) {
                let text = format!("it is attached where vnic {other:?} is attached");
                return error(ObjectKind::Vnic, name, text);
            }
        }
        for (number, rule) in (1..).zip(&self.container) {
            let problem = rule
                .problem()
                .or_else(|| self.problem_of_named(&VnicObject::of_rule(rule)))
                .or_else(|| self.problem_of_rule(rule));
            let many = || format!("there are more than {RULES_MAX}");
            if let Some(problem) = problem.or_else(|| (number > RULES_MAX).then(many)) {
                return error(ObjectKind::Container, &number.to_string(), problem);
            }
        }
        Ok(())
    }

    fn problem_of_rules(&self, rules: &[RuleValue]) -> Option<String> {
        let bytes: usize = rules.iter().map(|rule| rule.0.to_string().len()).sum();
        if rules.len() > POLICY_RULES_MAX || bytes > RULES_BYTES_MAX {
            return Some(format!(
                "a policy has at most {POLICY_RULES_MAX} rules, of {RULES_BYTES_MAX} characters in \
                 all: use another policy for the rest"
            ));
        }
        rules.iter().find_map(|rule| match &rule.0.peer {
            PeerMatch::Policy(name) if !self.policy.contains_key(name) => {
                Some(format!("there is no policy {name:?}, which a rule names"))
            }
            _ => None,
        })
    }

    /// The rules of all policies that a vNIC has.
    pub(crate) fn rules(&self, vnic: &VnicObject) -> RuleSet {
        let named = vnic.policies.iter().filter_map(|name| Some((name, self.policy.get(name)?)));
        RuleSet::of_policies(named.flat_map(|(name, policy)| {
            let name: Arc<str> = name.as_str().into();
            (1..).zip(&policy.rule).map(move |(number, rule)| {
                (rule.0.clone(), RuleOrigin { policy: name.clone(), number })
            })
        }))
    }

    /// The problem with the names of a tenant and of policies, and with the place in a virtual
    /// network, if there is one.
    fn problem_of_names(&self, vnic: &VnicObject) -> Option<String> {
        // First what the place depends on. One of a container that cannot have its place has none.
        let placed = || if vnic.is_by_rule { None } else { self.problem_of_place(vnic) };
        self.problem_of_named(vnic).or_else(placed)
    }

    /// The problem with the names of a tenant and of policies, if there is one.
    fn problem_of_named(&self, vnic: &VnicObject) -> Option<String> {
        if let Some(tenant) = &vnic.tenant
            && tenant != DEFAULT_TENANT
            && !self.tenant.contains_key(tenant)
        {
            return Some(format!("there is no tenant {tenant:?}"));
        }
        if vnic.policies.len() > POLICIES_MAX {
            return Some(format!("a vNIC has at most {POLICIES_MAX} policies"));
        }
        let missing = vnic.policies.iter().find(|name| !self.policy.contains_key(*name));
        missing.map(|missing| format!("there is no policy {missing:?}"))
    }

    fn problem_of(&self, vnic: &VnicObject) -> Option<String> {
        if let Err(problem) = limit(vnic.rate, vnic.burst) {
            return Some(problem.into());
        }
        if let Some(problem) = self.problem_of_names(vnic) {
            return Some(problem);
        }
        match &vnic.attach {
            // Which the daemon may not look at, and which end with a process.
            Some(place) if place.starts_with("/proc/") => {
                Some(format!("{place:?} is a path in /proc: use one as /run/netns/NAME"))
            }
            Some(place) if !place.starts_with('/') && !is_name(place) => {
                Some(format!("{place:?} is neither an absolute path nor the name of a vNIC"))
            }
            _ => None,
        }
    }

    /// What holds for a vNIC. `general`: where no object says anything; `number` gives the number
    /// of a tenant.
    pub(crate) fn policy(
        &self,
        vnic: &VnicObject,
        general: Policy,
        number: impl FnOnce(&str) -> TenantId,
    ) -> Policy {
        let tenant = vnic.tenant.as_deref().unwrap_or(DEFAULT_TENANT);
        let mut policy = Policy { tenant: number(tenant), ..general };
        if let Some(adoption) = self.tenant.get(tenant).and_then(|tenant| tenant.adoption) {
            policy.adoption = adoption.0;
        }
        let own = PolicyObject {
            datapath: vnic.datapath,
            rate: vnic.rate,
            burst: vnic.burst,
            ops: vnic.ops,
            faults: vnic.faults,
            adoption: vnic.adoption,
            ..PolicyObject::default()
        };
        let named = vnic.policies.iter().filter_map(|name| self.policy.get(name));
        for object in named.chain([&own]) {
            if let Some(DatapathValue(datapath)) = object.datapath {
                policy.datapath = datapath;
            }
            if let Some(FaultsValue(faults)) = object.faults {
                policy.faults = faults;
            }
            if let Some(AdoptionValue(adoption)) = object.adoption {
                policy.adoption = adoption;
            }
            let per_second = |rate: OperationRateValue| NonZeroU32::new(rate.0);
            if let Some(rate) = object.control_rate {
                policy.control.operations = per_second(rate);
            }
            if let Some(rate) = object.qp_rate {
                policy.control.queue_pairs_per_second = per_second(rate);
            }
            if object.queue_pairs.is_some() {
                policy.control.queue_pairs = object.queue_pairs;
            }
            if object.rate.is_some() && !object.is_shared() {
                policy.limit = limit(object.rate, object.burst).unwrap_or(policy.limit);
            }
            if let Some(OpsValue(ops)) = object.ops.filter(|_| !object.is_shared()) {
                policy.operations = NonZeroU32::new(ops);
            }
        }
        if self.shared_rate(vnic).is_any() || self.shared_ops(vnic).is_any() {
            policy.shared_limit = SharedLimit::Exists;
        }
        policy
    }

    /// The rates that a vNIC has in common with others.
    pub(crate) fn shared_rate(&self, vnic: &VnicObject) -> CommonLimits<RateLimit> {
        self.shared(
            vnic,
            |tenant| limit(tenant.rate, tenant.burst).ok()?,
            |policy| policy.rate.map(|_| limit(policy.rate, policy.burst).ok()?),
        )
    }

    /// The operations per second that a vNIC has in common with others.
    pub(crate) fn shared_ops(&self, vnic: &VnicObject) -> CommonLimits<NonZeroU32> {
        let number = |ops: OpsValue| NonZeroU32::new(ops.0);
        self.shared(vnic, |tenant| number(tenant.ops?), |policy| policy.ops.map(number))
    }

    /// What a vNIC has in common with others: with those of its tenant, and with those of the last
    /// of its policies that says something of it for all of its vNICs together.
    fn shared<T>(
        &self,
        vnic: &VnicObject,
        of_tenant: impl FnOnce(&Tenant) -> Option<T>,
        of_policy: impl Fn(&PolicyObject) -> Option<Option<T>>,
    ) -> CommonLimits<T> {
        let tenant = self.tenant.get(vnic.tenant.as_deref().unwrap_or(DEFAULT_TENANT));
        let named = vnic.policies.iter().filter_map(|name| Some((name, self.policy.get(name)?)));
        let mut shared = named.rev().filter(|(_, object)| object.is_shared());
        let last = shared.find_map(|(name, object)| Some((name, of_policy(object)?)));
        CommonLimits {
            of_tenant: tenant.and_then(of_tenant),
            of_policy: last.and_then(|(name, limit)| Some((name.clone(), limit?))),
        }
    }
}

/// The limit that a rate and a burst are.
fn limit(
    rate: Option<RateValue>,
    burst: Option<SizeValue>,
) -> Result<Option<RateLimit>, &'static str> {
    match (rate.filter(|rate| rate.0 != 0), burst) {
        (None, Some(_)) => Err("a burst needs a rate"),
        (None, None) => Ok(None),
        (Some(RateValue(bits_per_second)), burst) => {
            let burst_bytes = burst.map_or_else(|| burst_for(bits_per_second), |burst| burst.0);
            let limit = RateLimit { bits_per_second, burst_bytes };
            match limit.is_sensible() {
                true => Ok(Some(limit)),
                false => Err("rates are 8kbit to 1000tbit, bursts 1500 to 1g"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
