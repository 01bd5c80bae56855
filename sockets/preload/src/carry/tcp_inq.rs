//! Says how many bytes are unread behind a message (`TCP_INQ`).

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use super::links::{self, Flag};
use super::unread_bytes;
use crate::kernel_socket;

/// Messages that are received say how many bytes are left, if `value` is not 0 (`TCP_INQ`).
pub(crate) fn set_inq(fd: c_int, value: c_int) {
    if let Some(link) = links::enter(fd) {
        if value == 0 {
            link.clear_flag(Flag::ReportsUnread)
        } else {
            link.set_flag(Flag::ReportsUnread);
            ANY_REPORTS_UNREAD.store(true, Ordering::Relaxed);
        }
        link.release();
    }
}

/// Messages of some link have said so.
static ANY_REPORTS_UNREAD: AtomicBool = AtomicBool::new(false);

/// How many bytes are left behind those that were received by memory, if messages say so.
pub(crate) fn left_behind(fd: c_int) -> Option<c_int> {
    if !ANY_REPORTS_UNREAD.load(Ordering::Relaxed) {
        return None;
    }
    let link = links::enter(fd)?;
    let left = link.has(Flag::ReportsUnread).then(|| {
        let left = kernel_socket::queued(fd).unwrap_or(0) + unread_bytes::unread_bytes(link);
        let information = || kernel_socket::Information::of(fd);
        // The kernel says so of the end of the stream (`tcp_inq_hint()`): there is one more read.
        let has_ended = left == 0 && information().is_some_and(|of| of.has_ended());
        c_int::try_from(left.max(usize::from(has_ended))).unwrap_or(c_int::MAX)
    });
    link.release();
    left
}
