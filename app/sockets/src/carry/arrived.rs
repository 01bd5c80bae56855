//! What has come by a link and was not received: bytes in the ring, and the kernel's before them.

use core::ffi::c_int;

use omniverb_carry::Direction;
use rustix::event::PollFlags;
use rustix::thread::sched_yield;

use super::links::{Link, Memory, Note, Word};
use super::{clock, shadow};

/// How long the other end may take to give the kernel what it had written into the ring. Once it
/// took longer it is not waited for again.
const PASSING: u64 = clock::SECOND >> 6;
/// How long bytes of which we have told may be missing, in milliseconds.
const MISSING: u32 = 1000;

/// Bytes in the ring.
#[inline]
pub(super) fn waiting(link: Link) -> usize {
    if link.has(Note::Broken) {
        return 0;
    }
    link.inward().and_then(|direction| direction.waiting().ok()).map_or(0, |(_, bytes)| bytes)
}

/// All that was written was read, and nobody takes anything back.
#[inline]
pub(super) fn is_all_read(direction: &Direction<Memory>) -> bool {
    let place = direction.place();
    !place.is_taken() && place.position() == direction.head().position()
}

/// What was not read is the other end's again, as far as a glance tells.
pub(super) fn is_taken(link: Link) -> bool {
    link.inward().is_some_and(|direction| direction.place().is_taken())
}

/// There are bytes in the ring, and all that are before them were received.
pub(super) fn is_readable(link: Link, number: c_int) -> bool {
    waiting(link) > 0 && link.inward().is_some_and(|direction| is_passed(link, number, &direction))
}

/// The program is told that there are bytes.
pub(super) fn shows(link: Link) {
    link.set(Word::Shown, mark(link).wrapping_add(waiting(link) as u64) + 1);
}

/// Changes when bytes that were in the ring are not there any more.
#[inline]
pub(super) fn mark(link: Link) -> u64 {
    link.inward().map_or(0, |direction| direction.place().position())
}

/// The other end is taking back what it had written, and the kernel may not have it yet.
fn is_passing(link: Link) -> bool {
    let notes = Note::Unwelcoming as u64 | Note::Broken as u64 | Note::Slow as u64;
    link.inward().is_some_and(|direction| {
        let place = direction.place();
        place.is_taken()
            && link.get(Word::Notes) & notes == 0
            && direction.head().since(place).is_ok_and(|bytes| bytes > 0)
    })
}

/// Waits while that is so: whom we have told of bytes finds them. Whether it was so.
pub(super) fn settles(link: Link) -> bool {
    if !is_passing(link) {
        return false;
    }
    let began = clock::now();
    while is_passing(link) {
        if clock::is_over(began, PASSING) {
            link.note(Note::Slow);
        }
        sched_yield();
    }
    true
}

/// Bytes of which we have told are not there, not even after a second, and nobody of this process
/// has received them: the other end, which no correct one does, has shown them and taken them away.
/// Then the connection is reset, rather than that a call sleeps for ever that natively would not.
pub(super) fn are_missing(link: Link, number: c_int) -> bool {
    let others = Note::Unwelcoming as u64 | Note::Shared as u64;
    let shown = link.get(Word::Shown);
    let is_shown = || link.get(Word::Shown) == shown && link.get(Word::Notes) & others == 0;
    if shown == 0 || !is_shown() {
        return false;
    }
    let began = clock::now();
    let wanted = PollFlags::IN.union(PollFlags::RDHUP);
    let is_there = !shadow::events(number, wanted, MISSING).is_empty();
    // It may have been interrupted: then this call sleeps, and the next one finds it so.
    if is_there || !is_shown() || !clock::is_over(began, clock::SECOND >> 2) {
        return false;
    }
    link.note(Note::Broken);
    shadow::reset(number);
    true
}

/// All that went through the kernel before the ring's bytes was received.
#[inline]
pub(super) fn is_passed(link: Link, number: c_int, direction: &Direction<Memory>) -> bool {
    let fence = direction.fence();
    link.get(Word::Passed) == fence.wrapping_add(1) || is_passed_now(link, number, fence)
}

#[cold]
fn is_passed_now(link: Link, number: c_int, fence: u64) -> bool {
    let (has_come, queued) = (has_come(number, fence), shadow::queued(number));
    link.set(Word::Before, queued.unwrap_or(0) as u64);
    let is_passed = has_come && queued == Some(0);
    // What was not read there may have been nobody's to tell of.
    link.stirs();
    if is_passed {
        link.set(Word::Passed, fence.wrapping_add(1));
    }
    is_passed
}

/// All that was to come before the ring's bytes has come, and so many of them were not received.
pub(super) fn is_left_of_kernel(number: c_int, fence: u64, bytes: usize) -> bool {
    has_come(number, fence) && shadow::queued(number) == Some(bytes)
}

/// All that was to come before the ring's bytes has come.
fn has_come(number: c_int, fence: u64) -> bool {
    let information = shadow::Information::of(number);
    information.is_some_and(|information| information.received() >= fence)
}
