//! Waits in an epoll set of which some members are carried or light.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t};
use omniverb_connection::readiness::Timeout;

use crate::{carry, light};

/// `epoll_wait` and the like. `timeout`: `None` for what is no time. `native` makes the program's
/// call, for a part of its array perhaps, and for as long as that says.
#[inline(always)]
pub(crate) fn wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    (timeout, mask): (Option<Timeout>, *const sigset_t),
    native: impl Fn(*mut epoll_event, c_int, Option<Timeout>) -> c_int,
) -> c_int {
    let Some(timeout) = timeout else { return native(events, most, None) };
    carry::wait_in_set(set, events, most, timeout, |events, most, limit| {
        // SAFETY: the program's arguments, or a part of its array.
        let light = unsafe { light::wait_in_set(set, events, most, limit, mask) };
        light.unwrap_or_else(|| native(events, most, Some(limit)))
    })
}
