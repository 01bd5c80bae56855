//! Makes memory of the model checker's atomics, for the tests of all crates with such models.
// UNSAFETY: the model checker's plain memory is shared between its threads: that is what it checks.
#![expect(unsafe_code)]

use crate::{UserMemory, WordMemory};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

struct Word {
    offset: usize,
    value: AtomicU64,
    /// Touched by every copy of bytes: two copies that race fail the model.
    bytes: UnsafeCell<()>,
}

// SAFETY: the cell holds nothing; the model checker refuses runs that touch it without order.
unsafe impl Sync for Word {}

/// A few words at chosen offsets; nothing else may be touched.
#[derive(Clone)]
pub struct Words {
    words: Arc<[Word]>,
    length: usize,
}

impl Words {
    /// Words at these offsets, zero.
    pub fn at(length: usize, offsets: impl IntoIterator<Item = usize>) -> Words {
        let word = |offset| Word { offset, value: AtomicU64::new(0), bytes: UnsafeCell::new(()) };
        Words { words: offsets.into_iter().map(word).collect(), length }
    }

    /// Words everywhere, zero.
    pub fn all(length: usize) -> Words {
        Words::at(length, (0..length).step_by(8))
    }

    fn find(&self, offset: usize) -> &Word {
        let word = self.words.iter().find(|word| word.offset == offset);
        word.unwrap_or_else(|| panic!("no word at {offset:#x}"))
    }
}

impl WordMemory for Words {
    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.find(offset).value
    }

    fn length(&self) -> usize {
        self.length
    }

    // Bytes are copied a word at a time, relaxed: a copy that the protocol does not order shows as
    // stale content or as a race.
    fn fill(&self, offset: usize, source: UserMemory) {
        let mut bytes = vec![0; source.len().next_multiple_of(8)];
        source.read(&mut bytes);
        for (index, chunk) in bytes.chunks_exact(8).enumerate() {
            let word = self.find(offset + index * 8);
            word.bytes.with_mut(|_| ());
            word.value.store(u64::from_ne_bytes(chunk.try_into().unwrap()), Ordering::Relaxed);
        }
    }

    fn drain(&self, offset: usize, target: UserMemory) {
        let mut bytes = Vec::new();
        for index in 0..target.len().div_ceil(8) {
            let word = self.find(offset + index * 8);
            word.bytes.with(|_| ());
            bytes.extend(word.value.load(Ordering::Relaxed).to_ne_bytes());
        }
        target.write(&bytes);
    }
}
