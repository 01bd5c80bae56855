//! Keeps what etcd has for a host, and says which objects hold there.
//!
//! In: entries as they are put and deleted. Out: objects by their names, and what is wrong with
//! entries. An object whose entry cannot be understood is *held*: the host leaves it as it is,
//! since without it its vNIC would fall back to the tenant `default`.

use crate::address_announcements::Announcements;
use crate::etcd_key_layout::{Key, VERSION};
use crate::etcd_value;
use crate::object_name::{Fields, ObjectId, Scope, Wanted, WantedObjects};
use crate::sealed_field::{self, SealKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects that are kept of a cluster. With more of them [nothing counts](ClusterObjects::excess).
pub const OBJECTS_MAX: usize = 3 * 16384;
/// Bytes of all values that are kept of a cluster: as many as a daemon can keep.
pub const VALUES_BYTES_MAX: usize = 16 << 20;

/// etcd's objects for one host.
#[derive(Clone, Debug)]
pub struct ClusterObjects {
    host: String,
    seal_key: Option<Arc<SealKey>>,
    cluster: Option<Result<String, String>>,
    entries: BTreeMap<(ObjectId, Scope), Entry>,
    /// Bytes of the values of all entries.
    bytes: usize,
    /// Something was left out.
    has_excess: bool,
    /// Faults of other keys.
    unknown: BTreeMap<String, String>,
    announcements: Announcements,
}

/// What etcd has for an object.
#[derive(Clone, Debug)]
struct Entry {
    fields: Result<Fields, String>,
    /// Bytes of its value.
    bytes: usize,
}

impl ClusterObjects {
    /// Nothing, for the host of this name, which has this key to open sealed fields with.
    #[must_use]
    pub fn new(host: &str, seal_key: Option<Arc<SealKey>>) -> ClusterObjects {
        ClusterObjects {
            host: host.to_owned(),
            seal_key,
            cluster: None,
            entries: BTreeMap::new(),
            bytes: 0,
            has_excess: false,
            unknown: BTreeMap::new(),
            announcements: Announcements::default(),
        }
    }

    /// An entry is there, or has another value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        match Key::parse(key) {
            Ok(Key::Cluster) => self.cluster = Some(cluster_of(value)),
            Ok(Key::Object(scope, id)) if self.is_ours(&scope) => {
                let at = (id, scope);
                self.remove(&at);
                // A longer value is refused, and not kept.
                let bytes = value.len().min(etcd_value::VALUE_BYTES_MAX);
                if self.entries.len() >= OBJECTS_MAX || self.bytes + bytes > VALUES_BYTES_MAX {
                    self.has_excess = true;
                    return;
                }
                let key = self.seal_key.as_deref();
                let fields = etcd_value::parse(value)
                    .and_then(|fields| sealed_field::open(&at.0, &fields, key));
                self.bytes += bytes;
                self.entries.insert(at, Entry { fields, bytes });
            }
            Ok(Key::Address { tenant, ip }) => self.announcements.put(&tenant, ip, value),
            Ok(Key::Object(..) | Key::Live(_)) => {}
            Err(problem) => {
                if self.unknown.len() < OBJECTS_MAX {
                    self.unknown.insert(shown(key), problem);
                }
            }
        }
    }

    /// An entry is no more.
    pub fn delete(&mut self, key: &[u8]) {
        match Key::parse(key) {
            Ok(Key::Cluster) => self.cluster = None,
            Ok(Key::Object(scope, id)) => self.remove(&(id, scope)),
            Ok(Key::Address { tenant, ip }) => self.announcements.delete(&tenant, ip),
            Ok(Key::Live(_)) => {}
            Err(_) => {
                self.unknown.remove(&shown(key));
            }
        }
    }

    fn remove(&mut self, at: &(ObjectId, Scope)) {
        if let Some(entry) = self.entries.remove(at) {
            self.bytes -= entry.bytes;
        }
    }

    /// Why nothing of this counts, if some objects are left out because there are too many: a host
    /// that took the others for all would delete these.
    #[must_use]
    pub fn excess(&self) -> Option<String> {
        self.has_excess.then(|| {
            format!(
                "etcd has more than {OBJECTS_MAX} objects, or {} MiB of values, for this host",
                VALUES_BYTES_MAX >> 20
            )
        })
    }

    /// The addresses that hosts announce.
    #[must_use]
    pub fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    fn is_ours(&self, scope: &Scope) -> bool {
        match scope {
            Scope::All => true,
            Scope::Host(host) => *host == self.host,
        }
    }

    /// Which cluster this is.
    ///
    /// # Errors
    /// Why nothing of it counts, in words for an operator: its entry is missing, as in an etcd
    /// that has lost everything, or is of another layout.
    pub fn identity(&self) -> Result<&str, String> {
        match &self.cluster {
            Some(Ok(identity)) => Ok(identity),
            Some(Err(problem)) => Err(format!("{}: {problem}", Key::Cluster.text())),
            None => Err(format!(
                "etcd has no {}: nothing was applied there yet, or it has lost what it had",
                Key::Cluster.text()
            )),
        }
    }

    /// The objects of the host.
    #[must_use]
    pub fn wanted(&self) -> WantedObjects {
        let mut wanted = WantedObjects::new();
        // A host's own entry comes after the one for all.
        for ((id, _), entry) in &self.entries {
            let object = entry.fields.clone().map_or(Wanted::Held, Wanted::Fields);
            wanted.insert(id.clone(), object);
        }
        wanted
    }

    /// Faults, by their objects.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<String, String> {
        let bad = self.entries.iter().filter_map(|((id, scope), entry)| {
            let problem = entry.fields.as_ref().err()?;
            let key = Key::Object(scope.clone(), id.clone()).text();
            Some((key, format!("{problem}; the object stays as it is")))
        });
        self.unknown.clone().into_iter().chain(bad).collect()
    }
}

