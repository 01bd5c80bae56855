//! The process that imports a device: asks the one that has opened it.
//!
//! The other process is believed as far as its own memory goes, and no further: what it says an
//! object is must fit what it hands over, which is verified like all memory (`sys::extent`), and no
//! key of its takes the place of one of ours.

use super::connection_to_exporter::{EndsWithExporter, ExporterConnection};
use super::imported_memory::{ImportedMemory, ImportedRegion, pages_of};
use super::peer_socket_thread::PeerSocketThread;
use omniverb_ring::Window;
use omniverb_session::device_import_messages::{self, Ask, Notice};
use omniverb_sys::process_is_dead::files_max;
use omniverb_sys::{Access, Extent, lock};
use omniverb_terms::{Errno, Rkey};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// What all imports of a process may have mapped: files side by side, of which the kernel allows
/// 65530 mappings in all, and bytes.
const MAPPINGS_MAX: usize = 8192;
const BYTES_MAX: usize = 64 << 30;
/// Files of one import, which are open all at once. An honest owner has one for each 256 MiB, two
/// more, and those of what else was imported of the same memory.
const FILES_MAX: usize = 512;

/// How much imports have mapped.
#[derive(Default)]
pub(crate) struct ImportBudget(Mutex<(usize, usize)>);

/// A part of it, given back when it is dropped.
pub(crate) struct ImportShare {
    of: Arc<ImportBudget>,
    mappings: usize,
    bytes: usize,
}

impl ImportShare {
    fn take(of: &Arc<ImportBudget>, mappings: usize, bytes: usize) -> Option<ImportShare> {
        let mut taken = lock(&of.0);
        let all = (taken.0 + mappings, taken.1.checked_add(bytes)?);
        if all.0 > MAPPINGS_MAX || all.1 > BYTES_MAX {
            return None;
        }
        *taken = all;
        Some(ImportShare { of: of.clone(), mappings, bytes })
    }
}

impl Drop for ImportShare {
    fn drop(&mut self) {
        let mut taken = lock(&self.of.0);
        (taken.0, taken.1) = (taken.0 - self.mappings, taken.1 - self.bytes);
    }
}

/// A device that another process has opened.
pub struct Import {
    line: Arc<ExporterConnection>,
    /// By which it is listened to.
    number: u64,
    service: Arc<PeerSocketThread>,
    budget: Arc<ImportBudget>,
    /// Regions that are here. One is imported at a time.
    regions: Mutex<HashMap<u32, Weak<ImportedRegion>>>,
}

impl Import {
    pub(crate) fn new(
        line: ExporterConnection,
        service: Arc<PeerSocketThread>,
        budget: Arc<ImportBudget>,
    ) -> Result<Import, Errno> {
        let line = Arc::new(line);
        let number = service.add(line.clone())?;
        Ok(Import { line, number, service, budget, regions: Mutex::default() })
    }

    fn import(&self, object: u32, handle: u32) -> Result<Notice, Errno> {
        let ask = Ask { what: device_import_messages::IMPORT, object, handle, ..Ask::NONE };
        self.line.ask(ask).map(|(answer, _)| answer).inspect_err(|errno| {
            // It may be counted as ours, later.
            if *errno == Errno::ETIMEDOUT {
                self.line.leave(object, handle);
            }
        })
    }

    /// Whether there is this protection domain.
    ///
    /// # Errors
    /// errno: `ENOENT`, `EIO` or `ETIMEDOUT` without an answer.
    pub fn domain(&self, handle: u32) -> Result<(), Errno> {
        self.import(device_import_messages::DOMAIN, handle).map(drop)
    }

    /// Imports a region, which is part of this process's device then. `pd`: what this process
    /// calls a protection domain of the other's. One that is here already is the same.
    ///
    /// # Errors
    /// errno: `ENOENT`: there is none; `EOPNOTSUPP`, `EPERM`: its memory cannot be had;
    /// `EADDRINUSE`: we have something else of the same key; `ENOMEM`: too much; `EPROTO`: what
    /// came is no region; `EAGAIN`: its pages could not be moved for as long as that is tried;
    /// `EIO` or `ETIMEDOUT` without an answer.
    pub fn region(
        &self,
        handle: u32,
        pd: impl FnOnce(u32) -> u32,
    ) -> Result<Arc<ImportedRegion>, Errno> {
        let mut regions = lock(&self.regions);
        regions.retain(|_, region| region.upgrade().is_some_and(|region| !region.has_ended()));
        if let Some(region) = regions.get(&handle).and_then(Weak::upgrade) {
            return Ok(region);
        }
        self.line.begin_import(handle);
        let made = self.make_region(handle, pd);
        let here = made.as_ref().map(|region| -> Weak<dyn EndsWithExporter> {
            let known: Weak<ImportedRegion> = Arc::downgrade(region);
            known
        });
        // It may have gone while it came.
        let there = self.line.finish_import(handle, here.ok());
        let region = made?;
        if !there {
            return Err(Errno::ENOENT);
        }
        regions.insert(handle, Arc::downgrade(&region));
        Ok(region)
    }

