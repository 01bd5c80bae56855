//! Says what waits to be received: bytes in the ring, and the kernel's before them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::peer_wait_budget::{TimeBudget, TimeSpent};
use omniverb_formats::Direction;
use rustix::event::PollFlags;
use rustix::net::sockopt::Timeout;

use super::links::{Flag, Link, Memory};
use crate::kernel_socket;
use crate::tsc_clock;

/// Budget: how long a call that does not wait looks, awake, while the other end gives the kernel
/// what it had written into a ring: longer than one takes that is doing so.
const PASSING: u64 = 1 << 20;
/// Budget: how long calls of this process do so, in all; then each only as long as one takes that
/// has its processor.
const PASSING_MOST: u64 = 1 << 26;
/// Budget: of so many counts that pass there is one more for that.
const PASSING_ONE_OF: u64 = 50;
const PASSINGS: TimeBudget = TimeBudget { capacity: PASSING_MOST, refill_divisor: PASSING_ONE_OF };
const GLANCE: u64 = 1 << 16;
/// Budget: milliseconds that calls of this process wait, in all, for bytes of which it has told and
/// that other ends have taken away again. An end that is giving them
/// to the kernel takes microseconds, and a few of these milliseconds where it has lost its
/// processor meanwhile.
const MISSING_MS: u64 = 200;
/// Budget: of so many milliseconds that pass there is one more for that.
const MISSING_ONE_OF: u64 = 20;
const MISSING: TimeBudget = TimeBudget { capacity: MISSING_MS, refill_divisor: MISSING_ONE_OF };

/// What of that was spent, by when.
static SPENT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What of [`PASSINGS`] was spent, by when.
static LOOKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Bytes in the ring.
#[inline]
pub(super) fn unread_bytes(link: Link) -> usize {
    if link.has(Flag::Broken) {
        return 0;
    }
    link.inward().and_then(|direction| direction.waiting().ok()).map_or(0, |(_, bytes)| bytes)
}

/// All that was written was read, and no writer takes anything back.
#[inline]
pub(super) fn is_all_read(direction: &Direction<Memory>) -> bool {
    let place = direction.place();
    !place.is_taken() && place.position() == direction.head().position()
}

/// What was not read is the other end's again, as far as a glance tells.
pub(super) fn is_reclaimed(link: Link) -> bool {
    link.inward().is_some_and(|direction| direction.place().is_taken())
}

/// There are bytes in the ring, and all that are before them were received.
pub(super) fn is_readable(link: Link, fd: c_int) -> bool {
    unread_bytes(link) > 0 && link.inward().is_some_and(|direction| is_passed(link, fd, &direction))
}

/// The program is told that there are bytes.
pub(super) fn note_shown(link: Link) {
    link.receiver.shown.set(mark(link).wrapping_add(unread_bytes(link) as u64) + 1);
}

/// Changes when bytes that were in the ring are not there any more.
#[inline]
pub(super) fn mark(link: Link) -> u64 {
    link.inward().map_or(0, |direction| direction.place().position())
}

/// The other end is taking back what it had written, and the kernel may not have it yet.
fn is_passing(link: Link) -> bool {
    let link_flags = Flag::NeverPolls as u64 | Flag::Broken as u64 | Flag::Detached as u64;
    link.inward().is_some_and(|direction| {
        let place = direction.place();
        place.is_taken()
            && link.identity.flags.get() & link_flags == 0
            && direction.head().since(place).is_ok_and(|bytes| bytes > 0)
    })
}

/// Waits a moment while that is so, in a call that began then and must not wait: a caller that was
/// told of bytes mostly finds them. Whether it was so, and is not any more.
pub(super) fn wait_until_passed(link: Link, began: u64) -> bool {
    if !is_passing(link) {
        return false;
    }
    let most = PASSINGS.remaining(spent(&LOOKED), began).clamp(GLANCE, PASSING);
    let mut is_over = false;
    while is_passing(link) && !is_over {
        core::hint::spin_loop();
        is_over = tsc_clock::is_over(began, most);
    }
    let now = tsc_clock::now();
    let looked = now.wrapping_sub(began).min(most);
    store_spent(&LOOKED, PASSINGS.charge(spent(&LOOKED), now, looked));
    !is_over
}

