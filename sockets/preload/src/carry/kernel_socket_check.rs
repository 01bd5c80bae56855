//! Checks the state of the kernel's socket now and then.
//!
//! What happens to the connection happens there. While bytes go through the ring no call asks the
//! kernel, so it is asked every [`tsc_clock::MOMENT`]: then a call that is made later than that
//! finds what it would have found natively. It is also where a thread can be cancelled, and where
//! it is noticed that the descriptor is for another socket than we know.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use omniverb_formats::link_layout::{CLOSED, SHUT_SEND};
use rustix::event::PollFlags;
use rustix::thread::sched_yield;

use super::links::{Flag, Link};
use super::{connection_watch, published_bytes};
use crate::kernel_socket::{self, Information};
use crate::next_library;
use crate::tsc_clock;
use crate::user_memory::UserSliceMut;

/// What was seen.
pub(super) enum Checked {
    /// These events; none if nothing new was looked at.
    Events(PollFlags),
    /// The descriptor is for another socket.
    OtherSocket,
}

/// The connection is ending, or was reset.
pub(super) const ENDING: PollFlags = PollFlags::RDHUP.union(PollFlags::ERR).union(PollFlags::HUP);
/// How often the kernel is asked for a reset by its own interface, which is there at once: unless
/// it has put that off, for which it needs the processor.
const RESETS: u32 = 4;

/// Looks, if that is long ago.
#[inline(always)]
pub(super) fn check(link: Link, fd: c_int) -> Checked {
    if tsc_clock::is_over(link.glance.looked.get(), tsc_clock::MOMENT) {
        check_now(link, fd)
    } else {
        Checked::Events(PollFlags::empty())
    }
}

/// What was seen of the kernel still holds, as far as a sender can tell at all.
#[inline(always)]
pub(super) fn is_recent(link: Link, now: u64) -> bool {
    now.wrapping_sub(link.glance.looked.get()) < tsc_clock::MOMENT
        || connection_watch::is_calm(link, now)
}

/// The same, as far as is known without asking.
#[inline(always)]
pub(super) fn was_recent(link: Link, now: u64) -> bool {
    now.wrapping_sub(link.glance.looked.get()) < tsc_clock::MOMENT
        || connection_watch::was_calm(link, now)
}

/// Checks, unless that need not be: for a call that does not wait for bytes of the kernel's.
#[inline(always)]
pub(super) fn check_unless_watched(link: Link, fd: c_int) -> Checked {
    if is_recent(link, tsc_clock::now()) {
        Checked::Events(PollFlags::empty())
    } else {
        check_now(link, fd)
    }
}

/// Looks, whenever that was done last.
#[cold]
pub(super) fn check_now(link: Link, fd: c_int) -> Checked {
    // A thread that changes how it waits says so by another word here: then what is seen below is
    // old, and not believed before it is seen again. The value is no recent time.
    let began = (tsc_clock::now() ^ 1 << 63).max(1);
    link.glance.looked.set(began);
    let mut one = [libc::pollfd { fd, events: kernel_socket::ALL.bits() as i16, revents: 0 }];
    // It may be left: nothing is held here.
    kernel_socket::keeping_errno(|| next_library::poll(UserSliceMut::of(&mut one), 0));
    let [one] = one;
    let events = PollFlags::from_bits_retain(one.revents as u16);
    if kernel_socket::cookie(fd) != Some(link.identity.cookie.get()) {
        return Checked::OtherSocket;
    }
    let is_non_blocking = kernel_socket::is_non_blocking(fd);
    let (word, now) = (&link.glance.looked, tsc_clock::now().max(1));
    if word.compare_exchange(began, now, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        if is_non_blocking {
            link.set_flag(Flag::NonBlocking);
        } else {
            link.clear_flag(Flag::NonBlocking);
        }
    }
    if events.intersects(ENDING) {
        // Of that it is not told again.
        link.clear_flag(Flag::Watched);
        settle(link, fd, events);
        _ = tells_of_reset(link, fd, events);
    }
    Checked::Events(events)
}

/// Once it is seen that the other end has gone without a word, with bytes in the ring that it has
/// not read: natively the kernel would have reset the connection when it went. It does not know of
/// these bytes, so it is sent them now, and resets; the error is ours to tell, once.
fn settle(link: Link, fd: c_int, events: PollFlags) {
    if link.has(Flag::PeerGone) || link.has(Flag::Broken) {
        return;
    }
    let Some(outward) = link.outward() else { return };
    if Information::of(fd).is_none_or(|information| !information.has_ended()) {
        return;
    }
    let has_said = link.peer_said() & (CLOSED | SHUT_SEND) != 0;
    link.set_flag(Flag::PeerGone);
    outward.stop();
    let is_left = outward.head().since(outward.place()).is_ok_and(|bytes| bytes > 0);
    if has_said || !is_left || events.contains(PollFlags::ERR) {
        return;
    }
    published_bytes::flush(link, fd);
    link.set_flag(Flag::Resets);
    for _ in 0..RESETS {
        if tells_of_reset(link, fd, kernel_socket::events(fd, PollFlags::empty(), 0)) {
            return;
        }
        sched_yield();
    }
}

/// The connection was reset for bytes that its other end had not read, which is reported once. No
/// call waits for that: it may never come by a network.
fn tells_of_reset(link: Link, fd: c_int, events: PollFlags) -> bool {
    let is_reset = link.has(Flag::Resets) && events.contains(PollFlags::HUP);
    if is_reset {
        link.clear_flag(Flag::Resets);
        kernel_socket::take_error(fd);
        link.set_error(libc::ECONNRESET);
    }
    is_reset
}

/// An error that is to be told, once.
pub(super) fn take_error(link: Link) -> Option<c_int> {
    if link.glance.error.get() == 0 {
        return None;
    }
    let error = link.glance.error.swap(0, Ordering::AcqRel);
    (error != 0).then_some(error as c_int)
}
