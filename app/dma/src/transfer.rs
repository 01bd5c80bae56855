//! A transfer: the program's struct, and what is kept of it while it is under way.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;

use omniverb_terms::Errno;

use crate::errno::EINPROGRESS;
use crate::local_buffer::LocalBuffer;
use crate::transfer_slots::Transfer;

/// `struct omv_dma_transfer`.
#[repr(C)]
pub struct omv_dma_transfer {
    /// The buffer that is written to. One of the two is the program's, the other a node's.
    pub to: *mut c_void,
    /// The buffer that is read from.
    pub from: *mut c_void,
    /// Bytes from the beginning of `to`.
    pub to_offset: u64,
    /// Bytes from the beginning of `from`.
    pub from_offset: u64,
    /// In bytes, 1 at least; with 0 it is refused (`EINVAL`).
    pub length: u64,
    /// Called when it is done, if there is one.
    pub done: Option<unsafe extern "C" fn(*mut omv_dma_transfer)>,
    /// Whatever the program wants; never looked at.
    pub context: *mut c_void,
    /// Zero, an error number, or `EINPROGRESS`.
    pub status: i32,
    /// Our number of the node.
    pub node: u32,
    /// Zero, some day something.
    pub reserved: [u64; 2],
}

// As the header promises.
const _: () = assert!(size_of::<omv_dma_transfer>() == 80);
const _: () = assert!(core::mem::offset_of!(omv_dma_transfer, status) == 56);

/// The place of a transfer that is under way, or about to be.
#[derive(Clone, Copy)]
pub(crate) struct TransferPlace(*mut omv_dma_transfer);

// SAFETY: the program leaves the struct where it is, and alone, until the transfer is done.
unsafe impl Send for TransferPlace {}

impl TransferPlace {
    /// # Safety
    /// `transfer` is live until it is done.
    pub(crate) unsafe fn new(transfer: *mut omv_dma_transfer) -> Self {
        Self(transfer)
    }

    /// Whether the program is called back.
    pub(crate) fn calls(self) -> bool {
        // SAFETY: the promise of `new`.
        unsafe { (*self.0).done.is_some() }
    }

    fn status(&self) -> &AtomicI32 {
        // SAFETY: the promise of `new`; it is written only by this.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.0).status) }
    }

    /// Its status; orders what was transferred before what the caller does next.
    pub(crate) fn read(&self) -> Errno {
        Errno(self.status().load(Ordering::Acquire).unsigned_abs())
    }

    /// The number of its node, as it was started with.
    pub(crate) fn node(self) -> u32 {
        // SAFETY: the promise of `new`.
        unsafe { (*self.0).node }
    }

    /// It is about to be under way.
    pub(crate) fn begin(self, node: u32) {
        // SAFETY: the promise of `new`.
        unsafe { (*self.0).node = node };
        self.status().store(EINPROGRESS.raw(), Ordering::Relaxed);
    }

    /// It is done. Not to be used any more: the program may have it back.
    pub(crate) fn finish(self, status: Errno) {
        self.status().store(status.raw(), Ordering::Release);
    }

    /// It is done, and the program is called.
    pub(crate) fn call(self, status: Errno) {
        // SAFETY: the promise of `new`.
        let done = unsafe { (*self.0).done };
        self.finish(status);
        if let Some(done) = done {
            // SAFETY: the program's function, and its struct.
            unsafe { done(self.0) };
        }
    }
}

/// What is kept of a transfer that the device has.
pub(crate) struct UnderWay {
    pub(crate) place: TransferPlace,
    pub(crate) own: Arc<LocalBuffer>,
    /// Of the node's buffer.
    pub(crate) serial: u64,
    pub(crate) reads: bool,
    pub(crate) calls: bool,
}

impl Transfer for UnderWay {
    fn reads(&self) -> bool {
        self.reads
    }

    fn calls(&self) -> bool {
        self.calls
    }
}