/// By a call that is about to sleep, for as long as it takes. Bytes that were reported are not
/// there, do not come soon, and were not received by this process. So the other end, which no
/// correct library does, has shown them and taken them away. Then the connection is reset: natively
/// the call would not sleep for ever. A time limit of the caller's is kept.
pub(super) fn reset_if_missing(link: Link, fd: c_int) -> bool {
    let others = Flag::NeverPolls as u64 | Flag::Shared as u64;
    let shown = link.receiver.shown.get();
    let is_shown = || link.receiver.shown.get() == shown && link.identity.flags.get() & others == 0;
    if shown == 0 || !is_shown() || kernel_socket::limit(fd, Timeout::Recv).is_some() {
        return false;
    }
    let wanted = PollFlags::IN.union(PollFlags::RDHUP);
    let began = tsc_clock::milliseconds();
    let left = MISSING.remaining(spent(&SPENT), began);
    let is_there = !kernel_socket::events(fd, wanted, left as u32).is_empty();
    let now = tsc_clock::milliseconds();
    if left > 0 {
        store_spent(&SPENT, MISSING.charge(spent(&SPENT), now, (now - began).min(left)));
    }
    // It may have been interrupted: then this call sleeps, and the next one finds it so.
    if is_there || !is_shown() || now - began < left / 2 {
        return false;
    }
    link.set_flag(Flag::Broken);
    kernel_socket::reset(fd);
    true
}

/// Of what calls may wait, as other threads see it, too; roughly.
fn spent(words: &[AtomicU64; 2]) -> TimeSpent {
    let [time, at] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    TimeSpent { time, at }
}

fn store_spent(words: &[AtomicU64; 2], spent: TimeSpent) {
    words[0].store(spent.time, Ordering::Relaxed);
    words[1].store(spent.at, Ordering::Relaxed);
}

/// All that went through the kernel before the ring's bytes was received.
#[inline]
pub(super) fn is_passed(link: Link, fd: c_int, direction: &Direction<Memory>) -> bool {
    let fence = direction.fence();
    link.receiver.passed.get() == fence.wrapping_add(1) || is_passed_now(link, fd, fence)
}

#[cold]
fn is_passed_now(link: Link, fd: c_int, fence: u64) -> bool {
    let (left, queued) = before(fd, fence).unwrap_or((usize::MAX, 0));
    link.receiver.before.set(left.min(queued) as u64);
    let is_passed = left == 0;
    // What was not read there may have been reported to no caller.
    link.mark_maybe_ready();
    if is_passed {
        link.receiver.passed.set(fence.wrapping_add(1));
    }
    is_passed
}

/// How many of the kernel's bytes before a fence were not received, whether they have come or not;
/// and how many bytes have come and were not, whichever these are.
fn before(fd: c_int, fence: u64) -> Option<(usize, usize)> {
    // In this order: what comes in between makes it more, and what others receive less.
    let received = kernel_socket::Information::of(fd)?.received();
    let queued = kernel_socket::queued(fd)?;
    let had = received.saturating_sub(queued as u64);
    Some((usize::try_from(fence.saturating_sub(had)).unwrap_or(usize::MAX), queued))
}

/// How many of the kernel's bytes before a fence were not received.
pub(super) fn unread_before(fd: c_int, fence: u64) -> Option<usize> {
    before(fd, fence).map(|(left, _)| left)
}

/// All that was to come before the ring's bytes has come, and so many of them were not received.
pub(super) fn is_left_of_kernel(fd: c_int, fence: u64, bytes: usize) -> bool {
    has_arrived(fd, fence) && unread_before(fd, fence) == Some(bytes)
}

/// All that was to come before the ring's bytes has come.
pub(super) fn has_arrived(fd: c_int, fence: u64) -> bool {
    let information = kernel_socket::Information::of(fd);
    information.is_some_and(|information| information.received() >= fence)
}
