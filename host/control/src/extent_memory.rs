//! Makes the memory that owners move granted pages onto: files, or pieces of windows.
//!
//! Extents go down to the owner, to initiators and to the engine; none ever comes up from a client.
//! Checks use our own descriptor. The tables decide which extent is where, except for a piece's
//! place in its window. A piece outlives its last grant: each receiver keeps it until it releases
//! it (`vm_window_piece_loans.rs`).

use crate::link_memory::Memory;
use omniverb_sys::Extent;
use omniverb_tenancy::{FileId, FileRange, MemoryFacts, Neighbour, SessionId};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// The two sides of a pair window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedBy {
    /// The machine that has the window.
    pub(crate) machine: SessionId,
    pub(crate) neighbour: Neighbour,
}

/// Memory for pages.
#[derive(Clone, Debug)]
pub(crate) struct Lending {
    pub(crate) memory: Memory,
    /// The two sides, if it is in a pair window.
    pub(crate) shared_by: Option<SharedBy>,
}

/// By the name that the tables gave them, which bound how many there are.
#[derive(Default)]
pub(crate) struct Extents {
    files: HashMap<FileId, Lending>,
}

impl Extents {
    pub(crate) fn get(&self, file: FileId) -> Option<Lending> {
        self.files.get(&file).cloned()
    }

    /// There is memory of this name from now on.
    pub(crate) fn add(&mut self, file: FileId, lending: Lending) {
        self.files.insert(file, lending);
    }

    /// How a file is now. It is ours, so neither its size nor its kind can be in doubt.
    pub(crate) fn facts(&self, file: FileId) -> Option<MemoryFacts> {
        let seals = self.files.get(&file)?.memory.extent.seals().ok();
        Some(MemoryFacts {
            is_final: seals.is_some_and(|seals| seals.is_final),
            is_write_sealed: seals.is_some_and(|seals| seals.is_write_sealed),
        })
    }

    /// Empties a place before another owner gets it.
    pub(crate) fn empty(&self, place: &FileRange) {
        // A piece of a window is emptied when all its holders have released it.
        let memory = self.files.get(&place.file).map(|lending| &lending.memory);
        if let Some(memory) = memory.filter(|memory| memory.piece().is_none()) {
            // A file that peers cannot write has no second owner: its places are not given again.
            let _ = Extent::new(&memory.extent.file, place.offset, place.length).empty();
        }
    }

    /// Drops a file that is granted to no peer any more; returns it unless a message still carries
    /// it.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<OwnedFd> {
        self.files.remove(&file).and_then(|lending| lending.memory.into_file())
    }
}
