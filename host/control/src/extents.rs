//! The memory that owners move pages onto, so that these can be granted: files, or, for processes
//! of a virtual machine, pieces of its window.
//!
//! They are made here and go down to the owner, to initiators and to the engine; none ever comes
//! up from a client. What is checked of one is checked on our own descriptor. Which extent is where
//! the tables decide, but for the place that a piece has in its window. A piece that nobody is
//! granted any more is not forgotten with that: whoever was told of it has it until he lets go of
//! it (`lent.rs`).

use crate::memory::{Memory, Source};
use omniverb_sys::Extent;
use omniverb_tenancy::{FileId, MemoryFacts, Place};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// Shows in `/proc/PID/maps` of whoever maps one.
const FILE_NAME: &str = "omniverb-mr";

/// By the name that the tables gave them, which bound how many there are.
#[derive(Default)]
pub(crate) struct Extents {
    files: HashMap<FileId, Memory>,
}

impl Extents {
    pub(crate) fn memory(&self, file: FileId) -> Option<Memory> {
        self.files.get(&file).cloned()
    }

    /// How a file is now. It is ours, so neither its size nor its kind can be in doubt.
    pub(crate) fn facts(&self, file: FileId) -> Option<MemoryFacts> {
        let seals = self.files.get(&file)?.extent.seals().ok();
        Some(MemoryFacts {
            is_final: seals.is_some_and(|seals| seals.is_final),
            is_write_sealed: seals.is_some_and(|seals| seals.is_write_sealed),
        })
    }

    /// The memory, which is made first, where the owner's comes from, if it is to have so many
    /// bytes.
    pub(crate) fn memory_of(
        &mut self,
        (file, new): (FileId, Option<u64>),
        source: &Source,
    ) -> Option<Memory> {
        if let Some(bytes) = new {
            self.files.insert(file, source.make_for_pages(FILE_NAME, bytes).ok()?);
        }
        self.memory(file)
    }

    /// Somebody else gets this place.
    pub(crate) fn empty(&self, place: &Place) {
        // A piece of a window is emptied when everybody has let go of it.
        if let Some(memory) = self.files.get(&place.file).filter(|m| m.piece().is_none()) {
            // A file that nobody can write has no second owner: its places are not given again.
            let _ = Extent::new(&memory.extent.file, place.offset, place.length).empty();
        }
    }

    /// Nobody is given this one any more; the file, if nobody has it on its way.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<OwnedFd> {
        self.files.remove(&file).and_then(Memory::into_file)
    }
}
