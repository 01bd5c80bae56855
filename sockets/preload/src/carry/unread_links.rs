//! Remembers the links whose rings may have unread bytes.
//!
//! These bytes go through the kernel when this end sleeps, or the reader has left.
//!
//! A thread that puts bytes into a ring sets the mark before, and looks afterwards whether it is
//! still set: the link has a field for it ([`omniverb_formats::private_link_slot::Sender::dirty`]).
//! A thread that finds none there clears the mark first, and then looks whether there are some.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::link_bitmap::{self, LinkBitmap};

static DIRTY: [AtomicU64; link_bitmap::WORDS] = [const { AtomicU64::new(0) }; link_bitmap::WORDS];
/// How many these are, at most.
static HOW_MANY: AtomicU64 = AtomicU64::new(0);

/// In a child: threads that were about to count are not there.
pub(super) fn begin_anew() {
    HOW_MANY.store(all().count(), Ordering::Relaxed);
}

/// All of them.
pub(super) fn all() -> LinkBitmap {
    LinkBitmap::new(&DIRTY)
}

/// There may be some.
#[inline(always)]
pub(super) fn is_any() -> bool {
    HOW_MANY.load(Ordering::Relaxed) != 0
}

/// The link of this index, whose word this is, may have some.
pub(super) fn put(index: u32, word: &AtomicU64) {
    word.store(1, Ordering::SeqCst);
    // Never less than there are, for any thread that looks.
    HOW_MANY.fetch_add(1, Ordering::SeqCst);
    if all().put(index) {
        HOW_MANY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// It is not said to have any. To be looked at after this.
pub(super) fn take(index: u32, word: &AtomicU64) {
    word.swap(0, Ordering::SeqCst);
    if all().take(index) {
        HOW_MANY.fetch_sub(1, Ordering::SeqCst);
    }
    fence(Ordering::SeqCst);
}
