//! Waits in an epoll set of which some members are carried or light.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t};
use omniverb_connection::readiness::Timeout;

use crate::user_memory::{UserPtr, UserSliceMut};
use crate::{carry, light};

/// `epoll_wait` and the like. `timeout`: `None` for what is no time. `native` makes the program's
/// call, for a part of its array perhaps, and for as long as that says.
#[inline(always)]
pub(crate) fn wait<'a>(
    set: c_int,
    events: UserSliceMut<'a, epoll_event>,
    (timeout, mask): (Option<Timeout>, UserPtr<'_, sigset_t>),
    native: impl Fn(UserSliceMut<'a, epoll_event>, Option<Timeout>) -> c_int,
) -> c_int {
    let Some(timeout) = timeout else { return native(events, None) };
    carry::wait_in_set(set, events, timeout, |part, limit| {
        let light = light::wait_in_set(set, part, limit, mask);
        light.unwrap_or_else(|| native(part, Some(limit)))
    })
}
