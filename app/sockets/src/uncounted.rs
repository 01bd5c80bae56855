//! Calls of which no link knows, while they are under way.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Calls of the kernel that send, receive or wait, under way, for sockets that have no link. No
/// link is made meanwhile: nobody would know of them.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);
/// The same where it is known which socket a call is about, by the last bits of its number: others
/// get links meanwhile.
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

fn of(number: c_int) -> &'static AtomicU64 {
    &UNCOUNTED_OF[number as usize % UNCOUNTED_OF.len()]
}

/// As [`count`], for a call that is about this socket only.
pub(crate) fn count_one(number: c_int) {
    of(number).fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// That call is over.
pub(crate) fn uncount_one(number: c_int) {
    less(of(number));
}

/// A call is under way of which a link of this number would not know.
pub(crate) fn is_any_of(number: c_int) -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0 || of(number).load(Ordering::SeqCst) != 0
}

/// A call is under way of which some link would not know.
pub(crate) fn is_any() -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0
        || UNCOUNTED_OF.iter().any(|count| count.load(Ordering::SeqCst) != 0)
}

/// In a child: threads that were at it are not there.
pub(crate) fn begin_anew() {
    UNCOUNTED.store(0, Ordering::Relaxed);
    UNCOUNTED_OF.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
