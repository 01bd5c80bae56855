//! Calls of which no link knows, while they are under way.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Calls of the kernel that send, receive or wait, under way, for sockets that have no link. No
/// link is made meanwhile: nobody would know of them.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

/// A call is about to begin of which no link will know: none is made meanwhile.
pub(crate) fn count() {
    UNCOUNTED.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Some such call is under way.
pub(crate) fn is_any() -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0
}

/// The call is over.
pub(crate) fn uncount() {
    // In a child of this call's process it was over before.
    let less = |count: u64| count.checked_sub(1);
    _ = UNCOUNTED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// In a child: threads that were at it are not there.
pub(crate) fn begin_anew() {
    UNCOUNTED.store(0, Ordering::Relaxed);
}
