//! The memory files that owners move pages onto, so that these can be granted.
//!
//! They are made here and go down to the owner, to initiators and to the engine; none ever comes
//! up from a client. What is checked of one is checked on our own descriptor. Which extent is where
//! the tables decide.

use crate::outbox::Parcel;
use omniverb_sys::{Extent, memfd};
use omniverb_tenancy::{FileId, MemoryFacts, Place};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Shows in `/proc/PID/maps` of whoever maps one.
const FILE_NAME: &str = "omniverb-mr";

/// By the name that the tables gave them, which bound how many there are.
#[derive(Default)]
pub(crate) struct Extents {
    files: HashMap<FileId, Parcel>,
}

impl Extents {
    pub(crate) fn file(&self, file: FileId) -> Option<Parcel> {
        self.files.get(&file).cloned()
    }

    /// How a file is now. It is ours, so neither its size nor its kind can be in doubt.
    pub(crate) fn facts(&self, file: FileId) -> Option<MemoryFacts> {
        let seals = Extent::new(self.files.get(&file)?, 0, 0).seals().ok();
        Some(MemoryFacts {
            is_final: seals.is_some_and(|seals| seals.is_final),
            is_write_sealed: seals.is_some_and(|seals| seals.is_write_sealed),
        })
    }

    /// The file, which is made first if it is to have so many bytes.
    pub(crate) fn file_of(&mut self, (file, new): (FileId, Option<u64>)) -> Option<Parcel> {
        if let Some(bytes) = new {
            let made = memfd::create_sealable(FILE_NAME, bytes).ok()?;
            self.files.insert(file, Arc::new(made));
        }
        self.file(file)
    }

    /// Somebody else gets this place.
    pub(crate) fn empty(&self, place: &Place) {
        if let Some(file) = self.files.get(&place.file) {
            // A file that nobody can write has no second owner: its places are not given again.
            let _ = Extent::new(file, place.offset, place.length).empty();
        }
    }

    /// Nobody is given this one any more; the file, if nobody has it on its way.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<OwnedFd> {
        self.files.remove(&file).and_then(Arc::into_inner)
    }
}
