//! Stores which vNIC was given which object, to be found by either.

use omniverb_tenancy::VnicId;
use std::collections::{BTreeMap, BTreeSet};

/// Names of objects by the vNICs that were given them. Several vNICs may have one object.
#[derive(Debug, Default)]
pub(super) struct GivenObjects {
    names: BTreeMap<VnicId, String>,
    vnics: BTreeMap<String, BTreeSet<VnicId>>,
}

impl GivenObjects {
    /// The object of a vNIC.
    pub(super) fn get(&self, vnic: VnicId) -> Option<&str> {
        self.names.get(&vnic).map(String::as_str)
    }

    /// Whether a vNIC was given an object.
    pub(super) fn has(&self, vnic: VnicId) -> bool {
        self.names.contains_key(&vnic)
    }

    /// The vNIC that an object was given to; the first, if there are several.
    pub(super) fn first_vnic(&self, name: &str) -> Option<VnicId> {
        self.vnics.get(name)?.first().copied()
    }

    /// Gives a vNIC this object, instead of the one that it has.
    pub(super) fn insert(&mut self, vnic: VnicId, name: String) {
        self.remove(vnic);
        self.vnics.entry(name.clone()).or_default().insert(vnic);
        self.names.insert(vnic, name);
    }

    /// Takes a vNIC's object away, and returns its name.
    pub(super) fn remove(&mut self, vnic: VnicId) -> Option<String> {
        let name = self.names.remove(&vnic)?;
        if let Some(vnics) = self.vnics.get_mut(&name) {
            vnics.remove(&vnic);
            if vnics.is_empty() {
                self.vnics.remove(&name);
            }
        }
        Some(name)
    }

    /// Takes away all objects but those that `is_kept` names.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&String) -> bool) {
        self.vnics.retain(|name, _| is_kept(name));
        self.names.retain(|_, name| self.vnics.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_their_vnics_and_vnics_by_their_objects() {
        let mut given = GivenObjects::default();
        for (vnic, name) in [(2, "a"), (1, "a"), (3, "b"), (3, "c")] {
            given.insert(VnicId(vnic), name.to_owned());
        }
        assert_eq!((given.first_vnic("a"), given.first_vnic("b")), (Some(VnicId(1)), None));
        assert_eq!((given.get(VnicId(3)), given.first_vnic("c")), (Some("c"), Some(VnicId(3))));
        assert_eq!(given.remove(VnicId(1)).as_deref(), Some("a"));
        assert_eq!((given.has(VnicId(1)), given.first_vnic("a")), (false, Some(VnicId(2))));
        given.retain(|name| name == "c");
        assert_eq!((given.get(VnicId(2)), given.first_vnic("a")), (None, None));
        assert_eq!(given.first_vnic("c"), Some(VnicId(3)));
    }
}
