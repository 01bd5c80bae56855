//! What contexts of one command file have in common.
//!
//! With a kernel's device the objects of a context belong to the file that `cmd_fd` names, and who
//! imports a duplicate of it has them too, by their handles. Here the file is an empty memory file
//! of its own for each context that is opened; its inode says which family a descriptor is of. The
//! objects are this process's memory, so the file of another process leads to nothing
//! (`docs/decisions/0033-imports-are-within-a-process.md`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use omniverb_client::{generation, lock};
use omniverb_terms::Errno;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};

use super::counts::Counts;
use super::objects::{DeviceMemory, Protection, Registered};

/// Device and inode of a file.
type File = (u64, u64);

/// Objects by their handles.
pub(super) struct Table<T>(Mutex<HashMap<u32, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(Mutex::default())
    }
}

impl<T> Table<T> {
    pub(super) fn add(&self, handle: u32, object: Arc<T>) {
        lock(&self.0).insert(handle, object);
    }

    pub(super) fn get(&self, handle: u32) -> Option<Arc<T>> {
        lock(&self.0).get(&handle).cloned()
    }

    /// Whether it is this object that has the handle.
    pub(super) fn has(&self, handle: u32, object: &Arc<T>) -> bool {
        lock(&self.0).get(&handle).is_some_and(|found| Arc::ptr_eq(found, object))
    }

    /// Takes it out if `may` says so. `EBUSY`: it does not; `ENOENT`: somebody has destroyed it.
    pub(super) fn take(&self, handle: u32, may: impl FnOnce(&T) -> bool) -> Result<(), Errno> {
        let mut objects = lock(&self.0);
        match objects.get(&handle) {
            None => Err(Errno::ENOENT),
            Some(object) if !may(object) => Err(Errno::EBUSY),
            Some(_) => {
                objects.remove(&handle);
                Ok(())
            }
        }
    }
}

/// What contexts of one command file have in common: limits, and what can be imported.
#[derive(Default)]
pub(super) struct Family {
    pub(super) counts: Arc<Counts>,
    pub(super) domains: Table<Protection>,
    pub(super) regions: Table<Registered>,
    pub(super) device_memory: Table<DeviceMemory>,
}

/// Families of this process, each with its file and the process that opened it: a forked child's
/// copies are its parent's.
static FAMILIES: Mutex<Vec<(File, u64, Weak<Family>)>> = Mutex::new(Vec::new());

/// A file that nobody can write to: how a command file is known from others.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::WRITE);

fn identity(file: BorrowedFd<'_>) -> rustix::io::Result<File> {
    fstat(file).map(|stat| (stat.st_dev, stat.st_ino))
}

impl Family {
    /// A new one, and the file that it is known by.
    pub(super) fn new() -> rustix::io::Result<(Arc<Family>, OwnedFd)> {
        let file = omniverb_sys::memfd::unsealed("omniverb-context", 0)?;
        fcntl_add_seals(&file, SEALS)?;
        let family = Arc::new(Family::default());
        let mut families = lock(&FAMILIES);
        families.retain(|(_, opener, family)| *opener == generation() && family.strong_count() > 0);
        let known_by = identity(rustix::fd::AsFd::as_fd(&file))?;
        families.push((known_by, generation(), Arc::downgrade(&family)));
        Ok((family, file))
    }

    /// That of a descriptor. `EINVAL`: it is no command file; `EOPNOTSUPP`: of a context of another
    /// process, or of one that is closed.
    pub(super) fn of(file: BorrowedFd<'_>) -> Result<Arc<Family>, Errno> {
        let wanted = identity(file).map_err(|_| Errno::EINVAL)?;
        if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(Errno::EINVAL);
        }
        let families = lock(&FAMILIES);
        let ours = |(file, opener, _): &&(File, u64, Weak<Family>)| {
            *file == wanted && *opener == generation()
        };
        let found = families.iter().find(ours).and_then(|(.., family)| family.upgrade());
        found.ok_or(Errno::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn a_duplicate_leads_to_the_same_family() {
        let (one, file) = Family::new().unwrap();
        let (_other, other_file) = Family::new().unwrap();
        let again = file.try_clone().unwrap();
        assert!(Arc::ptr_eq(&one, &Family::of(again.as_fd()).unwrap()));
        assert!(!Arc::ptr_eq(&one, &Family::of(other_file.as_fd()).unwrap()));
        drop(one);
        assert_eq!(Family::of(again.as_fd()).err(), Some(Errno::EOPNOTSUPP), "it is closed");
    }

    #[test]
    fn other_files_are_no_contexts() {
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(Family::of(plain.as_fd()).err(), Some(Errno::EINVAL));
        let theirs = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let theirs = memfd_create("of another process", theirs).unwrap();
        fcntl_add_seals(&theirs, SEALS).unwrap();
        assert_eq!(Family::of(theirs.as_fd()).err(), Some(Errno::EOPNOTSUPP));
    }

    #[test]
    fn an_object_is_destroyed_once() {
        let table = Table::default();
        table.add(7, Arc::new(1));
        assert_eq!(table.get(7).as_deref(), Some(&1));
        assert_eq!(table.take(7, |_| false), Err(Errno::EBUSY));
        assert_eq!(table.take(7, |_| true), Ok(()));
        assert_eq!(table.take(7, |_| true), Err(Errno::ENOENT));
        assert_eq!(table.get(7), None);
    }
}
