//! Memory made of the model checker's atomics.

use loom::sync::atomic::{AtomicU64, Ordering};
use omniverb_ring::{UserMemory, WordMemory};
use std::sync::Arc;

/// A few words at chosen offsets; nothing else may be touched.
#[derive(Clone)]
pub struct Words {
    cells: Arc<[(usize, AtomicU64)]>,
    length: usize,
}

impl Words {
    /// Words at these offsets, zero.
    pub fn at(length: usize, offsets: impl IntoIterator<Item = usize>) -> Words {
        let cells = offsets.into_iter().map(|offset| (offset, AtomicU64::new(0))).collect();
        Words { cells, length }
    }

    /// Words everywhere, zero.
    pub fn all(length: usize) -> Words {
        Words::at(length, (0..length).step_by(8))
    }
}

impl WordMemory for Words {
    fn word(&self, offset: usize) -> &AtomicU64 {
        let cell = self.cells.iter().find(|(at, _)| *at == offset);
        &cell.unwrap_or_else(|| panic!("no word at {offset:#x}")).1
    }

    fn length(&self) -> usize {
        self.length
    }

    // Bytes are copied a word at a time, relaxed: a copy that the protocol does not order would
    // show as stale content.
    fn fill(&self, offset: usize, source: UserMemory) {
        let mut bytes = vec![0; source.len().next_multiple_of(8)];
        source.read(&mut bytes);
        for (index, chunk) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(chunk.try_into().unwrap());
            self.word(offset + index * 8).store(word, Ordering::Relaxed);
        }
    }

    fn drain(&self, offset: usize, target: UserMemory) {
        let mut bytes = Vec::new();
        for index in 0..target.len().div_ceil(8) {
            let word = self.word(offset + index * 8).load(Ordering::Relaxed);
            bytes.extend(word.to_ne_bytes());
        }
        target.write(&bytes);
    }
}
