//! Lays out the memory of a link.
//!
//! ```text
//! 0x00000   words of side 0
//! 0x01000   words of side 1
//! 0x02000   ring of bytes, side 0 to side 1
//! 0x12000   ring of bytes, side 1 to side 0
//! ```
//!
//! The broker says which process is side 0. A side's words ([`Side`]) are written by that side, but
//! for its place, which both change (`carried_direction.rs`). What changes with each message is two
//! cache lines away from anything else: processors fetch lines in pairs.

use core::mem::offset_of;

use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::AtomicU64;

/// Bytes of the words of a side.
pub const WORDS: usize = size_of::<Side>();
/// Budget: bytes of a ring, a power of two.
pub const RING: usize = 1 << 16;
/// Bytes of the whole.
pub const BYTES: usize = size_of::<LinkMemory>();

/// A word that has two lines of the cache to itself.
#[repr(C, align(128))]
struct LineAligned(u64);

/// What the side that sends seldom changes.
#[repr(C, align(128))]
struct RarelyChanged {
    fence: u64,
    said: u64,
}

/// The words of a side, as they are in memory.
#[repr(C, align(4096))]
struct Side {
    place: LineAligned,
    head: LineAligned,
    seldom: RarelyChanged,
    polling: LineAligned,
    rang: LineAligned,
}

/// All of it.
#[repr(C)]
struct LinkMemory {
    sides: [Side; 2],
    rings: [[u8; RING]; 2],
}

const _: () = assert!(WORDS == 4096 && BYTES == 0x22000 && RING.is_power_of_two());
const _: () = assert!(PLACE == 0 && HEAD == 0x80 && FENCE == 0x100 && SAID == 0x108);
const _: () = assert!(POLLING == 0x180 && RANG == 0x200);

/// Of the side that receives: how far it has read; see [`crate::Place`].
pub const PLACE: usize = offset_of!(Side, place);
/// Of the side that sends: how far it has written; see [`crate::Head`].
pub const HEAD: usize = offset_of!(Side, head);
/// Of the side that sends: how many bytes went through the kernel before those in the ring.
pub const FENCE: usize = offset_of!(Side, seldom) + offset_of!(RarelyChanged, fence);
/// What a side says of itself: [`SHUT_RECEIVE`] and so on.
pub const SAID: usize = offset_of!(Side, seldom) + offset_of!(RarelyChanged, said);
/// Of the side that receives: not 0 while it looks at the ring.
pub const POLLING: usize = offset_of!(Side, polling);
/// Of the sending side: when it last sent by the kernel to a reader that does not poll, as its
/// processor counts.
pub const RANG: usize = offset_of!(Side, rang);

/// It was shut down for receiving.
pub const SHUT_RECEIVE: u64 = 1;
/// It was shut down for sending.
pub const SHUT_SEND: u64 = 2;
/// The process that closed its last descriptor knew that it was the last.
pub const CLOSED: u64 = 4;

/// How far a side has written.
#[inline(always)]
pub fn head<M: WordMemory>(memory: &M, side: usize) -> &AtomicU64 {
    memory.word(word(side, HEAD))
}

/// What a side says of itself.
#[inline(always)]
pub fn said<M: WordMemory>(memory: &M, side: usize) -> &AtomicU64 {
    memory.word(word(side, SAID))
}

/// When a side last sent by the kernel to a receiver that did not look.
#[inline(always)]
pub fn rang<M: WordMemory>(memory: &M, side: usize) -> &AtomicU64 {
    memory.word(word(side, RANG))
}

/// Where a side's word is.
#[must_use]
pub const fn word(side: usize, word: usize) -> usize {
    (side & 1) * WORDS + word
}

/// Where the ring of what a side sends begins.
#[must_use]
pub const fn ring(side: usize) -> usize {
    offset_of!(LinkMemory, rings) + (side & 1) * RING
}
