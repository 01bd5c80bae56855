//! Maps memory for tables, piece by piece, when it is first needed.
//!
//! A piece that is made stays. Two threads that make the same one at the same time agree by one
//! compare-and-swap, and the other's goes back. A child of `vfork` makes none: what it would write
//! there is not its parent's affair.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use omniverb_connection::descriptors::{PIECE, Room};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

type Piece = [AtomicU64; PIECE];

/// Pieces by index.
pub(crate) struct Pieces<const COUNT: usize>([AtomicPtr<Piece>; COUNT]);

impl<const COUNT: usize> Pieces<COUNT> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; COUNT])
    }
}

impl<const COUNT: usize> Room for Pieces<COUNT> {
    #[inline(always)]
    fn piece(&self, index: usize) -> Option<&Piece> {
        let piece = self.0.get(index)?.load(Ordering::Acquire);
        // SAFETY: what is in the list is a mapping of this size that is never unmapped, and all of
        // it are atomics, for which any bytes are good.
        unsafe { piece.as_ref() }
    }

    fn make(&self, index: usize) -> Option<&Piece> {
        if let Some(piece) = self.piece(index) {
            return Some(piece);
        }
        let place = self.0.get(index)?;
        let bytes = size_of::<Piece>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever the kernel likes.
        let new =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).ok()? };
        let fresh = place.compare_exchange(
            ptr::null_mut(),
            new.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if fresh.is_err() {
            // SAFETY: our own mapping, which nobody else has seen.
            unsafe { munmap(new.cast::<c_void>(), bytes).ok() };
        }
        self.piece(index)
    }
}