/// The name of the cluster in an entry.
fn cluster_of(bytes: &[u8]) -> Result<String, String> {
    let fields = etcd_value::parse(bytes)?;
    match (fields.get("layout").and_then(|v| v.as_u64()), fields.get("id")) {
        (Some(VERSION), Some(serde_json::Value::String(id))) if id.len() <= 64 => Ok(id.clone()),
        (Some(VERSION), _) => Err("it has no id".into()),
        (layout, _) => Err(match layout {
            Some(layout) => format!("layout {layout} needs a newer omniverb-agent"),
            None => "it has no layout".into(),
        }),
    }
}

/// A key for people: bytes from outside, and maybe many.
fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key.get(..key.len().min(100)).unwrap_or(key));
    text.escape_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_name::Kind;

    fn id(kind: Kind, name: &str) -> ObjectId {
        ObjectId::new(kind, name)
    }

    #[test]
    fn a_hosts_own_object_decides_before_that_of_all() {
        let mut objects = ClusterObjects::new("h1", None);
        objects.put(b"/omniverb/v1/all/policy/gold", br#"{"rate": "1gbit"}"#);
        objects.put(b"/omniverb/v1/host/h1/policy/gold", br#"{"rate": "2gbit"}"#);
        objects.put(b"/omniverb/v1/host/h2/policy/gold", br#"{"rate": "3gbit"}"#);
        let rate = |objects: &ClusterObjects| match &objects.wanted()[&id(Kind::Policy, "gold")] {
            Wanted::Fields(fields) => fields["rate"].as_str().unwrap().to_owned(),
            Wanted::Held => panic!("it is good"),
        };
        assert_eq!(rate(&objects), "2gbit");
        objects.delete(b"/omniverb/v1/host/h1/policy/gold");
        assert_eq!(rate(&objects), "1gbit");
        objects.delete(b"/omniverb/v1/all/policy/gold");
        assert!(objects.wanted().is_empty());
    }

    #[test]
    fn a_bad_value_holds_its_object_and_no_other() {
        let mut objects = ClusterObjects::new("h1", None);
        objects.put(b"/omniverb/v1/all/vnic/a", b"{\"tenant\": ");
        objects.put(b"/omniverb/v1/all/vnic/b", b"{}");
        objects.put(b"/omniverb/v1/all/shape/b", b"{}");
        objects.put(b"/omniverb/v1/live/h7", b"\xff");
        let wanted = objects.wanted();
        assert_eq!(wanted[&id(Kind::Vnic, "a")], Wanted::Held);
        assert_eq!(wanted[&id(Kind::Vnic, "b")], Wanted::Fields(Fields::new()));
        let problems = objects.problems();
        assert!(problems["/omniverb/v1/all/vnic/a"].contains("EOF"), "{problems:?}");
        assert!(problems["/omniverb/v1/all/shape/b"].contains("shape"), "{problems:?}");
        assert_eq!(problems.len(), 2);
        objects.put(b"/omniverb/v1/all/vnic/a", b"{}");
        objects.delete(b"/omniverb/v1/all/shape/b");
        assert!(objects.problems().is_empty());
    }

    #[test]
    fn too_many_objects_are_told_from_all_of_them() {
        let key = |n: usize| format!("/omniverb/v1/all/policy/p{n}");
        let mut objects = ClusterObjects::new("h1", None);
        (0..OBJECTS_MAX).for_each(|n| objects.put(key(n).as_bytes(), b"{}"));
        // Others' objects, and the same again, are no more.
        objects.put(b"/omniverb/v1/host/h2/policy/gold", b"{}");
        objects.put(key(7).as_bytes(), br#"{"rate": "1gbit"}"#);
        assert_eq!((objects.excess(), objects.wanted().len()), (None, OBJECTS_MAX));
        objects.delete(key(5).as_bytes());
        objects.put(b"/omniverb/v1/all/vnic/web", b"{}");
        assert_eq!(objects.excess(), None);
        objects.put(b"/omniverb/v1/all/vnic/store", b"{}");
        assert!(objects.excess().unwrap().contains("more than 49152 objects"));

        let mut objects = ClusterObjects::new("h1", None);
        let value = format!("{{\"rate\": \"{}\"}}", "1".repeat(etcd_value::VALUE_BYTES_MAX - 20));
        for n in 0..1000 {
            objects.put(key(n % 250).as_bytes(), value.as_bytes());
        }
        assert_eq!(objects.excess(), None, "a value that takes another's place");
        (0..300).for_each(|n| objects.put(key(n).as_bytes(), value.as_bytes()));
        assert!(objects.excess().is_some() && objects.bytes <= VALUES_BYTES_MAX);
    }

    #[test]
    fn without_the_clusters_entry_no_object_counts() {
        let mut objects = ClusterObjects::new("h1", None);
        assert!(objects.identity().unwrap_err().contains("has no /omniverb/v1/all/cluster"));
        for (value, word) in [
            (&br#"{"layout": 2, "id": "x"}"#[..], "newer"),
            (br#"{"layout": 1}"#, "no id"),
            (br#"{}"#, "no layout"),
            (b"", "EOF"),
        ] {
            objects.put(b"/omniverb/v1/all/cluster", value);
            assert!(objects.identity().unwrap_err().contains(word));
        }
        objects.put(b"/omniverb/v1/all/cluster", br#"{"layout": 1, "id": "x"}"#);
        assert_eq!(objects.identity(), Ok("x"));
        objects.delete(b"/omniverb/v1/all/cluster");
        assert!(objects.identity().is_err());
    }
}
