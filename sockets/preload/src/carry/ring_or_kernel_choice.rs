//! Decides how the bytes of a call go: by a ring, or by the kernel.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use omniverb_formats::private_link_slot::{Field, LinkSlot};

use super::broker_dispatch;
use super::links::{self, Flag, Link};
use super::offer_sockets_to_broker::{self, LinkLookup};
use super::reattach::{self, LinkFate};
use crate::running_call_counts;

/// The link that a call which sends uses; or what the kernel's call gave where there is none.
#[inline(always)]
pub(super) fn link_for_send(
    route: Route,
    fd: c_int,
    native: &impl Fn() -> isize,
) -> Result<Link, isize> {
    match route {
        Route::Ring(link) => Ok(link),
        Route::Suspended(link) => Err(call_suspended(link, native)),
        Route::Unknown => {
            link_for_call(fd, offer_sockets_to_broker::enter(fd), |slot| &slot.sender.calls, native)
        }
    }
}

/// Which way bytes of a descriptor go.
pub(crate) enum Route {
    /// It has a link with memory, held.
    Ring(Link),
    /// The same, by which nothing comes any more: all is the kernel's.
    Suspended(Link),
    /// It has none, so far.
    Unknown,
}

/// Which way those of this descriptor do.
#[inline(always)]
pub(super) fn route_of(fd: c_int) -> Route {
    broker_dispatch::poll();
    let Some(link) = links::enter(fd) else { return Route::Unknown };
    let has_memory = link.identity.memory.get() != 0;
    let next = match link.has(Flag::Reattachable) {
        true => reattach::fate(link, fd),
        false => LinkFate::Active,
    };
    match next {
        LinkFate::Active if has_memory => return Route::Ring(link),
        LinkFate::Suspended if has_memory => return Route::Suspended(link),
        _ => link.release(),
    }
    Route::Unknown
}

/// A call by a link that rests. It is held meanwhile, so that no other one comes.
#[cold]
pub(super) fn call_suspended(link: Link, native: impl Fn() -> isize) -> isize {
    let result = native();
    link.release();
    result
}

/// The link that a call uses; or what the kernel's call gave where there is none. `counts`: the
/// field of those that are in such a call, while its link may come.
pub(super) fn link_for_call(
    fd: c_int,
    found: LinkLookup,
    counts: fn(&LinkSlot) -> &Field,
    native: &impl Fn() -> isize,
) -> Result<Link, isize> {
    match found {
        LinkLookup::Carried(link) => Ok(link),
        LinkLookup::Offered(link) => {
            counts(&link).fetch_add(1, Ordering::SeqCst);
            // Its memory may have come before that was said: then there may be bytes in the ring,
            // or this end may be polling already.
            let has_come = link.identity.memory.load(Ordering::SeqCst) != 0;
            let result = if has_come { None } else { Some(native()) };
            counts(&link).fetch_sub(1, Ordering::SeqCst);
            result.map_or(Ok(link), |result| {
                link.release();
                Err(result)
            })
        }
        LinkLookup::Counted => {
            let result = native();
            running_call_counts::uncount_one(fd);
            Err(result)
        }
        LinkLookup::Other => Err(native()),
    }
}
