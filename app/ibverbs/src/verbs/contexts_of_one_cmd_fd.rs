//! Keeps what contexts of one command file have in common.
//!
//! With a kernel's device the objects of a context belong to the file that `cmd_fd` names, and a
//! process that imports a duplicate of it has them too, by their handles. Here the file is a socket
//! of its own for each context that is opened; its inode says which family a descriptor is of.
//! Within the process the objects are the same; another process asks for them at the socket's other
//! end (`docs/decisions/0037-verbs-imports-are-asked-of-the-owner.md`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use omniverb_client::{
    Client, ExportOffer, Import, ImportedRegion, generation, is_command_file, lock,
};
use omniverb_session::device_import_messages;
use omniverb_terms::Errno;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::fstat;

use super::importable_objects::{DeviceMemory, ImportableRegion, ProtectionDomain};
use super::object_counts::ObjectCounts;
use crate::refusal_log::refused;

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

    /// Takes all out.
    fn take_all(&self) -> HashMap<u32, Arc<T>> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Whether it is this object that has the handle.
    pub(super) fn has(&self, handle: u32, object: &Arc<T>) -> bool {
        lock(&self.0).get(&handle).is_some_and(|found| Arc::ptr_eq(found, object))
    }

    /// Takes it out if `may` says so. `EBUSY`: it does not; `ENOENT`: it was destroyed.
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
pub(super) struct SharedCommandFile {
    pub(super) counts: Arc<ObjectCounts>,
    pub(super) domains: Table<ProtectionDomain>,
    pub(super) regions: Table<ImportableRegion>,
    pub(super) device_memory: Table<DeviceMemory>,
    origin: ContextOrigin,
    client: Weak<Client>,
    /// See [`generation`].
    process: u64,
}

/// Whose the context is.
enum ContextOrigin {
    Here(Mutex<ImportAccess>),
    Elsewhere(ImportedContext),
}

/// Where importers from another process come in.
enum ImportAccess {
    /// There is nothing to import yet.
    Shut(Arc<OwnedFd>),
    Open {
        _offer: ExportOffer,
    },
    Gone,
}

/// The context of another process.
pub(super) struct ImportedContext {
    pub(super) import: Import,
    /// Its protection domains, by their handles there.
    domains: Mutex<HashMap<u32, Arc<ProtectionDomain>>>,
}

/// Families of this process, each with its file and the process that opened it: a forked child's
/// copies are its parent's.
static FAMILIES: Mutex<Vec<(File, u64, Weak<SharedCommandFile>)>> = Mutex::new(Vec::new());

fn identity(file: BorrowedFd<'_>) -> rustix::io::Result<File> {
    fstat(file).map(|stat| (stat.st_dev, stat.st_ino))
}

impl SharedCommandFile {
    fn with(origin: ContextOrigin, client: &Arc<Client>, file: File) -> Arc<SharedCommandFile> {
        let (counts, process) = (Arc::default(), generation());
        let (domains, regions, device_memory) = Default::default();
        let client = Arc::downgrade(client);
        let family = Arc::new(SharedCommandFile {
            counts,
            domains,
            regions,
            device_memory,
            origin,
            client,
            process,
        });
        let mut families = lock(&FAMILIES);
        families.retain(|(_, opener, family)| *opener == process && family.strong_count() > 0);
        families.push((file, process, Arc::downgrade(&family)));
        family
    }

    /// A new one, and the file that it is known by.
    pub(super) fn new(client: &Arc<Client>) -> Result<(Arc<SharedCommandFile>, OwnedFd), Errno> {
        let (file, door) = client.command_file()?;
        let known_by = identity(rustix::fd::AsFd::as_fd(&file)).map_err(|_| Errno::EMFILE)?;
        let origin = ContextOrigin::Here(Mutex::new(ImportAccess::Shut(Arc::new(door))));
        Ok((SharedCommandFile::with(origin, client, known_by), file))
    }

    /// That of a descriptor. `EINVAL`: it is no command file; `EOPNOTSUPP`: of a context that is
    /// closed, or of another vNIC.
    pub(super) fn of(
        client: &Arc<Client>,
        file: BorrowedFd<'_>,
    ) -> Result<Arc<SharedCommandFile>, Errno> {
        // First whether it is a socket: a file system may never answer.
        if !is_command_file(file) {
            return Err(Errno::EINVAL);
        }
        let wanted = identity(file).map_err(|_| Errno::EINVAL)?;
        // Two threads that import the same have the same.
        static IMPORTING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = lock(&IMPORTING);
        if let Some(family) = known(wanted) {
            return Ok(family);
        }
        let elsewhere = ImportedContext { import: client.import(file)?, domains: Mutex::default() };
        Ok(SharedCommandFile::with(ContextOrigin::Elsewhere(elsewhere), client, wanted))
    }

