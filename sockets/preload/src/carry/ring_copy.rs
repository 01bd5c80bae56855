//! Copies bytes into and out of the ring, in the normal case.
//!
//! The normal case: the ring has room, or the bytes, and neither the kernel nor a flag of the call
//! has a say. Otherwise nothing is moved, and [`mod@super::send`] and [`mod@super::receive`] go on.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use omniverb_formats::link_layout::RING;
use omniverb_formats::{Direction, Head};
use omniverb_ring::UserMemory;

use super::links::{Flag, Link, Memory};
use super::published_bytes;
use crate::iovecs::Parts;

/// Flags of messages that change nothing about bytes in the ring.
pub(super) const SEND_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE;
/// Flags of calls that receive which are understood here; all others are for the kernel alone.
pub(super) const RECEIVE_FLAGS: c_int = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;
/// Bytes that are taken, or published, at a time: while some are copied at one end, more are at the
/// other.
pub(super) const PIECE: usize = RING / 4;

/// A program's memory, in one piece or several.
pub(super) trait Bytes {
    fn total(&self) -> usize;
    /// Copies all of them into the ring behind a position.
    fn put_in(&self, direction: &Direction<Memory>, position: u64);
    /// Copies so many of the ring's behind a position there.
    fn take_out(&self, direction: &Direction<Memory>, position: u64, length: usize);
}

impl Bytes for UserMemory {
    #[inline(always)]
    fn total(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn put_in(&self, direction: &Direction<Memory>, position: u64) {
        direction.fill(position, 0, *self);
    }

    #[inline(always)]
    fn take_out(&self, direction: &Direction<Memory>, position: u64, length: usize) {
        direction.drain(position, 0, self.first(length));
    }
}

impl Bytes for Parts<'_> {
    #[inline(always)]
    fn total(&self) -> usize {
        Parts::total(self)
    }

    #[inline(always)]
    fn put_in(&self, direction: &Direction<Memory>, position: u64) {
        self.each(0, Parts::total(self), |done, piece| direction.fill(position, done, piece));
    }

    #[inline(always)]
    fn take_out(&self, direction: &Direction<Memory>, position: u64, length: usize) {
        self.each(0, length, |done, piece| direction.drain(position, done, piece));
    }
}

/// What most calls come to that send: all bytes go into the ring. For a caller that has the lock,
/// while the reader polls, and knows that the kernel has nothing new to tell. `false`: nothing has
/// gone there.
#[inline(always)]
pub(super) fn try_send(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    bytes: &impl Bytes,
) -> bool {
    let length = bytes.total();
    if length == 0 || length > PIECE {
        return false;
    }
    // The other end looks at the head itself all the time: it would have to be fetched from there.
    let head = Head::at(link.sender.head.get());
    let mut seen = link.sender.seen_place.get();
    // As if what the kernel has no room for were in use.
    let (room, wanted) = (link.room(), length + RING - link.room());
    let used = direction.used(head, &mut seen, wanted);
    link.sender.seen_place.set(seen);
    let has_room = used.is_ok_and(|used| used + length <= room);
    let link_flags = Flag::Broken as u64 | Flag::Abandoned as u64;
    let is_open = link.sender.is_fenced.get() != 0
        && link.identity.flags.get() & link_flags == 0
        && link.glance.error.get() == 0
        && link.sender.calls.load(Ordering::SeqCst) == 0;
    has_room && is_open && {
        bytes.put_in(direction, head.position());
        published_bytes::publish(link, direction, fd, head, length).is_some()
    }
}

/// What many calls come to that receive: there are bytes in the ring, few enough to be copied at
/// once, and none of the kernel's before them. How many it has got; `None`: nothing was taken.
#[inline(always)]
pub(super) fn try_receive(
    link: Link,
    direction: &Direction<Memory>,
    bytes: &impl Bytes,
    flags: c_int,
) -> Option<isize> {
    let wanted = bytes.total();
    let mut seen = link.receiver.seen_head.get();
    let waiting = direction.waiting_by(&mut seen, wanted);
    link.receiver.seen_head.set(seen);
    let (place, there) = waiting.ok()?;
    let length = there.min(wanted);
    let is_quick = length > 0
        && length <= PIECE
        && flags & (!RECEIVE_FLAGS | libc::MSG_PEEK) == 0
        && (flags & libc::MSG_WAITALL == 0 || length == wanted)
        && link.receiver.passed.get() == direction.fence().wrapping_add(1)
        && !link.has(Flag::Broken);
    if !is_quick {
        return None;
    }
    bytes.take_out(direction, place.position(), length);
    if !direction.take(place, length) {
        return None;
    }
    if link.receiver.shown.get() != 0 {
        link.receiver.shown.set(0);
    }
    Some(length as isize)
}
