//! Copies bytes into and out of a ring in shared memory, across its end.

use omniverb_ring::{UserMemory, WordMemory};

/// Copies bytes in, `offset` behind a position, where a ring of `LENGTH` bytes (a power of two)
/// begins at `ring`.
#[inline(always)]
pub fn fill<const LENGTH: usize>(
    (memory, ring): (&impl WordMemory, usize),
    (position, offset): (u64, usize),
    source: UserMemory,
) {
    let at = (position as usize).wrapping_add(offset) & (LENGTH - 1);
    let until_end = LENGTH - at;
    memory.fill(ring + at, source.first(until_end));
    if source.len() > until_end {
        memory.fill(ring, source.skip(until_end).first(LENGTH));
    }
}

/// Copies bytes out, from `offset` behind a position on, in the same way.
#[inline(always)]
pub fn drain<const LENGTH: usize>(
    (memory, ring): (&impl WordMemory, usize),
    (position, offset): (u64, usize),
    target: UserMemory,
) {
    let at = (position as usize).wrapping_add(offset) & (LENGTH - 1);
    let until_end = LENGTH - at;
    memory.drain(ring + at, target.first(until_end));
    if target.len() > until_end {
        memory.drain(ring, target.skip(until_end).first(LENGTH));
    }
}
