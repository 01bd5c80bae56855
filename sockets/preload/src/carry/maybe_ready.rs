//! Keeps, for each epoll slot ([`super::epoll_slot`]), which members may be ready.

use core::sync::atomic::AtomicU64;

use omniverb_connection::descriptors::{PIECE, Room};

use super::link_bitmap::{self, LinkBitmap};
use crate::table_memory::Pieces;

/// Sets with carried members, at a time.
pub(super) const SETS: usize = 64;
/// Where in a row those are that are maybe ready; what is before is the slot's own.
const AT: usize = 64;
const _: () = assert!(AT + link_bitmap::WORDS <= PIECE);

static SLOTS: Pieces<SETS> = Pieces::new();

/// The words of a slot that was made.
#[inline(always)]
pub(super) fn slot(index: usize) -> Option<&'static [AtomicU64; PIECE]> {
    SLOTS.piece(index)
}

/// The same, made if it was not.
pub(super) fn make(index: usize) -> Option<&'static [AtomicU64; PIECE]> {
    SLOTS.make(index)
}

/// Those that are maybe ready in a row with these words.
#[inline(always)]
pub(super) fn bits(words: &'static [AtomicU64; PIECE]) -> LinkBitmap {
    LinkBitmap::new(&words[AT..AT + link_bitmap::WORDS])
}

/// The same in the set that a link says that it is in; nothing: it is in none.
#[inline(always)]
pub(super) fn of(set: u64) -> Option<LinkBitmap> {
    slot((set as usize).checked_sub(1)?).map(bits)
}
