//! Changes of objects: what an operator wants of them, all of it or nothing.

use super::object_set::{ObjectKind, ObjectSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What is done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    /// It is made; there must be none.
    Create,
    /// Some of its fields are changed; it must be there.
    Set,
    /// It is deleted; it must be there.
    Delete,
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
    pub(crate) changes: Vec<Change>,
}

impl Change {
    /// Applies it to what was set at run time, above what is configured.
    fn apply(&self, configured: &ObjectSet, set: &mut ObjectSet) -> Result<(), String> {
        match self.kind {
            ObjectKind::Tenant => self.apply_to(&configured.tenant, &mut set.tenant),
            ObjectKind::Policy => self.apply_to(&configured.policy, &mut set.policy),
            ObjectKind::Vnic => self.apply_to(&configured.vnic, &mut set.vnic),
            ObjectKind::Container => Err("containers are in the configuration file only".into()),
        }
    }

    fn apply_to<T: Clone + Default + PartialEq + DeserializeOwned + serde::Serialize>(
        &self,
        configured: &BTreeMap<String, T>,
        set: &mut BTreeMap<String, T>,
    ) -> Result<(), String> {
        let (word, name) = (self.kind.word(), &self.name);
        let current = set.get(name).or_else(|| configured.get(name));
        let before = match (self.verb, current) {
            (Verb::Create, Some(_)) => return Err(format!("{word} {name:?} exists")),
            (Verb::Create, None) => T::default(),
            (_, None) => return Err(format!("there is no {word} {name:?}")),
            (_, Some(current)) => current.clone(),
        };
        if self.verb == Verb::Delete {
            return match set.remove(name) {
                Some(_) => Ok(()),
                None => Err(format!(
                    "{word} {name:?} is in the configuration file, or follows from a [[container]] \
                     there: remove it there, and reload"
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
    /// What is set at run time after all of them.
    pub(crate) fn applied(
        &self,
        configured: &ObjectSet,
        set: &ObjectSet,
    ) -> Result<ObjectSet, String> {
        let mut after = set.clone();
        for change in &self.changes {
            change.apply(configured, &mut after)?;
        }
        configured.overlaid(&after).check().map_err(|error| error.to_string())?;
        Ok(after)
    }
}
