//! Registered memory: pages of our own, and what the program brings.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::null_mut;

use omniverb_abi::*;
use omniverb_terms::Errno;

use super::iovec::IovecCursor;
use super::wire_format::RemoteBuffer;
use crate::errno::{last, made};
use crate::ibverbs_imports;

/// Pages that peers may write to, or that requests are made from. What is in them changes at any
/// instant: it is copied, never referred to.
pub(crate) struct Memory {
    start: *mut u8,
    bytes: usize,
    mr: *mut ibv_mr,
}

// SAFETY: pages of the process, and an MR, which is for any thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Zeroed, and registered.
    ///
    /// # Safety
    /// `pd` is live, and outlives this.
    pub(crate) unsafe fn new(pd: *mut ibv_pd, bytes: usize, access: u32) -> Result<Memory, Errno> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages, wherever the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(last());
        }
        let mut memory = Memory { start: start.cast(), bytes, mr: null_mut() };
        // SAFETY: the caller's promise; so many bytes.
        memory.mr = unsafe { register(pd, start, bytes, access) }?;
        Ok(memory)
    }

    /// How it is named in requests of our own.
    pub(crate) fn entry(&self, range: &Range<usize>) -> ibv_sge {
        // SAFETY: registered.
        let lkey = unsafe { (*self.mr).lkey };
        let addr = self.start.addr() as u64 + range.start as u64;
        ibv_sge { addr, length: range.len() as u32, lkey }
    }

    /// How it is named in requests of peers.
    pub(crate) fn place(&self, range: Range<usize>) -> RemoteBuffer {
        // SAFETY: registered.
        let key = unsafe { (*self.mr).rkey };
        let address = self.start.addr() as u64 + range.start as u64;
        RemoteBuffer { address, key, length: range.len() as u32 }
    }

    fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: within the pages.
        unsafe { self.start.add(range.start) }
    }

    /// Copies into the program's buffers.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_from`].
    pub(crate) unsafe fn give_to(&self, range: &Range<usize>, to: &mut IovecCursor<'_>) {
        // SAFETY: within the pages; the caller's promise.
        unsafe { to.copy_from(self.at(range), range.len()) };
    }

    /// Copies out of the program's buffers.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_to`].
    pub(crate) unsafe fn take_from(&self, range: &Range<usize>, from: &mut IovecCursor<'_>) {
        // SAFETY: within the pages; the caller's promise.
        unsafe { from.copy_to(self.at(range), range.len()) };
    }

    /// What is there now, read once.
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let start = self.at(&(at..at + N));
        // SAFETY: within the pages.
        core::array::from_fn(|index| unsafe { start.add(index).read_volatile() })
    }

    /// Puts something there.
    pub(crate) fn write<const N: usize>(&self, at: usize, bytes: &[u8; N]) {
        let start = self.at(&(at..at + N));
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: within the pages.
            unsafe { start.add(index).write_volatile(*byte) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe {
            if !self.mr.is_null() {
                ibverbs_imports::ibv_dereg_mr(self.mr);
            }
            libc::munmap(self.start.cast(), self.bytes);
        }
    }
}

/// Registers memory.
///
/// # Safety
/// `pd` is live.
unsafe fn register(
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise; memory that is not there is refused.
    made(unsafe { ibverbs_imports::ibv_reg_mr(pd, start, bytes, access.cast_signed()) })
}

/// Memory of the program's that the peer may write to.
pub(crate) struct LentMemory {
    mr: *mut ibv_mr,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

// SAFETY: an MR is for any thread.
unsafe impl Send for LentMemory {}

impl LentMemory {
    /// Registers it.
    ///
    /// # Safety
    /// `pd` is live, and outlives this.
    pub(crate) unsafe fn new(
        pd: *mut ibv_pd,
        start: *mut c_void,
        bytes: usize,
        access: u32,
    ) -> Result<LentMemory, Errno> {
        // SAFETY: the caller's promise.
        let mr = unsafe { register(pd, start, bytes, access) }?;
        Ok(LentMemory { mr, start: start.addr(), bytes })
    }

    /// How it is named in requests of peers.
    pub(crate) fn place(&self) -> RemoteBuffer {
        // SAFETY: registered.
        let key = unsafe { (*self.mr).rkey };
        let length = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        RemoteBuffer { address: self.start as u64, key, length }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe { ibverbs_imports::ibv_dereg_mr(self.mr) };
    }
}
