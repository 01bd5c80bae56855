//! Locks a ring for the one thread that puts bytes into it, or reclaims them.
//!
//! The lock may be left in the middle (`longjmp` out of a signal handler), or interrupted by a
//! handler that sends. A thread that finds itself the owner, or the lock taken for too long, stops
//! the direction for good and goes on by the kernel. The interrupted call then finds that nothing
//! was published, and goes the same way.

use core::sync::atomic::Ordering;

use omniverb_formats::{Direction, try_guard};
use rustix::thread::sched_yield;

use super::links::{self, Link, Memory};
use crate::vfork_check;

/// How often the lock is tried, and how many of these times without giving the processor away.
const TRIES: u32 = 20_000;
const TRIES_AWAKE: u32 = 100;

/// Has the lock, if it is free.
#[inline(always)]
pub(super) fn try_lock(link: Link) -> bool {
    try_guard::try_lock(&link.sender.lock, vfork_check::this_thread(), || true)
}

/// Has the lock. `false`: the direction was stopped instead.
pub(super) fn lock(link: Link, direction: &Direction<Memory>) -> bool {
    let (word, me) = (&link.sender.lock, vfork_check::this_thread());
    for tried in 0..TRIES {
        match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(who) if who == me => break,
            Err(_) if tried < TRIES_AWAKE => core::hint::spin_loop(),
            Err(_) => sched_yield(),
        }
    }
    direction.stop();
    false
}

pub(super) fn unlock(link: Link) {
    try_guard::unlock(&link.sender.lock);
}

/// In a child: threads that were at it are not there. This one may be in the middle of a call that
/// it has interrupted itself.
pub(super) fn reset_in_child() {
    links::each(|_, link| {
        for lock in link.locks() {
            if lock.load(Ordering::Acquire) != vfork_check::this_thread() {
                lock.store(0, Ordering::Release);
            }
        }
        link.sender.reclaim_lock.set(0);
    });
}
