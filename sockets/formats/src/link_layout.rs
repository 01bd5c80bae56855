//! Lays out the memory of a link.
//!
//! ```text
//! 0x00000   words of side 0
//! 0x01000   words of side 1
//! 0x02000   ring of bytes, side 0 to side 1
//! 0x12000   ring of bytes, side 1 to side 0
//! ```
//!
//! Side 0 is whoever the broker says. A side's words are written by that side, but for [`PLACE`],
//! which both change (`direction.rs`). What changes with each message is two cache lines away from
//! anything else: processors fetch lines in pairs.

/// Bytes of the words of a side.
pub const WORDS: usize = 4096;
/// Budget: bytes of a ring, a power of two.
pub const RING: usize = 1 << 16;
/// Bytes of the whole.
pub const BYTES: usize = 2 * WORDS + 2 * RING;

/// Of the side that receives: how far it has read; see [`crate::Place`].
pub const PLACE: usize = 0x00;
/// Of the side that sends: how far it has written; see [`crate::Head`].
pub const HEAD: usize = 0x80;
/// Of the side that sends: how many bytes went through the kernel before those in the ring.
pub const FENCE: usize = 0x100;
/// What a side says of itself: [`SHUT_RECEIVE`] and so on.
pub const SAID: usize = 0x108;
/// Of the side that receives: not 0 while it looks at the ring.
pub const POLLING: usize = 0x180;

/// Of the side that sends: when it last sent by the kernel to whoever does not look, as its
/// processor counts.
pub const RANG: usize = 0x200;

/// It was shut down for receiving.
pub const SHUT_RECEIVE: u64 = 1;
/// It was shut down for sending.
pub const SHUT_SEND: u64 = 2;
/// Whoever closed its last descriptor knew that it was.
pub const CLOSED: u64 = 4;

/// Where a side's word is.
#[must_use]
pub const fn word(side: usize, word: usize) -> usize {
    (side & 1) * WORDS + word
}

/// Where the ring of what a side sends begins.
#[must_use]
pub const fn ring(side: usize) -> usize {
    2 * WORDS + (side & 1) * RING
}
