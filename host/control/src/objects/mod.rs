//! Keeps the tenants, policies and vNICs that operators describe (`object_set.rs`).
//!
//! Their sources are the configuration, an agent that brings a cluster's, and commands
//! (`apply_object_changes.rs`). The last two are kept in files (`state_file.rs`), and a later
//! source decides.
//!
//! In: sets of objects, and the vNICs that there are. Out: what holds for each vNIC. A vNIC that no
//! object is attached to belongs to the tenant `default`. One that was given an object keeps it
//! until the object is changed, whatever becomes of the path that the object names.
//!
//! A vNIC of a container that nothing is attached to gets an object by rules
//! (`container_rules.rs`, `containers.rs`).

mod address_prefix;
mod apply_object_changes;
mod cluster_tenant_key_files;
mod container_addresses;
mod container_objects;
mod container_rules;
mod containers;
mod object_and_network_rows;
mod object_name_syntax;
mod object_set;
mod policy_underlay_addresses;
mod remote_vnic;
mod rule_serialization;
mod rule_virtual_address;
mod state_file;
mod tenant_key_file_reader;
mod underlay_network;
mod value_syntax;
mod virtual_network_placement;
mod vnic_qpn_ranges;
mod vnics_and_their_objects;

use crate::engine::SharedLimits;
pub use address_prefix::Prefix;
use apply_object_changes::{Changes, Source, Surroundings};
use cluster_tenant_key_files::{BroughtKeys, KeyFiles};
pub use container_rules::ContainerRule;
pub(crate) use container_rules::{Container, Interface};
use containers::Containers;
pub(crate) use object_set::ObjectSet as Set;
pub use object_set::{
    DEFAULT_TENANT, ObjectError, ObjectKind, ObjectSet, PolicyObject, Tenant, Undescribed,
    VnicObject,
};
use omniverb_engine::TenantKey;
use omniverb_tenancy::{
    Policy, RuleSet, TenantId, TenantNetwork, VnicId, VnicNames, VnicPlace, VnicRules,
};
pub use remote_vnic::RemoteVnic;
pub use rule_serialization::RuleValue;
pub use rule_virtual_address::VirtualAddress;
use rustix::io::Errno;
use state_file::StateFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tenant_key_file_reader::TenantKeys;
pub use value_syntax::{
    AdoptionValue, DatapathValue, Encryption, EncryptionValue, FaultsValue, Mode, ModeValue,
    OperationRateValue, OpsValue, RateValue, SizeValue,
};
use virtual_network_placement::VirtualPlaces;
use vnics_and_their_objects::GivenObjects;

/// Budget: time between two looks at all paths because of new vNICs, in nanoseconds.
const LOOKS_APART: u64 = 1_000_000_000;
/// The tenant of a vNIC that may be of any, as it is shown: it is no name.
const UNKNOWN_TENANT: &str = "?";
/// Numbers of tenants with this bit are of one vNIC each, and of no object.
const ALONE: u32 = 1 << 31;

/// A vNIC as objects find it.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    /// Its name for people.
    pub(crate) name: &'a str,
    /// Another name that the configuration may have for it.
    pub(crate) alias: Option<String>,
    /// Device and inode of its network namespace.
    pub(crate) inode: Option<[u64; 2]>,
}

/// All objects, and which vNIC has which.
#[derive(Debug)]
pub(crate) struct Objects {
    /// What holds where no object says anything.
    general: Policy,
    configured: Set,
    /// The objects of the cluster, brought by an agent.
    cluster: Set,
    /// What was set at run time.
    set: Set,
    /// All of them, and what follows from rules: what was set decides, then the cluster's.
    all: Set,
    /// vNICs of containers that rules have described, or were asked about.
    containers: Containers,
    state: StateFile,
    cluster_state: StateFile,
    /// Keys of the cluster's tenants.
    key_files: KeyFiles,
    /// Objects that vNICs were given.
    given: GivenObjects,
    /// Paths that cannot be looked at, and that the log has named.
    unseen: BTreeSet<String>,
    /// When that was looked for last because a vNIC had come.
    looked_at: Option<u64>,
    /// Keys of tenants.
    keys: TenantKeys,
    /// Why keys could not be read when the daemon started.
    keys_problem: Option<String>,
    /// Numbers of tenants, which are never used again.
    numbers: BTreeMap<String, TenantId>,
    /// Rules of vNICs, by their policies.
    rules: BTreeMap<Vec<String>, Arc<RuleSet>>,
    /// Where vNICs of tenants with keys are.
    places: VirtualPlaces,
    /// Why they had none when the daemon started.
    unplaced: Option<String>,
    /// Places have changed with a container, and the tables do not know yet.
    has_new_places: bool,
    /// Counts changes, so that an agent need not read again what has not changed.
    revision: u64,
}

