//! A turn at something that may be ended by others, without holding it: for a short call by one end
//! of a link that nobody else of its process makes at this moment.
//!
//! To hold a thing is to count oneself up and down, and whoever is the last one ends it. Who only
//! takes the turn, which it needs anyway, has it in hand as well: whoever ends it looks whether
//! somebody has a turn.
//!
//! **Ordering.** Who comes takes the turn and then looks whether the thing is still there under the
//! name that he has come by; who ends it takes the name away and then looks at its turns. A full
//! fence is between the two on both sides, so at least one of them finds what the other did. Who
//! finds the turn given back (acquire) finds all that was done by it (release).
//!
//! **Too late.** Who finds another name has touched nothing but the turn, by then perhaps that of
//! another thing in the same place, whose own callers find it taken for that moment. So a turn is
//! never reset with its place: it is given back by who has taken it, and a place whose turn is
//! taken is not used anew.

use crate::direction;
use omniverb_ring::sync::{AtomicU64, Ordering, fence};

/// Takes the turn, for the thread of this name, which is not 0. `false`: somebody has it, or
/// `is_there` says that there is nothing any more by the name that it was found by.
#[inline(always)]
pub fn try_lock(lock: &AtomicU64, thread: u64, is_there: impl FnOnce() -> bool) -> bool {
    // SYNC: turn. A fence by itself on x86-64.
    if lock.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return false;
    }
    direction::fence();
    let is_there = is_there();
    if !is_there {
        unlock(lock);
    }
    is_there
}

/// Gives the turn back.
#[inline(always)]
pub fn unlock(lock: &AtomicU64) {
    // SYNC: turn
    lock.store(0, Ordering::Release);
}

/// Who has which of these turns; 0: nobody. For who has taken the name away before: nobody comes
/// after that.
pub fn owners<const LOCKS: usize>(locks: [&AtomicU64; LOCKS]) -> [u64; LOCKS] {
    fence(Ordering::SeqCst);
    // SYNC: turn
    locks.map(|lock| lock.load(Ordering::Acquire))
}
