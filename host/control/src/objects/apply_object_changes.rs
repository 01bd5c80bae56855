//! Parses and applies changes of objects by operators: each is done wholly or not at all.

use super::object_set::{ObjectKind, ObjectSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    /// It is made; there must be none.
    Create,
    /// Some of its fields are changed; it must be there.
    Set,
    /// It is deleted; it must be there.
    Delete,
    /// It is as the fields say, whatever it was before.
    Put,
}

/// The origin of objects. A later one decides where two have an object of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// What all hosts agree on, which an agent brings.
    Cluster,
    /// A command of an operator of this host.
    #[default]
    Command,
}

/// The objects below and above those of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// The objects of the configuration.
    pub(crate) configured: &'a ObjectSet,
    /// The objects below the source: `configured`, and the cluster's if the source is `Command`.
    pub(crate) below: &'a ObjectSet,
    /// The objects above the source.
    pub(crate) above: &'a ObjectSet,
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    #[serde(rename = "do")]
    pub(crate) verb: Verb,
    pub(crate) kind: ObjectKind,
    pub(crate) name: String,
    /// Fields and their new values; `null` takes a field away.
    #[serde(default)]
    pub(crate) fields: Map<String, Value>,
}

/// Changes that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    #[serde(default)]
    pub(crate) source: Source,
    pub(crate) changes: Vec<Change>,
}

impl Change {
    /// Applies it to the objects of a source.
    fn apply(
        &self,
        source: Source,
        around: Surroundings<'_>,
        set: &mut ObjectSet,
    ) -> Result<(), String> {
        let Surroundings { configured, below, .. } = around;
        match self.kind {
            ObjectKind::Tenant => self.apply_to(&configured.tenant, &below.tenant, &mut set.tenant),
            ObjectKind::Policy => self.apply_to(&configured.policy, &below.policy, &mut set.policy),
            ObjectKind::Vnic => self.apply_to(&configured.vnic, &below.vnic, &mut set.vnic),
            ObjectKind::Address if source == Source::Cluster => {
                self.apply_to(&configured.address, &below.address, &mut set.address)
            }
            ObjectKind::Address => Err("addresses of other hosts come from their agents".into()),
            ObjectKind::Container => Err("containers are in the configuration file only".into()),
        }
    }

    fn apply_to<T: Clone + Default + PartialEq + DeserializeOwned + serde::Serialize>(
        &self,
        configured: &BTreeMap<String, T>,
        below: &BTreeMap<String, T>,
        set: &mut BTreeMap<String, T>,
    ) -> Result<(), String> {
        let (word, name) = (self.kind.word(), &self.name);
        let current = set.get(name).or_else(|| below.get(name));
        let is_configured = configured.get(name) == current;
        let before = match (self.verb, current) {
            (Verb::Create, Some(_)) => return Err(format!("{word} {name:?} exists")),
            (Verb::Create, None) | (Verb::Put, _) => T::default(),
            (_, None) => return Err(format!("there is no {word} {name:?}")),
            (_, Some(current)) => current.clone(),
        };
        if self.verb == Verb::Delete {
            return match set.remove(name) {
                Some(_) => Ok(()),
                None if is_configured => Err(format!(
                    "{word} {name:?} is in the configuration file, or follows from a [[container]] \
                     there: remove it there, and reload"
                )),
                None => Err(format!(
                    "{word} {name:?} is the cluster's: remove it there (omniverb cluster delete)"
                )),
            };
        }
        let mut fields = match serde_json::to_value(before) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        for (key, value) in &self.fields {
            fields.insert(key.clone(), value.clone());
        }
        fields.retain(|_, value| !value.is_null());
        let after = serde_json::from_value(Value::Object(fields))
            .map_err(|error| format!("{word} {name:?}: {error}"))?;
        set.insert(name.clone(), after);
        Ok(())
    }
}

impl Changes {
    /// The objects of the source after all of them; `set`: before.
    pub(crate) fn applied(
        &self,
        around: Surroundings<'_>,
        set: &ObjectSet,
    ) -> Result<ObjectSet, String> {
        let mut after = set.clone();
        for change in &self.changes {
            change.apply(self.source, around, &mut after)?;
        }
        let all = around.below.overlaid(&after).overlaid(around.above);
        all.check().map_err(|error| error.to_string())?;
        Ok(after)
    }
}