impl Objects {
    /// Those of the configuration, and those of the state files: of commands in the one of this
    /// path, of the cluster in another one beside it.
    pub(crate) fn new(general: Policy, configured: Set, state: Option<PathBuf>) -> Objects {
        let key_files = KeyFiles::beside(state.as_deref());
        let beside = state.as_ref().map(|path| path.with_added_extension("cluster"));
        let (cluster_state, cluster) = StateFile::open(beside, &configured);
        let below = configured.overlaid(&cluster);
        let (state, set) = StateFile::open(state, &below);
        let all = below.overlaid(&set);
        // A damaged file may name any.
        if state.problem().is_none() && cluster_state.problem().is_none() {
            key_files.delete_unused([&cluster, &all]);
        }
        let (given, numbers) = (GivenObjects::default(), BTreeMap::new());
        let (unseen, rules) = (BTreeSet::new(), BTreeMap::new());
        let containers = Containers::default();
        // Without a key nothing passes between hosts.
        let (keys, keys_problem) = match TenantKeys::default().read_again(&all) {
            Ok(keys) => (keys, None),
            Err(problem) => (TenantKeys::default(), Some(problem)),
        };
        let (places, unplaced) = match VirtualPlaces::of(&all, &VirtualPlaces::default()) {
            Ok(places) => (places, None),
            Err(problem) => (VirtualPlaces::default(), Some(problem)),
        };
        let cluster_state = cluster_state.rebuilt();
        Objects {
            general,
            configured,
            cluster,
            set,
            all,
            containers,
            state,
            cluster_state,
            key_files,
            given,
            unseen,
            looked_at: None,
            keys,
            keys_problem,
            numbers,
            rules,
            places,
            unplaced,
            has_new_places: false,
            revision: 1,
        }
    }

    /// What holds for a vNIC that no object is attached to.
    pub(crate) fn general(&self) -> Policy {
        let object = VnicObject::default();
        let policy = self.all.policy(&object, self.general, |_| TenantId::default());
        self.with_encryption(DEFAULT_TENANT, policy)
    }

    fn with_encryption(&self, tenant: &str, policy: Policy) -> Policy {
        let found = self.all.tenant.get(tenant).filter(|tenant| tenant.is_encrypted());
        Policy { encryption: found.map(|_| self.keys.generation(tenant)), ..policy }
    }

    /// Why keys of tenants could not be read when the daemon started.
    pub(crate) fn keys_problem(&self) -> Option<&str> {
        self.keys_problem.as_deref()
    }

    /// The keys of a vNIC's tenant, the newest first, and the lifetime of those of packets.
    pub(crate) fn keys_of(&self, vnic: VnicId) -> (Vec<TenantKey>, Duration) {
        let name = self.tenant_of(vnic);
        let tenant = self.all.tenant.get(name).cloned().unwrap_or_default();
        (self.keys.keys(name), tenant.key_lifetime())
    }

