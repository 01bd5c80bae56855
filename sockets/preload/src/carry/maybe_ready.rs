//! Keeps, for each epoll slot ([`super::epoll_slot`]), which members may be ready.

use core::sync::atomic::AtomicU64;

use omniverb_connection::descriptors::{PIECE, Room};
use omniverb_formats::link_slot::SetSlot;

use super::link_bitmap::LinkBitmap;
use crate::table_memory::Pieces;

/// Sets with carried members, at a time.
pub(super) const SETS: usize = 64;
const _: () = assert!(size_of::<SetSlot>() <= PIECE * size_of::<u64>());

static SLOTS: Pieces<SETS> = Pieces::new();

fn typed(piece: &'static [AtomicU64; PIECE]) -> &'static SetSlot {
    // SAFETY: a piece is atomic words, more than a slot has, and begins with a page.
    unsafe { &*core::ptr::from_ref(piece).cast() }
}

/// A slot that was made.
#[inline(always)]
pub(super) fn slot(index: usize) -> Option<&'static SetSlot> {
    SLOTS.piece(index).map(typed)
}

/// The same, made if it was not.
pub(super) fn make(index: usize) -> Option<&'static SetSlot> {
    SLOTS.make(index).map(typed)
}

/// Members of a slot that may be ready.
#[inline(always)]
pub(super) fn bits(slot: &'static SetSlot) -> LinkBitmap {
    LinkBitmap::new(&slot.maybe_ready)
}

/// The same in the set that a link says that it is in; nothing: it is in none.
#[inline(always)]
pub(super) fn of(set: u64) -> Option<LinkBitmap> {
    slot((set as usize).checked_sub(1)?).map(bits)
}
