//! Reads the keys of tenants from files that only the daemon's user can read, and keeps them.
//!
//! A key that takes the place of another is a new generation. The one before stays valid beside it,
//! so that hosts need not change theirs at the same moment.

use super::object_set::{ObjectKind, ObjectSet};
use omniverb_engine::TenantKey;
use omniverb_tenancy::KeyGeneration;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use zeroize::Zeroizing;

/// Hexadecimal digits of a key.
const DIGITS: usize = 32;
/// Bytes of a file that are read.
const BYTES_MAX: u64 = 256;
/// Generations of one tenant's key that are valid at once.
const GENERATIONS_MAX: usize = 2;

/// A tenant's keys.
#[derive(Clone, Debug)]
struct Keys {
    generation: KeyGeneration,
    /// The newest first.
    keys: Vec<TenantKey>,
}

/// Keys that are not in their files yet, by the paths of these.
pub(crate) type GivenKeys = BTreeMap<String, TenantKey>;

/// Those of all tenants that have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantKeys {
    of: BTreeMap<String, Keys>,
    last: u64,
}

impl TenantKeys {
    /// These keys, read again from the tenants' files. An unchanged key keeps its generation.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub(crate) fn read_again(&self, objects: &ObjectSet) -> Result<TenantKeys, String> {
        self.read_with(objects, &GivenKeys::new())
    }

    /// As [`read_again`](Self::read_again), where `given` is what some files will hold.
    pub(crate) fn read_with(
        &self,
        objects: &ObjectSet,
        given: &GivenKeys,
    ) -> Result<TenantKeys, String> {
        let mut after = TenantKeys { of: BTreeMap::new(), last: self.last };
        for (name, tenant) in &objects.tenant {
            let Some(path) = &tenant.key_file else { continue };
            let key = given.get(path).cloned().map_or_else(|| read(path), Ok);
            let key = key.map_err(|problem| {
                format!("{} {name:?}: key_file {path}: {problem}", ObjectKind::Tenant.word())
            })?;
            after.add(name, key, self.of.get(name));
        }
        match after.tenants_with_one_key() {
            Some([one, other]) => Err(format!(
                "tenant {one:?} has the key of tenant {other:?}, or one that this has had: make \
                 another one, or they are one tenant to other hosts"
            )),
            None => Ok(after),
        }
    }

    /// Two tenants of which one has a key that the other has as well.
    fn tenants_with_one_key(&self) -> Option<[&str; 2]> {
        let mut owners = BTreeMap::new();
        let mut keys =
            self.of.iter().flat_map(|(name, of)| of.keys.iter().map(move |key| (name, key)));
        keys.find_map(|(name, key)| {
            // Not the key itself: what is here for a moment is not cleared.
            let before: Option<&String> = owners.insert(*key.derive(&[b"which tenant"]), name);
            before.filter(|before| *before != name).map(|before| [name.as_str(), before.as_str()])
        })
    }

    fn add(&mut self, name: &str, key: TenantKey, before: Option<&Keys>) {
        let same = before.filter(|before| before.keys.first() == Some(&key));
        let keys = same.cloned().unwrap_or_else(|| {
            self.last += 1;
            let older = before.iter().flat_map(|before| &before.keys).cloned();
            let keys = [key].into_iter().chain(older).take(GENERATIONS_MAX).collect();
            Keys { generation: KeyGeneration(self.last), keys }
        });
        self.of.insert(name.to_owned(), keys);
    }

    /// The generation of a tenant's key; zero if it has none.
    pub(crate) fn generation(&self, tenant: &str) -> KeyGeneration {
        self.of.get(tenant).map_or(KeyGeneration(0), |keys| keys.generation)
    }

    /// A tenant's keys, the newest first.
    pub(crate) fn keys(&self, tenant: &str) -> Vec<TenantKey> {
        self.of.get(tenant).map(|keys| keys.keys.clone()).unwrap_or_default()
    }
}

/// The key that a file holds.
fn read(path: &str) -> Result<TenantKey, String> {
    let error = |error: rustix::io::Errno| io::Error::from(error).to_string();
    // Not blocking, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty()).map_err(error)?;
    let status = fstat(&file).map_err(error)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err("it is not a regular file".into());
    }
    let own = geteuid().as_raw();
    if (status.st_uid != own && status.st_uid != 0) || status.st_mode & 0o077 != 0 {
        return Err("others may read or write it: use mode 0600, and the daemon's user".into());
    }
    let mut text = Zeroizing::new(String::with_capacity(BYTES_MAX as usize + 1));
    let read = File::from(file).take(BYTES_MAX).read_to_string(&mut text);
    // The error does not show the text.
    read.map_err(|_| "it is no text".to_owned())?;
    parse(text.trim()).ok_or_else(|| format!("it does not hold {DIGITS} hexadecimal digits"))
}

pub(crate) fn parse(text: &str) -> Option<TenantKey> {
    if text.len() != DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let number = Zeroizing::new(u128::from_str_radix(text, 16).ok()?);
    Some(TenantKey::new(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_may_read_or_that_holds_no_key_is_refused() {
        let folder = std::env::temp_dir().join(format!("omniverb-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        let name = path.to_str().unwrap();
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let good = "000102030405060708090A0b0c0d0e0f";
        write(&format!("{good}\n"), 0o600);
        let bytes = std::array::from_fn(|n| n as u8);
        assert_eq!(read(name).ok(), Some(TenantKey::new(bytes)));
        for (text, mode, problem) in [
            (good, 0o640, "mode 0600"),
            (good, 0o602, "mode 0600"),
            (&good[1..], 0o600, "hexadecimal"),
            (&format!("+{}", &good[1..]), 0o600, "hexadecimal"),
            (&format!("{good}00"), 0o600, "hexadecimal"),
        ] {
            write(text, mode);
            let error = read(name).unwrap_err();
            assert!(error.contains(problem) && !error.contains(&good[3..9]), "{error}");
        }
        assert!(read(folder.to_str().unwrap()).unwrap_err().contains("regular file"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(read(name).unwrap_err().contains("No such file"));
    }

    #[test]
    fn a_new_key_is_a_generation_and_the_one_before_stays() {
        let key = |n: u8| TenantKey::new([n; 16]);
        let mut keys = TenantKeys::default();
        for (n, generation) in [(1, 1), (1, 1), (2, 2), (3, 3)] {
            let before = keys.of.get("blue").cloned();
            keys.add("blue", key(n), before.as_ref());
            assert_eq!(keys.generation("blue"), KeyGeneration(generation));
        }
        assert_eq!(keys.keys("blue"), [key(3), key(2)]);
        assert!(keys.keys("red").is_empty());
        assert!(!format!("{keys:?}").contains('3') || format!("{keys:?}").contains("(3)"));
    }
}
