//! Abstracts memory as an array of 64-bit words, on which ring and doorbell are built.
//!
//! [`crate::Window`] implements it over a shared mapping; the model checker over its own atomics.

use crate::shared_atomics::{AtomicU64, Ordering};
use crate::user_memory::UserMemory;

/// Shared memory, seen as words and as bytes. Offsets are bytes; out of range panics (a bug of
/// ours, never a peer's doing).
pub trait WordMemory {
    /// The word at byte offset `offset`, which is a multiple of 8.
    fn word(&self, offset: usize) -> &AtomicU64;

    /// Length in bytes.
    fn length(&self) -> usize;

    /// Copies from the application's memory. Not atomic; ordered by the next release store.
    fn fill(&self, offset: usize, source: UserMemory);

    /// Copies to the application's memory. Not atomic; ordered by the last acquire load.
    fn drain(&self, offset: usize, target: UserMemory);

    /// Says that what is at these offsets will be read soon. Only a hint; any offset will do.
    #[inline(always)]
    fn prefetch(&self, _offsets: core::ops::Range<usize>) {}

    /// Loads a word.
    #[inline(always)]
    fn load(&self, offset: usize, ordering: Ordering) -> u64 {
        self.word(offset).load(ordering)
    }

    /// Stores a word.
    #[inline(always)]
    fn store(&self, offset: usize, value: u64, ordering: Ordering) {
        self.word(offset).store(value, ordering);
    }
}
