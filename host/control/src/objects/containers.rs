//! Stores what is known of containers' namespaces, and the objects that rules have given them.

use super::container_rules::{Container, ContainerRule, Moment};
use super::object_set::VnicObject;
use omniverb_tenancy::VnicId;
use std::collections::BTreeMap;

/// A namespace that rules were asked about.
#[derive(Debug)]
pub(super) struct Known {
    /// The name of its vNIC for people.
    pub(super) vnic: String,
    pub(super) container: Container,
    /// When it was looked at.
    pub(super) at: u64,
    /// Its end will be heard of.
    pub(super) is_watched: bool,
    /// The rule that matched, and the name of the object that follows from it.
    pub(super) decided: Option<(ContainerRule, String)>,
}

impl Known {
    /// When rules are asked again: whether a process has come already.
    pub(super) fn moment(&self) -> Moment {
        match self.container.cgroup {
            Some(_) => Moment::Process,
            None => Moment::Change,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Containers {
    pub(super) known: BTreeMap<VnicId, Known>,
    /// By their names: what follows from rules, and for which vNIC.
    pub(super) objects: BTreeMap<String, (VnicId, VnicObject)>,
    /// When it was looked at last what describes a vNIC, as a process of it came.
    pub(super) looked_at: BTreeMap<VnicId, u64>,
}

impl Containers {
    /// All objects that follow from rules.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&String, &VnicObject)> {
        self.objects.iter().map(|(name, (_, object))| (name, object))
    }

    pub(crate) fn has_object(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    /// Whether an object follows from a rule about this vNIC.
    pub(super) fn is_of(&self, name: &str, vnic: VnicId) -> bool {
        self.objects.get(name).is_some_and(|(of, _)| *of == vnic)
    }
}
