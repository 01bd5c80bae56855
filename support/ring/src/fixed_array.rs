//! Provides arrays of a fixed length, in own or in lent memory.
//!
//! What uses one cannot tell the difference: either is a slice, and what becomes of the memory
//! matters only when the array ends. Elements are of types for which any bytes will do. Lent
//! memory is a program's, and a program that writes where it lends breaks its word; what comes of
//! that is other numbers, as of a race with [`crate::UserMemory`], and nothing worse.
// UNSAFETY: arrays in memory that comes from elsewhere, and goes back there.
#![expect(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;
use zerocopy::FromBytes;

/// What lent memory is aligned to, and a multiple of: a cache line, in bytes.
pub const LENT_ALIGNMENT: usize = 64;

/// A lender has no memory for an array, or none that is aligned as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// A lender of memory for arrays.
///
/// # Safety
/// What [`Self::lend`] returned is mapped, readable and writable, for as many bytes as were asked
/// for, is aligned as asked, and belongs to the borrower alone, until that gives it back.
pub unsafe trait Lender: Send + Sync {
    /// Memory of this size and alignment, in bytes. `None`: the borrower is to take its own.
    ///
    /// # Errors
    /// There is none, and there is to be no array either.
    fn lend(&self, bytes: usize, alignment: usize) -> Result<Option<NonNull<u8>>, NoMemory>;

    /// The borrower is done with what [`Self::lend`] returned.
    fn take_back(&self, memory: NonNull<u8>);
}

/// Whose memory the arrays of an object are in: a lender's, or our own.
pub type MemoryLender = Option<Arc<dyn Lender>>;

/// An array of a fixed length.
pub struct FixedArray<T: Copy + FromBytes> {
    first: NonNull<T>,
    length: usize,
    /// Whose memory it is, if not our own. Boxed to be one word: queues have it beside what they
    /// look at with every request.
    lender: Option<Box<Arc<dyn Lender>>>,
}

// SAFETY: it owns its elements, as a box does; lenders may be called by any thread.
unsafe impl<T: Copy + FromBytes + Send> Send for FixedArray<T> {}
// SAFETY: as above; a shared one gives shared elements.
unsafe impl<T: Copy + FromBytes + Sync> Sync for FixedArray<T> {}

impl<T: Copy + FromBytes> FixedArray<T> {
    /// Zeroes, in memory of our own. Pages that are never touched cost nothing.
    #[must_use]
    pub fn own(length: usize) -> FixedArray<T> {
        let layout = layout_of::<T>(length);
        if layout.size() == 0 {
            return FixedArray::default();
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(first) = NonNull::new(memory) else { handle_alloc_error(layout) };
        FixedArray { first: first.cast(), length, lender: None }
    }

    /// Zeroes, in memory that is lent, or in our own if there is no lender or it leaves that to us.
    ///
    /// # Errors
    /// The lender has none.
    pub fn new(length: usize, lending: &MemoryLender) -> Result<FixedArray<T>, NoMemory> {
        const { assert!(align_of::<T>() <= LENT_ALIGNMENT) };
        let size = layout_of::<T>(length).size().next_multiple_of(LENT_ALIGNMENT);
        let Some(lender) = lending.as_ref().filter(|_| size > 0) else {
            return Ok(FixedArray::own(length));
        };
        let Some(memory) = lender.lend(size, LENT_ALIGNMENT)? else {
            return Ok(FixedArray::own(length));
        };
        // SAFETY: the lender's promise: so many bytes, and ours alone.
        unsafe { memory.as_ptr().write_bytes(0, size) };
        Ok(FixedArray { first: memory.cast(), length, lender: Some(Box::new(lender.clone())) })
    }
}

/// That of an array; panics if there cannot be one as long, which only a bug of ours asks for.
fn layout_of<T>(length: usize) -> Layout {
    match Layout::array::<T>(length) {
        Ok(layout) => layout,
        Err(_) => panic!("an array of {length}"),
    }
}

impl<T: Copy + FromBytes> Default for FixedArray<T> {
    /// An empty one, without an owner.
    fn default() -> Self {
        FixedArray { first: NonNull::dangling(), length: 0, lender: None }
    }
}

impl<T: Copy + FromBytes> Deref for FixedArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: so many elements, of which any bytes are valid ones, aligned, written once (as
        // zeroes) at least, and ours: allocated here, or by the lender's promise.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }
}

impl<T: Copy + FromBytes> DerefMut for FixedArray<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.length) }
    }
}

impl<T: Copy + FromBytes> Drop for FixedArray<T> {
    fn drop(&mut self) {
        let layout = layout_of::<T>(self.length);
        match &self.lender {
            Some(lender) => lender.take_back(self.first.cast()),
            None if layout.size() == 0 => {}
            // SAFETY: allocated with this layout, and not used any more.
            None => unsafe { dealloc(self.first.as_ptr().cast(), layout) },
        }
    }
}
