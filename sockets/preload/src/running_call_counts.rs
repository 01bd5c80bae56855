//! Counts running calls that no link knows of, and calls that sleep in epoll sets.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Calls of the kernel that send, receive or wait, under way, for sockets that have no link. No
/// link is made meanwhile: it would not know of them.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);
/// The same where it is known which socket a call is about, by the last bits of its descriptor:
/// others get links meanwhile.
static UNCOUNTED_OF: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A call is about to begin of which no link will know: none is made meanwhile.
pub(crate) fn count() {
    UNCOUNTED.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// The call is over.
pub(crate) fn uncount() {
    less(&UNCOUNTED);
}

fn less(count: &AtomicU64) {
    // In a child of this call's process it was over before.
    let less = |count: u64| count.checked_sub(1);
    _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

fn of(fd: c_int) -> &'static AtomicU64 {
    &UNCOUNTED_OF[fd as usize % UNCOUNTED_OF.len()]
}

/// As [`count`], for a call that is about this socket only.
pub(crate) fn count_one(fd: c_int) {
    of(fd).fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// That call is over.
pub(crate) fn uncount_one(fd: c_int) {
    less(of(fd));
}

/// A call is under way of which a link of this descriptor would not know.
pub(crate) fn is_any_of(fd: c_int) -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0 || of(fd).load(Ordering::SeqCst) != 0
}

/// A call is under way of which some link would not know.
pub(crate) fn is_any() -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0
        || UNCOUNTED_OF.iter().any(|count| count.load(Ordering::SeqCst) != 0)
}

/// Threads that sleep in sets, or are about to, by the last bits of the sets' ids: a sleeper of
/// another set with the same bits counts for both, which costs nothing but speed. A call that is
/// left by `longjmp` or cancellation sleeps for good.
static SLEEPERS: [AtomicU32; 1 << 10] = [const { AtomicU32::new(0) }; 1 << 10];

fn sleepers(set: u32) -> &'static AtomicU32 {
    &SLEEPERS[set as usize % SLEEPERS.len()]
}

/// A thread sleeps in a set, or in one that has the same last bits, or is about to.
#[inline]
pub(crate) fn is_slept_in(set: u32) -> bool {
    sleepers(set).load(Ordering::SeqCst) != 0
}

/// A call of the kernel's that waits in a set is about to begin. Whether the set has a row, and how
/// its members are, is to be looked at after this.
#[inline]
pub(crate) fn falls_asleep(set: u32) {
    sleepers(set).fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// It is over.
#[inline]
pub(crate) fn wakes(set: u32) {
    // In a child of this call's process there was no sleeper any more.
    let less = |count: u32| count.checked_sub(1);
    _ = sleepers(set).fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
}

/// In a child: threads that were at it are not there.
pub(crate) fn begin_anew() {
    UNCOUNTED.store(0, Ordering::Relaxed);
    UNCOUNTED_OF.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    SLEEPERS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
