//! Decides which transport moves the bytes of a call: a link, a light connection or the kernel.
//!
//! Carry's route is asked first, unlike in the fast path (`send_whole` in `io_hooks.rs`). A
//! descriptor has one transport, so the order decides nothing; but to ask for the route does what
//! every call owes carried sockets: it takes the broker's answers and reclaims abandoned bytes.
//!
//! Neither [`crate::carry`] nor [`crate::light`] calls this module, and `carry` does not call
//! `light`.

use core::ffi::c_int;

use crate::carry::{self, Route};
use crate::iovecs::Parts;
use crate::light;

/// Sends by what moves the bytes of this descriptor. `native`: the kernel's call.
#[inline(always)]
pub(crate) fn send<'a>(
    fd: c_int,
    parts: impl FnOnce() -> Option<Parts<'a>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    if !carry::is_on() {
        return match light::token_of(fd) {
            Some(at) => light::send(at, parts(), flags, || {}),
            None => native(),
        };
    }
    let route = carry::route_for_send(fd, flags);
    if let Route::Unknown = route
        && let Some(at) = light::token_of(fd)
    {
        return light::send(at, parts(), flags, carry::flush_unread);
    }
    carry::send(route, fd, parts, flags, native)
}

/// Receives by what moves the bytes of this descriptor. `native`: the kernel's call.
#[inline(always)]
pub(crate) fn receive<'a>(
    fd: c_int,
    parts: impl FnOnce() -> Option<Parts<'a>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    if !carry::is_on() {
        return match light::token_of(fd) {
            Some(at) => light::receive(at, parts(), flags),
            None => native(),
        };
    }
    let route = carry::route_for_receive(fd);
    if let Route::Unknown = route
        && let Some(at) = light::token_of(fd)
    {
        carry::flush_unread_before(fd, flags);
        return light::receive(at, parts(), flags);
    }
    carry::receive(route, fd, parts, flags, native)
}
