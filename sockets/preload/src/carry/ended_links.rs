//! Remembers ended links whose memory is unmapped, until the broker is told.
//!
//! It is told when a socket is offered, which is when it matters, or mail is taken; and before when
//! there are many. What finds no place here it never hears of.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Their names; 0: none.
static NAMES: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// From this place on there are many.
const MANY: usize = 64;
static ARE_MANY: AtomicBool = AtomicBool::new(false);
/// Some are over that have not been left so far.
static ARE_PARTED: AtomicBool = AtomicBool::new(false);

/// One more name. That is all that is done when a link ends, wherever that is.
pub(super) fn put(name: u64) {
    let is_free = |word: &AtomicU64| {
        word.compare_exchange(0, name, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if NAMES.iter().position(is_free).is_none_or(|place| place >= MANY) {
        ARE_MANY.store(true, Ordering::Release);
    }
}

/// Some are over since the broker says so, and this process has them still.
pub(super) fn mark_revoked() {
    ARE_PARTED.store(true, Ordering::Release);
    ARE_MANY.store(true, Ordering::Release);
}

/// The broker may be gone: it is to be listened to.
pub(super) fn check_broker() {
    ARE_MANY.store(true, Ordering::Release);
}

/// Whether there are such links, for a caller that leaves them now.
pub(super) fn take_revoked() -> bool {
    ARE_PARTED.swap(false, Ordering::AcqRel)
}

/// The broker is to be told soon.
#[inline(always)]
pub(super) fn is_due() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// There is no broker that could be told. For the one thread that calls [`mark_revoked`] or
/// [`each`].
pub(super) fn postpone() {
    ARE_MANY.store(ARE_PARTED.load(Ordering::Acquire), Ordering::Release);
}

/// Calls with each name, which is forgotten if that says so. For one thread at a time.
pub(super) fn each(is_done: impl Fn(u64) -> bool) {
    postpone();
    for word in &NAMES {
        let name = word.load(Ordering::Acquire);
        if name != 0 && is_done(name) {
            word.store(0, Ordering::Release);
        }
    }
}
