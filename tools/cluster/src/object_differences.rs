//! Compares the objects of a file with those of a cluster.

use crate::object_file::Entries;
use crate::object_name::{Fields, ObjectId, Scope};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Objects as etcd has them, or what is wrong with their values.
pub type ClusterEntries = BTreeMap<(ObjectId, Scope), Result<Fields, String>>;

/// The kind of difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The cluster does not have it.
    New,
    /// Fields: before and after.
    Changed(BTreeMap<String, [Option<Value>; 2]>),
    /// The cluster's value is damaged, and is replaced.
    Repaired(String),
    /// The file does not have it.
    Gone,
}

/// A difference between a file and a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The object that differs.
    pub id: ObjectId,
    /// The hosts that it is for.
    pub scope: Scope,
    /// The kind of difference.
    pub what: What,
}

/// The treatment of objects that only the cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// The cluster keeps them.
    Kept,
    /// They are deleted.
    Pruned,
}

/// Differences, in the order of kinds and names.
#[must_use]
pub fn differences(file: &Entries, cluster: &ClusterEntries, extra: Extra) -> Vec<Difference> {
    let mut all = Vec::new();
    for ((id, scope), fields) in file {
        let what = match cluster.get(&(id.clone(), scope.clone())) {
            None => What::New,
            Some(Err(problem)) => What::Repaired(problem.clone()),
            Some(Ok(before)) if before == fields => continue,
            Some(Ok(before)) => What::Changed(changed(before, fields)),
        };
        all.push(Difference { id: id.clone(), scope: scope.clone(), what });
    }
    let is_gone = |key: &&(ObjectId, Scope)| extra == Extra::Pruned && !file.contains_key(*key);
    all.extend(cluster.keys().filter(is_gone).map(|(id, scope)| Difference {
        id: id.clone(),
        scope: scope.clone(),
        what: What::Gone,
    }));
    all
}

fn changed(before: &Fields, after: &Fields) -> BTreeMap<String, [Option<Value>; 2]> {
    let keys = before.keys().chain(after.keys());
    let pairs = keys.map(|key| (key.clone(), [before.get(key).cloned(), after.get(key).cloned()]));
    pairs.filter(|(_, [before, after])| before != after).collect()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match &self.what {
            What::New => '+',
            What::Changed(_) | What::Repaired(_) => '~',
            What::Gone => '-',
        };
        write!(f, "{sign} {}", self.id)?;
        if let Scope::Host(host) = &self.scope {
            write!(f, " (host {host})")?;
        }
        match &self.what {
            What::Changed(fields) => {
                for (number, (key, [before, after])) in fields.iter().enumerate() {
                    let shown = |value: &Option<Value>| match value {
                        // Not for terminals, whichever of both it is.
                        _ if crate::sealed_field::is_secret(self.id.kind, key) => "SECRET".into(),
                        Some(value) => value.to_string(),
                        None => "nothing".to_owned(),
                    };
                    let mark = if number == 0 { ":" } else { "," };
                    write!(f, "{mark} {key} {} -> {}", shown(before), shown(after))?;
                }
                Ok(())
            }
            What::Repaired(problem) => write!(f, ": damaged ({problem})"),
            What::New | What::Gone => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_file::parse;
    use crate::object_name::Kind;

    #[test]
    fn differences_are_lines() {
        let file = "[tenant.blue]\n[tenant.grey]\n[policy.gold]\nrate = \"5gbit\"\n\
                    [host.h1.vnic.web]\ntenant = \"blue\"\n";
        let cluster =
            "[tenant.blue]\n[policy.gold]\nrate = \"1gbit\"\nburst = \"64k\"\n[vnic.old]\n";
        let mut cluster: ClusterEntries =
            parse(cluster).unwrap().into_iter().map(|(key, fields)| (key, Ok(fields))).collect();
        let grey = (ObjectId::new(Kind::Tenant, "grey"), Scope::All);
        cluster.insert(grey, Err("no text".into()));
        let lines = |extra| {
            let all = differences(&parse(file).unwrap(), &cluster, extra);
            all.iter().map(Difference::to_string).collect::<Vec<_>>()
        };
        let mut expected = vec![
            "~ tenant grey: damaged (no text)",
            "~ policy gold: burst \"64k\" -> nothing, rate \"1gbit\" -> \"5gbit\"",
            "+ vnic web (host h1)",
        ];
        assert_eq!(lines(Extra::Kept), expected);
        expected.push("- vnic old");
        assert_eq!(lines(Extra::Pruned), expected);
        assert!(differences(&Entries::new(), &ClusterEntries::new(), Extra::Pruned).is_empty());
    }
}
