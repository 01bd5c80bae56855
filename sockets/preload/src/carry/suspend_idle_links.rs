//! Suspends links that carry next to nothing: the kernel has their sockets for a while.
//!
//! A link costs something where its bytes go by the kernel after all, since the other end sleeps:
//! with more processes than processors, each of which yields to another one, no reader is polling.
//! A sender that had the kernel send again and again, while hardly any bytes went by the link
//! either way, ends both directions, as a process that forks does; both ends forget the link, and
//! offer their socket again later, less often each time that this was in vain
//! ([`super::reattach`]).

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::links::{Flag, Link};
use super::send::AT_ONCE;
use super::{kernel_fallback, reattach};
use crate::kernel_socket;
use crate::tsc_clock;

/// Small messages that the kernel had to send, after which it is looked what the link has carried
/// meanwhile: of a first link, whose ends may have to find together, and of one that comes again.
const CALLS: u64 = 1 << 10;
const AGAIN: u64 = AT_ONCE;
/// Bytes for each of them, both ways together, that are worth a link.
const WORTH: u64 = 32;
/// What makes a link the kernel's for good, or is more than that it carries little.
const OTHERWISE: u64 = Flag::KernelForGood as u64
    | Flag::Abandoned as u64
    | Flag::Broken as u64
    | Flag::Shared as u64
    | Flag::Revoked as u64
    | Flag::Ended as u64;

/// Looks at a link after a call that has sent, if that is due.
#[inline(always)]
pub(super) fn check(link: Link, fd: c_int) {
    if link.congestion.is_counted.get() != 0 {
        check_now(link, fd);
    }
}

#[cold]
fn check_now(link: Link, fd: c_int) {
    let calls = link.congestion.is_counted.swap(0, Ordering::Relaxed);
    let often = if reattach::is_first(fd) { CALLS } else { AGAIN };
    if !calls.is_multiple_of(often) {
        return;
    }
    let carried = link.has_carried();
    let was = link.congestion.carried_then.swap(carried, Ordering::Relaxed);
    let bytes = carried.wrapping_sub(was);
    if bytes < WORTH * often && link.identity.flags.get() & OTHERWISE == 0 {
        // What it has carried in all that time counts if that was worth it.
        let worth = if carried >= WORTH * calls { carried } else { bytes };
        reattach::record_end(fd, worth, tsc_clock::now());
        kernel_socket::keeping_errno(|| kernel_fallback::suspend(link, fd));
    }
}