    fn make_region(
        &self,
        handle: u32,
        pd: impl FnOnce(u32) -> u32,
    ) -> Result<Arc<ImportedRegion>, Errno> {
        let device = self.line.device.upgrade().ok_or(Errno::EIO)?;
        if device.shared().regions.count() >= device.regions_max() {
            return Err(Errno::ENOMEM);
        }
        let answer = self.import(device_import_messages::REGION, handle)?;
        // From here on the other process counts it as ours.
        let made = || {
            if answer.iova.checked_add(answer.length).is_none() {
                return Err(Errno::EPROTO);
            }
            let access = ImportedRegion::mapped_for(&answer);
            let window = self.map(device_import_messages::REGION, &answer, access)?;
            if answer.rkey != Rkey(0) && !device.shared().regions.is_free(answer.rkey.0) {
                return Err(Errno::EADDRINUSE);
            }
            ImportedRegion::new(self.line.clone(), &answer, window, pd(answer.pd))
        };
        made().inspect_err(|_| self.line.leave(device_import_messages::REGION, handle))
    }

    /// Imports device memory.
    ///
    /// # Errors
    /// As [`Self::region`].
    pub fn device_memory(&self, handle: u32) -> Result<ImportedMemory, Errno> {
        let answer = self.import(device_import_messages::DEVICE_MEMORY, handle)?;
        let window = self.map(device_import_messages::DEVICE_MEMORY, &answer, Access::ReadWrite);
        let window = window
            .inspect_err(|_| self.line.leave(device_import_messages::DEVICE_MEMORY, handle))?;
        Ok(ImportedMemory::new(self.line.clone(), &answer, window))
    }

    /// Maps the pages of an object, side by side. `of`: what its owner says that it is.
    fn map(&self, object: u32, of: &Notice, access: Access) -> Result<Window, Errno> {
        let bytes = pages_of(of).ok_or(Errno::EPROTO)?;
        let (mut row, mut at) = (Vec::new(), 0);
        let until = ExporterConnection::until(bytes.min(BYTES_MAX));
        while at < bytes {
            let (handle, what) = (of.handle, device_import_messages::PAGES);
            let ask = Ask { what, object, handle, at: at as u64, ..Ask::NONE };
            let (answer, file) = self.line.ask_until(ask, until)?;
            let memory = answer.memory;
            let extent = Extent::new(file.ok_or(Errno::EPROTO)?, memory.offset, memory.length);
            let length = extent.verify().map_err(|_| Errno::EPROTO)?;
            at = at.checked_add(length).filter(|at| *at <= bytes).ok_or(Errno::EPROTO)?;
            row.push(extent);
            if row.len() > FILES_MAX.min(files_max() / 2) {
                return Err(Errno::ENOMEM);
            }
        }
        let share = ImportShare::take(&self.budget, row.len(), bytes).ok_or(Errno::ENOMEM)?;
        Extent::map_row(&row, access, share)
            .map_err(|error| crate::memory_from_daemon::errno(&error))
    }

    /// Has an object destroyed, for all processes. Without the exporter there is no other.
    ///
    /// # Errors
    /// errno: as the verb that does so; `ETIMEDOUT` without an answer.
    pub fn destroy(&self, object: u32, handle: u32) -> Result<(), Errno> {
        let ask = Ask { what: device_import_messages::DESTROY, object, handle, ..Ask::NONE };
        match self.line.ask(ask) {
            Err(Errno::EIO) if self.line.is_lost() => Ok(()),
            answer => answer.map(drop),
        }
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if self.line.device.upgrade().is_some_and(|device| device.is_ours()) {
            self.service.remove(self.number);
        }
    }
}