    /// The problems of the state files.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.cluster_state.problem().into_iter().chain(self.state.problem())
    }

    /// Whether what was set, or what a cluster has, is unknown: then any vNIC that nothing else
    /// describes may be of any tenant.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.problems().next().is_some()
    }

    /// What commands stand above.
    fn below(&self) -> Set {
        self.base().overlaid(&self.cluster)
    }

    /// Why no vNIC had a place in a virtual network when the daemon started.
    pub(crate) fn unplaced(&self) -> Option<&str> {
        self.unplaced.as_deref()
    }

    /// The virtual networks of tenants with keys. `features`: what engines can do.
    pub(crate) fn networks(&mut self, features: u32) -> BTreeMap<TenantId, TenantNetwork> {
        let networks = self.places.networks(&self.all, &self.keys, features).into_iter();
        networks.map(|(name, network)| (number(&mut self.numbers, &name), network)).collect()
    }

    /// The place of a vNIC that has an object of a tenant with a key.
    pub(crate) fn place(&mut self, vnic: VnicId) -> Option<(TenantId, VnicPlace)> {
        let (tenant, place) = self.place_in_network(self.given.get(vnic)?)?;
        let (tenant, place) = (tenant.clone(), *place);
        Some((number(&mut self.numbers, &tenant), place))
    }

    /// The place that an object has in the virtual network of the tenant that it names.
    fn place_in_network(&self, object: &str) -> Option<&(String, VnicPlace)> {
        let network = self.all.network_name(self.all.vnic.get(object)?)?;
        self.places.place(object).filter(|(tenant, _)| tenant == network)
    }

    /// The virtual network that a vNIC belongs to, by the name of its tenant.
    pub(crate) fn network_of(&self, vnic: VnicId) -> Option<&str> {
        self.all.network_name(self.all.vnic.get(self.given.get(vnic)?)?)
    }

    /// Whether a vNIC belongs to a virtual network whose tenant's object says that it is not
    /// encrypted.
    pub(crate) fn is_network_plain(&self, vnic: VnicId) -> bool {
        let tenant = self.network_of(vnic).and_then(|name| self.all.tenant.get(name));
        tenant.is_some_and(|tenant| !tenant.is_encrypted())
    }

    /// Whether a vNIC belongs to a virtual network and has no place in it. It has no other network
    /// instead, so it has no device.
    pub(crate) fn lacks_place(&self, vnic: VnicId) -> bool {
        let is_placed = |object: &str| self.place_in_network(object).is_some();
        self.network_of(vnic).is_some() && !self.given.get(vnic).is_some_and(is_placed)
    }

    /// Names by which the configuration knows vNICs.
    pub(crate) fn vnic_names(&self) -> impl Iterator<Item = &String> {
        self.all.vnic.iter().map(|(name, vnic)| vnic.attach.as_ref().unwrap_or(name))
    }

    /// Takes over another configuration.
    ///
    /// # Errors
    /// Why not. Nothing has changed then.
    pub(crate) fn configure(&mut self, general: Policy, configured: Set) -> Result<(), String> {
        let all = configured.overlaid(&self.cluster).overlaid(&self.set);
        all.check().map_err(|error| format!("with what was set at run time, {error}"))?;
        let keys = self.keys.read_again(&all)?;
        VirtualPlaces::of(&all, &self.places)?;
        self.state.look_again();
        self.cluster_state.look_again();
        self.keys = keys;
        self.general = general;
        self.configured = configured;
        self.decide_anew();
        self.replace_unchecked(self.below().overlaid(&self.set));
        Ok(())
    }

    /// The objects of the configuration, and those that follow from rules.
    fn base(&self) -> Set {
        let mut base = self.configured.clone();
        for (name, object) in self.containers.objects() {
            base.vnic.entry(name.clone()).or_insert_with(|| object.clone());
        }
        base
    }

    /// Makes the changes that a text describes.
    ///
    /// # Errors
    /// Why not. Nothing has changed then.
    pub(crate) fn change(&mut self, text: &str) -> Result<(), String> {
        let mut changes: Changes = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let (base, nothing) = (self.base(), Set::default());
        match changes.source {
            Source::Command => {
                let below = self.below();
                let around = Surroundings { configured: &base, below: &below, above: &nothing };
                self.keep(changes.applied(around, &self.set)?)
            }
            Source::Cluster => {
                let brought = self.key_files.take(&mut changes.changes)?;
                let is_of_tenants =
                    changes.changes.iter().any(|change| change.kind == ObjectKind::Tenant);
                let around = Surroundings { configured: &base, below: &base, above: &self.set };
                let cluster = changes.applied(around, &self.cluster)?;
                self.keep_cluster(cluster, is_of_tenants.then_some(&brought))
            }
        }
    }

    /// Sets what holds for a vNIC itself.
    pub(crate) fn set_vnic(
        &mut self,
        vnic: VnicId,
        name: &str,
        change: impl FnOnce(&mut VnicObject),
    ) -> Result<(), String> {
        let name = self.given.get(vnic).unwrap_or(name).to_owned();
        let mut set = self.set.clone();
        let mut object = self.all.vnic.get(&name).cloned().unwrap_or_default();
        change(&mut object);
        set.vnic.insert(name.clone(), object);
        let all = self.below().overlaid(&set);
        all.check().map_err(|error| error.to_string())?;
        self.keep(set)?;
        self.given.insert(vnic, name);
        Ok(())
    }

    fn keep(&mut self, set: Set) -> Result<(), String> {
        let all = self.below().overlaid(&set);
        let keys = self.keys.read_again(&all)?;
        let places = VirtualPlaces::of(&all, &self.places)?;
        self.state.write(&set)?;
        (self.set, self.keys) = (set, keys);
        self.replace(all, places);
        Ok(())
    }

    /// `brought`: keys, if tenants change. If none does, no file of theirs is in the way.
    fn keep_cluster(&mut self, cluster: Set, brought: Option<&BroughtKeys>) -> Result<(), String> {
        let all = self.base().overlaid(&cluster).overlaid(&self.set);
        let keys = match brought {
            Some(brought) => self.keys.read_with(&all, &brought.given())?,
            None => self.keys.clone(),
        };
        let places = VirtualPlaces::of(&all, &self.places)?;
        let before = &self.cluster.address;
        let is_new = |(name, remote): &(&String, &RemoteVnic)| before.get(*name) != Some(*remote);
        for (name, remote) in cluster.address.iter().filter(is_new) {
            if let Some(problem) = places.problem_of_remote(&all, name, remote, &keys) {
                return Err(format!("{} {name:?}: {problem}", ObjectKind::Address.word()));
            }
        }
        // What is refused here changes no key.
        let written = brought.map(|brought| self.key_files.write(brought)).transpose()?;
        self.cluster_state.write(&cluster)?;
        if let Some(written) = written {
            written.take_place()?;
            self.key_files.delete_unused([&cluster, &all]);
        }
        (self.cluster, self.keys) = (cluster, keys);
        self.replace(all, places);
        Ok(())
    }

    /// Takes over objects that may have no places: what has none has no device.
    fn replace_unchecked(&mut self, all: Set) {
        let places = VirtualPlaces::of(&all, &self.places);
        let places = places.unwrap_or_else(|_| std::mem::take(&mut self.places));
        self.replace(all, places);
    }

    /// Takes over objects and their places. vNICs whose object or attachment has changed need their
    /// object again.
    fn replace(&mut self, all: Set, places: VirtualPlaces) {
        self.places = places;
        let before = std::mem::replace(&mut self.all, all);
        self.revision += 1;
        self.rules.clear();
        let attach = |set: &Set, name: &String| set.vnic.get(name).map(|vnic| vnic.attach.clone());
        let all = &self.all;
        let is_here = |name: &String| all.vnic.get(name).is_none_or(|it| !all.is_elsewhere(it));
        let is_by_rule = |name: &String| self.containers.has_object(name);
        // One that is attached to a container decides before all rules.
        let is_other = |name: &String| attach(&before, name) != attach(all, name);
        let has_attached = all.vnic.keys().any(|name| !is_by_rule(name) && is_other(name));
        let is_asked_again = |name: &String| is_other(name) || has_attached && is_by_rule(name);
        self.given.retain(|name| is_here(name) && !is_asked_again(name));
    }

    /// A vNIC is no more. What was set for it alone cannot hold for another.
    pub(crate) fn forget(&mut self, vnic: VnicId) -> Result<(), String> {
        self.containers.looked_at.remove(&vnic);
        let by_rule = self.forget_container(vnic);
        let Some(name) = self.given.remove(vnic) else { return Ok(()) };
        let is_its_alone = by_rule.as_ref() == Some(&name) || name.starts_with("vnic-");
        if !is_its_alone || !self.set.vnic.contains_key(&name) {
            return Ok(());
        }
        // Whatever is wrong with files: it must not hold for the next vNIC.
        self.set.vnic.remove(&name);
        self.replace_unchecked(self.below().overlaid(&self.set));
        self.state.write(&self.set)
    }

    /// The object of a vNIC: the one that it was given, or the one attached to it now.
    fn object_of(&mut self, vnic: VnicId, place: &Place<'_>) -> Option<&VnicObject> {
        if !self.given.has(vnic) {
            match self.attached_to(place) {
                Some(name) => self.given.insert(vnic, name),
                None => self.ask_rules_again(vnic),
            }
        }
        self.all.vnic.get(self.given.get(vnic)?)
    }

    /// Whether it is time to look at paths again because a vNIC has come: all of them are looked at
    /// together, and containers can make vNICs without end.
    pub(crate) fn is_look_due(&mut self, now: u64) -> bool {
        let is_due = self.looked_at.is_none_or(|at| now.saturating_sub(at) >= LOOKS_APART);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }

    /// Why objects are attached to nothing, where their paths cannot be looked at: once for each.
    pub(crate) fn new_problems(&mut self) -> Vec<String> {
        let missing =
            self.all.vnic.iter().filter(|(name, _)| self.given.first_vnic(name).is_none());
        let unseen: BTreeMap<String, String> = missing
            .filter_map(|(name, vnic)| {
                let path = vnic.path(name)?;
                Some((path.to_owned(), format!("vNIC {name:?}: {}", problem_at(path)?)))
            })
            .collect();
        let before = std::mem::replace(&mut self.unseen, unseen.keys().cloned().collect());
        let new = unseen.into_iter().filter(|(path, _)| !before.contains(path));
        new.map(|(_, problem)| problem).collect()
    }

    /// What holds for a vNIC that has an object, or [may have one](Self::is_uncertain).
    pub(crate) fn policy(&mut self, vnic: VnicId, place: &Place<'_>) -> Option<Policy> {
        let Some(object) = self.object_of(vnic, place).cloned() else {
            let tenant = TenantId(ALONE | vnic.0 as u32);
            return self.is_uncertain().then(|| Policy { tenant, ..self.general() });
        };
        let numbers = &mut self.numbers;
        let policy = self.all.policy(&object, self.general, |tenant| number(numbers, tenant));
        let tenant = object.tenant.as_deref().unwrap_or(DEFAULT_TENANT);
        Some(self.with_encryption(tenant, policy))
    }

    /// The rules of a vNIC whose [policy](Self::policy) was asked for, and the names by which rules
    /// know it.
    pub(crate) fn rules(&mut self, vnic: VnicId, place: &Place<'_>) -> VnicRules {
        let all = &self.all;
        let object = self.given.get(vnic).and_then(|name| all.vnic.get(name));
        let object = object.cloned().unwrap_or_default();
        let made = || Arc::new(all.rules(&object));
        let rules = self.rules.entry(object.policies.clone()).or_insert_with(made).clone();
        let own = [Some(place.name), place.alias.as_deref(), self.name_of(vnic)];
        let mut names: Vec<String> = own.into_iter().flatten().map(String::from).collect();
        names.dedup();
        VnicRules { rules, names: VnicNames { vnic: names, policies: object.policies } }
    }

    /// The limits that a vNIC has in common with others.
    pub(crate) fn shared_limits(&self, vnic: VnicId) -> SharedLimits {
        let object = self.given.get(vnic).and_then(|name| self.all.vnic.get(name));
        let none = VnicObject::default();
        let object = object.unwrap_or(&none);
        let tenant = object.tenant.as_deref().unwrap_or(DEFAULT_TENANT);
        let tenant = self.numbers.get(tenant).copied().unwrap_or_default();
        let (rate, ops) = (self.all.shared_rate(object), self.all.shared_ops(object));
        SharedLimits { tenant, rate, ops }
    }

    /// The name of a vNIC's object.
    pub(crate) fn name_of(&self, vnic: VnicId) -> Option<&str> {
        self.given.get(vnic)
    }

    /// The vNIC that an object was given to; the first, if there are several.
    pub(crate) fn vnic_of(&self, name: &str) -> Option<VnicId> {
        self.given.first_vnic(name)
    }

    /// The tenant of a vNIC.
    pub(crate) fn tenant_of(&self, vnic: VnicId) -> &str {
        let object = self.given.get(vnic).and_then(|name| self.all.vnic.get(name));
        object.and_then(|object| object.tenant.as_deref()).unwrap_or(DEFAULT_TENANT)
    }

    /// The tenant of a vNIC as people are shown it.
    pub(crate) fn shown_tenant(&self, vnic: VnicId) -> &str {
        match !self.given.has(vnic) && self.is_uncertain() {
            true => UNKNOWN_TENANT,
            false => self.tenant_of(vnic),
        }
    }

    /// The number of changes so far.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

fn number(numbers: &mut BTreeMap<String, TenantId>, tenant: &str) -> TenantId {
    if tenant == DEFAULT_TENANT {
        return TenantId::default();
    }
    let next = TenantId(u32::try_from(numbers.len()).unwrap_or(ALONE).min(ALONE - 2) + 1);
    *numbers.entry(tenant.to_owned()).or_insert(next)
}

/// Device and inode of the network namespace at a path.
fn inode_at(path: &str) -> Option<[u64; 2]> {
    rustix::fs::stat(path).ok().map(|status| [status.st_dev, status.st_ino])
}

/// Why the daemon cannot read a path. That it does not exist yet is no problem.
fn problem_at(path: &str) -> Option<String> {
    match rustix::fs::stat(path) {
        Ok(_) | Err(Errno::NOENT) => None,
        Err(errno) => Some(format!(
            "cannot look at {path:?}: {errno}; attach it by a name that `omniverb vnic list` shows"
        )),
    }
}

#[cfg(test)]
mod tests;