    /// The context of another process, if it is one.
    pub(super) fn elsewhere(&self) -> Option<&ImportedContext> {
        match &self.origin {
            ContextOrigin::Here(_) => None,
            ContextOrigin::Elsewhere(elsewhere) => Some(elsewhere),
        }
    }

    /// There is something to import: others are listened to from now on. Where that cannot be they
    /// wait until there is something more.
    pub(super) fn offer(self: &Arc<Self>, client: &Arc<Client>) {
        let ContextOrigin::Here(door) = &self.origin else { return };
        let mut door = lock(door);
        match std::mem::replace(&mut *door, ImportAccess::Gone) {
            ImportAccess::Shut(socket) => {
                let me: Weak<SharedCommandFile> = Arc::downgrade(self);
                match client.offer(socket.clone(), me) {
                    Ok(offer) => *door = ImportAccess::Open { _offer: offer },
                    Err(errno) => {
                        *door = ImportAccess::Shut(socket);
                        let _ = refused!(errno, "imports of a context: no process listens");
                    }
                }
            }
            other => *door = other,
        }
    }

    /// The process's client, while there is one.
    pub(super) fn client(&self) -> Option<Arc<Client>> {
        self.client.upgrade()
    }

    /// Frees a protection domain. `EBUSY` while objects are left in it, `ENOENT`: there is none.
    pub(super) fn deallocate(&self, handle: u32) -> Result<(), Errno> {
        self.domains.take(handle, |pd| !pd.users.are_some())?;
        self.counts.pds.one_less();
        Ok(())
    }

    /// An object of ours is about to be destroyed, or to be another one, and cannot be found any
    /// more: other processes do not have it when this returns.
    ///
    /// # Errors
    /// errno: its pages cannot be moved back, and it is to stay.
    pub(super) fn ends(&self, object: u32, handle: u32) -> Result<(), Errno> {
        match (self.elsewhere(), self.client()) {
            (None, Some(client)) => client.ends(object, handle),
            _ => Ok(()),
        }
    }

    /// Destroys device memory for all processes. `EBUSY` while regions are in it, `ENOENT`: it was
    /// destroyed, others: its pages cannot be moved back.
    pub(super) fn free_device_memory(&self, handle: u32) -> Result<(), Errno> {
        let of = self.device_memory.get(handle);
        self.device_memory.take(handle, |of| !of.users.are_some())?;
        self.ends(device_import_messages::DEVICE_MEMORY, handle).inspect_err(|_| {
            if let Some(of) = of {
                self.device_memory.add(handle, of);
            }
        })
    }
}

impl SharedCommandFile {
    /// The context is closed: what the program has not destroyed ends for all processes.
    fn end_what_is_left(&self) {
        for (handle, _) in self.regions.take_all() {
            let _ = self.ends(device_import_messages::REGION, handle);
        }
        for (handle, of) in self.device_memory.take_all() {
            if self.ends(device_import_messages::DEVICE_MEMORY, handle).is_err() {
                // Its memory must not be something else as long as others have it.
                std::mem::forget(of);
            }
        }
    }
}

impl Drop for SharedCommandFile {
    fn drop(&mut self) {
        if self.process == generation() {
            return self.end_what_is_left();
        }
        if let ContextOrigin::Here(door) = &mut self.origin
            && let ImportAccess::Shut(socket) =
                std::mem::replace(&mut *lock(door), ImportAccess::Gone)
        {
            // A forked child: the number may be in use for something else by now.
            std::mem::forget(socket);
        }
    }
}

/// The family of a file, if it is of this process.
fn known(wanted: File) -> Option<Arc<SharedCommandFile>> {
    let families = lock(&FAMILIES);
    let ours = |(file, opener, _): &&(File, u64, Weak<SharedCommandFile>)| {
        *file == wanted && *opener == generation()
    };
    families.iter().find(ours).and_then(|(.., family)| family.upgrade())
}

impl ImportedContext {
    /// A protection domain of the other process's, by its handle there: what this process calls it.
    pub(super) fn domain(&self, handle: u32) -> Arc<ProtectionDomain> {
        let mut domains = lock(&self.domains);
        domains.entry(handle).or_insert_with(|| ProtectionDomain::of_another(handle)).clone()
    }

    /// A region of the other process's.
    pub(super) fn region(&self, handle: u32) -> Result<Arc<ImportedRegion>, Errno> {
        self.import.region(handle, |pd| self.domain(pd).number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
