//! Keeps, for each epoll slot ([`super::epoll_slot`]), which members may be ready.

use omniverb_formats::private_link_slot::SetSlot;

use super::link_bitmap::LinkBitmap;
use crate::anonymous_mappings::{MappedOnce, Sharing, Zeros};

/// Sets with carried members, at a time.
pub(super) const SETS: usize = 64;

// SAFETY: atomic words.
unsafe impl Zeros for SetSlot {}

static SLOTS: [MappedOnce<SetSlot>; SETS] = [const { MappedOnce::new() }; SETS];

/// A slot that was made.
#[inline(always)]
pub(super) fn slot(index: usize) -> Option<&'static SetSlot> {
    SLOTS.get(index)?.get()
}

/// The same, made if it was not.
pub(super) fn make(index: usize) -> Option<&'static SetSlot> {
    SLOTS.get(index)?.make(Sharing::Private)
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
