//! Keeps tenants' keys that an agent brings, each in a file that only the daemon's user can read.
//!
//! In: changes of the cluster's tenants with a field `key`. Out: changes with a `key_file` instead,
//! so that no object has a key, and the file. The file changes once the objects have.
//! `tenant_key_file_reader.rs` reads it as one that an operator made.

use super::apply_object_changes::{Change, Verb};
use super::object_name_syntax::is_name;
use super::object_set::{ObjectKind, ObjectSet};
use super::state_file::{take_name, write_beside};
use super::tenant_key_file_reader::{GivenKeys, parse};
use serde_json::Value;
use std::collections::BTreeSet;
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
    /// The fault of a key. The text does not show the key.
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

    /// Writes the files beside those that they take the place of.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    pub(crate) fn write(&self, brought: &BroughtKeys) -> Result<WrittenKeys, String> {
        let mut written = WrittenKeys::default();
        let Some(folder) = self.folder.as_ref().filter(|_| !brought.keys.is_empty()) else {
            return Ok(written);
        };
        let made = match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        made.map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        for key in &brought.keys {
            let new = write_beside(&key.path, key.text.as_bytes())
                .map_err(|error| format!("cannot write {}: {error}", key.path.display()))?;
            written.files.push([new, key.path.clone()]);
        }
        Ok(written)
    }

    /// Deletes the files that none of these objects names.
    pub(crate) fn delete_unused(&self, sets: [&ObjectSet; 2]) {
        let Some(Ok(files)) = self.folder.as_ref().map(std::fs::read_dir) else { return };
        let tenants = sets.into_iter().flat_map(|set| set.tenant.values());
        let named: BTreeSet<&Path> =
            tenants.filter_map(|tenant| Some(Path::new(tenant.key_file.as_ref()?))).collect();
        for path in files.flatten().map(|file| file.path()) {
            let is_ours = path.extension().is_some_and(|end| end == "key" || end == "new");
            if is_ours && !named.contains(path.as_path()) {
                // One that is left is unused, and replaced by the next key of this tenant.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// New files beside those that they take the place of. Dropped, they are deleted.
#[derive(Debug, Default)]
pub(crate) struct WrittenKeys {
    files: Vec<[PathBuf; 2]>,
}

impl WrittenKeys {
    /// They take the place of the others.
    ///
    /// # Errors
    /// The file that cannot, and why.
    pub(crate) fn take_place(mut self) -> Result<(), String> {
        for [new, path] in std::mem::take(&mut self.files) {
            take_name(&new, &path)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for WrittenKeys {
    fn drop(&mut self) {
        for [new, _] in &self.files {
            let _ = std::fs::remove_file(new);
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
