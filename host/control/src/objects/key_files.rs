//! Keeps tenants' keys that an agent brings, each in a file that only the daemon's user can read.
//!
//! In: changes of the cluster's tenants with a field `key`. Out: changes with a `key_file` instead,
//! so that no object has a key, and the file. `tenant_keys.rs` reads it as one that an operator
//! made.

use super::change::{Change, Verb};
use super::object_names::is_name;
use super::object_set::{ObjectKind, ObjectSet, Tenant};
use super::state_file::replace;
use super::tenant_keys::{GivenKeys, parse};
use serde_json::Value;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The field that has a key.
const FIELD: &str = "key";

/// Keys that changes bring.
#[derive(Debug, Default)]
pub(crate) struct BroughtKeys {
    keys: Vec<BroughtKey>,
}

/// One of them.
struct BroughtKey {
    path: PathBuf,
    text: Zeroizing<String>,
}

impl std::fmt::Debug for BroughtKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BroughtKey({:?}, ..)", self.path)
    }
}

/// The folder of the files.
#[derive(Clone, Debug)]
pub(crate) struct KeyFiles {
    /// `None`: nothing outlives this daemon, and there is no place for keys.
    folder: Option<PathBuf>,
}

impl KeyFiles {
    /// Those beside the state file at this path.
    pub(crate) fn beside(state: Option<&Path>) -> KeyFiles {
        KeyFiles { folder: state.map(|path| path.with_added_extension("keys")) }
    }

    /// The file of a tenant's key. Its name is no other file's, whatever the tenant is called.
    fn path(&self, tenant: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{tenant}.key")))
    }

    /// Takes keys out of changes: they name files instead, which are not written yet.
    ///
    /// # Errors
    /// What is wrong with a key. The text does not show it.
    pub(crate) fn take(&self, changes: &mut [Change]) -> Result<BroughtKeys, String> {
        let mut brought = BroughtKeys::default();
        for change in changes {
            if change.kind != ObjectKind::Tenant || change.verb == Verb::Delete {
                continue;
            }
            let Some(value) = change.fields.remove(FIELD) else { continue };
            let refused = |problem: &str| Err(format!("tenant {:?}: key: {problem}", change.name));
            let Value::String(text) = value else { return refused("it is no text") };
            let text = Zeroizing::new(text);
            if parse(&text).is_none() {
                return refused("it does not have 32 hexadecimal digits");
            }
            if change.fields.contains_key("key_file") {
                return refused("there is a key_file, too: leave out one of the two");
            }
            // A name that is none must not lead elsewhere; what it names is checked later.
            let path = self.path(&change.name).filter(|_| is_name(&change.name));
            let Some(path) = path else { return refused("there is no folder for its file") };
            let Some(shown) = path.to_str() else { return refused("its file's path is no text") };
            change.fields.insert("key_file".into(), shown.into());
            brought.keys.push(BroughtKey { path, text });
        }
        Ok(brought)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    pub(crate) fn write(&self, brought: &BroughtKeys) -> Result<(), String> {
        let Some(folder) = self.folder.as_ref().filter(|_| !brought.keys.is_empty()) else {
            return Ok(());
        };
        let made = match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        made.map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        for key in &brought.keys {
            replace(&key.path, key.text.as_bytes())
                .map_err(|error| format!("cannot write {}: {error}", key.path.display()))?;
        }
        Ok(())
    }

    /// Deletes the files of tenants that `before` has, and that no object names any more.
    pub(crate) fn delete_unused(&self, before: &ObjectSet, all: &ObjectSet) {
        for (name, tenant) in &before.tenant {
            let path = self.path(name);
            let Some(path) = path.as_deref().and_then(Path::to_str) else { continue };
            let names = |tenant: &Tenant| tenant.key_file.as_deref() == Some(path);
            if names(tenant) && !all.tenant.values().any(names) {
                // One that is left is unused, and replaced by the next key of this tenant.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl BroughtKeys {
    /// The keys, by the paths of their files.
    pub(crate) fn given(&self) -> GivenKeys {
        let keys = self
            .keys
            .iter()
            .filter_map(|key| Some((key.path.to_str()?.to_owned(), parse(&key.text)?)));
        keys.collect()
    }
}
