//! Keeps the pair windows of other machines that a machine has plugged in, by their numbers there
//! (decision 0042).
//!
//! In: files that the machine's supervisor brings. Out: whether some window is one of them, which
//! the kernel says by the file. Each is kept open, so that no other file is taken for it.

use crate::vm_window_allocator::PieceRange;
use omniverb_sys::Extent;
use omniverb_sys::deferred_close::CloseQueue;
use omniverb_sys::extent::FileId;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

/// Those of one machine.
#[derive(Debug, Default)]
pub(crate) struct ForeignWindows(BTreeMap<u8, ForeignWindow>);

/// A window of another machine's.
#[derive(Debug)]
struct ForeignWindow {
    file: OwnedFd,
    id: FileId,
    /// Where in the guest's device it begins.
    at: u64,
    /// Where the file goes in the end.
    bin: CloseQueue,
}

impl ForeignWindows {
    pub(crate) fn has(&self, number: u8) -> bool {
        self.0.contains_key(&number)
    }

    /// Adds a window.
    ///
    /// # Errors
    /// The kernel's error about the file.
    pub(crate) fn add(
        &mut self,
        place: PieceRange,
        file: OwnedFd,
        bin: CloseQueue,
    ) -> io::Result<()> {
        let id = Extent::new(&file, 0, 0).file_id()?;
        self.0.insert(place.number, ForeignWindow { file, id, at: place.at, bin });
        Ok(())
    }

    /// Where the machine has the window that is this file.
    pub(crate) fn place_of(&self, file: FileId) -> Option<PieceRange> {
        let (number, other) = self.0.iter().find(|(_, other)| other.id == file)?;
        Some(PieceRange { number: *number, at: other.at })
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u8> {
        self.0.keys().copied()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> {
        self.0.values().map(|other| other.id)
    }
}

impl Drop for ForeignWindow {
    /// It may be the last descriptor, and the kernel takes long to close a full file.
    fn drop(&mut self) {
        self.bin.put_copy(&self.file);
    }
}
