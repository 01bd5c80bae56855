//! Maps one memfd into two processes.
//!
//! In: a size. Out: atomic words and bounded copies; no pointer leaves this file.

// UNSAFETY: maps memory and copies bytes that another process may change at the same time. Every
// access is bounds-checked here; words are atomics and bytes are only moved, never interpreted.
#![expect(unsafe_code)]

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// A shared mapping of a memfd.
pub struct Window {
    base: NonNull<u8>,
    length: usize,
    file: Arc<OwnedFd>,
}

impl Window {
    /// A fresh window of `length` zero bytes.
    pub fn new(length: usize) -> Result<Self> {
        let file = memfd_create("omniverb-limits", MemfdFlags::CLOEXEC).context("memfd_create")?;
        ftruncate(&file, length as u64).context("cannot size the memfd")?;
        Self::map(Arc::new(file), length)
    }

    /// A second mapping of the same memory, as a peer process has it.
    pub fn again(&self) -> Result<Self> {
        Self::map(Arc::clone(&self.file), self.length)
    }

    fn map(file: Arc<OwnedFd>, length: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            mmap(
                null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &*file,
                0,
            )
        }
        .context("mmap of the memfd")?;
        let base = NonNull::new(base.cast()).context("mmap returned null")?;
        Ok(Self { base, length, file })
    }

    /// The word at byte `offset`.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|e| e <= self.length)
        );
        // SAFETY: in bounds and aligned (checked above, the mapping is page aligned), lives as
        // long as `self`, and both processes access it only as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The whole window as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as in `word`, for every whole word of the mapping.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.length / 8) }
    }

    /// Copies `from` to byte `offset` of the window.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.length));
        // SAFETY: in bounds; a slice of this process never overlaps the mapping.
        unsafe {
            self.base.as_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len())
        }
    }

    /// Copies bytes from `offset` of the window to `to`.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.length));
        // SAFETY: in bounds; a slice of this process never overlaps the mapping.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; borrows of it end before `self` does.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
