//! Guards an object for one short call without counting the call as a holder.
//!
//! To hold an object is to count oneself up and down; the last holder ends it. A short call only
//! takes the lock of its direction, which it needs anyway. Whatever ends the object looks whether
//! a lock is taken.
//!
//! **Ordering.** A call takes the lock and then looks whether the object is still there under the
//! name by which the call has found it. The end of an object takes the name away and then looks at
//! the locks. A full fence is between the two on both sides, so at least one of them finds what the
//! other did. A thread that finds the lock released (acquire) finds all that was done under it
//! (release).
//!
//! **Too late.** A call that finds another name has touched nothing but the lock. By then that may
//! be the lock of another object in the same place, whose own callers find it taken for that
//! moment. So a lock is never reset with its place: the thread that has taken it releases it, and a
//! place whose lock is taken is not used again.

use crate::carried_direction;
use omniverb_ring::shared_atomics::{AtomicU64, Ordering, fence};

/// Takes the lock, for the thread of this name, which is not 0. `false`: another thread has it, or
/// `is_there` says that the object by which it was found is gone.
#[inline(always)]
pub fn try_lock(lock: &AtomicU64, thread: u64, is_there: impl FnOnce() -> bool) -> bool {
    // SYNC: lock. A fence by itself on x86-64.
    if lock.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return false;
    }
    carried_direction::fence();
    let is_there = is_there();
    if !is_there {
        unlock(lock);
    }
    is_there
}

/// Gives the lock back.
#[inline(always)]
pub fn unlock(lock: &AtomicU64) {
    // SYNC: lock
    lock.store(0, Ordering::Release);
}

/// The owner of each of these locks; 0: none. For a caller that has taken the name away before: no
/// owner comes after that.
pub fn owners<const LOCKS: usize>(locks: [&AtomicU64; LOCKS]) -> [u64; LOCKS] {
    fence(Ordering::SeqCst);
    // SYNC: lock
    locks.map(|lock| lock.load(Ordering::Acquire))
}
