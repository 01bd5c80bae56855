//! Sends bytes by the ring or by the kernel, in order.
//!
//! Into the ring while the other end looks there; otherwise what it has not read is taken back and
//! goes through the kernel, and the new bytes behind it. So the ring's bytes are always the last.
//!
//! One thread at a time has the lock ([`super::writer_lock`]) to do either.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use omniverb_formats::Direction;
use omniverb_formats::link_layout::RING;
use rustix::event::PollFlags;
use rustix::net::sockopt::Timeout;

use super::backpressure::{PATIENCE, ROOM, is_left_out, limit, wait_for_room};
use super::kernel_socket_check::{self, Checked, ENDING};
use super::links::{self, Flag, Link, Memory};
use super::published_bytes::{self, is_same_socket, reclaim};
use super::ring_copy::{self, PIECE, SEND_FLAGS};
use super::send_source::{File, Source};
use super::writer_lock::{lock, try_lock, unlock};
use super::{broker, forgotten_links, unread_links, wake_latency};
use crate::iovecs::Parts;
use crate::kernel_socket;
use crate::next_library;
use crate::tsc_clock;
use crate::user_memory::UserSliceMut;

/// The fewest bytes that the kernel has to have room for.
const LEAST: usize = 4096;
/// Rounds of a call that put nothing into the ring: far more than the ends of a correct link make.
const ROUNDS: u32 = 1 << 10;

/// Calls of so many bytes do not count: what the link costs is little beside their copies, and a
/// reader that has much to do may come to look for more.
const LARGE: isize = 1 << 10;
/// After so many it is looked whether the link is worth it ([`super::suspend_idle_links`]).
pub(super) const AT_ONCE: u64 = 1 << 7;

/// Sends. `native` does what the program has called, and the whole of it. The call began at `now`.
#[inline(always)]
pub(super) fn send(
    link: Link,
    fd: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    now: u64,
    native: impl Fn() -> isize,
) -> isize {
    let Some(direction) = link.outward() else { return native() };
    if let Some(parts) = &parts
        && flags & !SEND_FLAGS == 0
        && kernel_socket_check::is_recent(link, now)
        && put_all(link, &direction, fd, parts)
    {
        return parts.total() as isize;
    }
    send_in_parts(link, &direction, fd, parts, flags, native)
}

/// The same for a part of a file; `None`: the kernel sends it.
pub(super) fn send_file(
    link: Link,
    fd: c_int,
    file: Option<File>,
    native: impl Fn() -> isize,
) -> isize {
    let Some(direction) = link.outward() else { return native() };
    match file {
        None if !link.has(Flag::Broken) => by_kernel(link, &direction, fd, (0, 0), native),
        file => send_in_parts(link, &direction, fd, file, 0, native),
    }
}

/// All of it goes into the ring at once, if the lock is free and all is simple. `false`: nothing
/// has gone there.
#[inline(always)]
fn put_all(link: Link, direction: &Direction<Memory>, fd: c_int, parts: &Parts<'_>) -> bool {
    if !direction.is_polling() || !try_lock(link) {
        return false;
    }
    let is_put = ring_copy::try_send(link, direction, fd, parts);
    unlock(link);
    is_put
}

/// The same, whatever it takes.
#[inline(never)]
fn send_in_parts(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    source: Option<impl Source>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    if link.has(Flag::Broken) {
        return native();
    }
    if is_kernels(link, direction, flags) {
        let length = source.as_ref().map_or(usize::MAX, Source::total);
        return by_kernel(link, direction, fd, (flags, length), native);
    }
    match kernel_socket_check::check_unless_watched(link, fd) {
        Checked::OtherSocket => return another(fd, link, native),
        Checked::Events(events) if events.intersects(ENDING) => _ = direction.stop(),
        Checked::Events(_) => {}
    }
    if let Some(error) = kernel_socket_check::take_error(link) {
        kernel_socket::set_errno(error);
        return -1;
    }
    let source = source.filter(|source| source.total() > 0 && flags & !SEND_FLAGS == 0);
    let Some(source) = source else {
        direction.stop();
        return by_kernel(link, direction, fd, (flags, usize::MAX), native);
    };
    let is_waiting = flags & libc::MSG_DONTWAIT == 0 && !link.has(Flag::NonBlocking);
    let sent = put(link, direction, fd, &source, is_waiting);
    if sent == source.total() {
        return sent as isize;
    }
    if sent == 0 {
        return by_kernel(link, direction, fd, (flags, source.total()), native);
    }
    // What was sent counts: an error is for the next call.
    let flags = flags | libc::MSG_NOSIGNAL;
    let before = kernel_socket::errno();
    let rest = (flags, source.total() - sent);
    let more = by_kernel(link, direction, fd, rest, || source.send_rest(fd, sent, flags));
    if more >= 0 {
        return sent as isize + more;
    }
    if kernel_socket::errno() == libc::ECONNRESET {
        link.set_error(libc::ECONNRESET);
    }
    kernel_socket::set_errno(before);
    sent as isize
}

/// The kernel has to send it, and there is nothing that it would have to come behind: its own call
/// says all that a look would.
fn is_kernels(link: Link, direction: &Direction<Memory>, flags: c_int) -> bool {
    let (head, place) = (direction.head(), direction.place());
    if head.is_stopped() {
        forgotten_links::note_if_ended(link);
    }
    let is_empty = !place.is_taken() && place.position() == head.position();
    let is_plain = flags & !SEND_FLAGS == 0 || head.is_stopped();
    let may_put = direction.is_polling() && !head.is_stopped();
    is_empty && is_plain && !may_put && link.glance.error.get() == 0
}

/// A descriptor is for another socket than the call began with. If no hook has seen how that came,
/// it was so before. Otherwise it was closed meanwhile, and the call has nothing to do with what is
/// there now.
pub(super) fn another(fd: c_int, link: Link, native: impl Fn() -> isize) -> isize {
    if links::forget(fd, link) {
        return native();
    }
    kernel_socket::set_errno(libc::EBADF);
    -1
}

/// Puts into the ring what it takes. How much that is.
fn put(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    source: &impl Source,
    is_waiting: bool,
) -> usize {
    let is_open = direction.is_polling() && !direction.head().is_stopped() && !is_left_out(link);
    if !is_open || !lock(link, direction) {
        return 0;
    }
    let (mut sent, mut rounds, mut left) = (0, 0, if is_waiting { PATIENCE } else { ROOM });
    loop {
        let (head, place) = (direction.head(), direction.place());
        let is_ours = !link.has(Flag::Abandoned) && link.sender.calls.load(Ordering::SeqCst) == 0;
        // The broker may have said meanwhile that it is over.
        let is_ours = is_ours && (sent == 0 || !broker::is_any());
        let is_open = direction.is_polling() && !place.is_taken() && is_ours;
        let Ok(bytes) = head.since(place) else {
            link.set_flag(Flag::Broken);
            break;
        };
        if !is_open || link.sender.is_fenced.get() == 0 && !fence(link, direction, fd, bytes) {
            break;
        }
        link.sender.seen_place.set(place.position());
        let wanted = (source.total() - sent).min(PIECE);
        if RING > link.room() && link.room().saturating_sub(bytes) < wanted {
            // What the kernel had has gone on since.
            let room = kernel_socket::room(fd) as u64;
            link.sender.room.set(room.max(link.sender.room.get()));
        }
        let room = link.room();
        let length = wanted.min(room / 2);
        if room.saturating_sub(bytes) < length {
            rounds += 1;
            if rounds > ROUNDS {
                // Its reader says what no reader says.
                link.set_flag(Flag::Broken);
                break;
            }
            if is_waiting && rounds == 1 {
                left = left.min(limit(fd));
            }
            // Others take back what is there before they sleep.
            unlock(link);
            if wait_for_room(link, direction, room, &mut left) && lock(link, direction) {
                continue;
            }
            return sent;
        }
        let length = source.fill(link, direction, head.position(), sent, length);
        if length == 0 {
            break;
        }
        let Some(is_seen) = published_bytes::publish(link, direction, fd, head, length) else {
            break;
        };
        (sent, rounds) = (sent + length, 0);
        if !is_seen || sent == source.total() {
            break;
        }
    }
    unlock(link);
    sent
}

/// From here on bytes go into the ring: as many as the kernel has room for, should they be taken
/// back. Over a link of a network that is little at first.
fn fence(link: Link, direction: &Direction<Memory>, fd: c_int, bytes: usize) -> bool {
    // It grows with what goes through the kernel.
    link.sender.room.set(kernel_socket::room(fd) as u64);
    if bytes > 0 || link.room() < LEAST {
        return false;
    }
    let Some(information) = kernel_socket::Information::of(fd) else { return false };
    direction.set_fence(information.given());
    // Nothing that goes by the kernel says so any more.
    kernel_socket::acknowledge(fd);
    link.sender.is_fenced.set(1);
    true
}

/// Sends by the kernel, behind what is in the ring, with these flags, so many bytes at most.
fn by_kernel(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    (flags, length): (c_int, usize),
    native: impl Fn() -> isize,
) -> isize {
    let (mut has_waited, mut until) = (false, None);
    loop {
        if (has_waited || published_bytes::has_unread(link)) && !is_same_socket(link, fd) {
            // It was closed meanwhile: what is in the ring is not for what is there now.
            return another(fd, link, &native);
        }
        let is_locked = lock(link, direction);
        let done = reclaim(link, direction, fd);
        if done {
            link.sender.calls.fetch_add(1, Ordering::SeqCst);
            link.sender.is_fenced.set(0);
        }
        if is_locked {
            unlock(link);
        }
        if done {
            break;
        }
        // As the kernel would say if it had no room.
        if flags & libc::MSG_DONTWAIT != 0 || kernel_socket::is_non_blocking(fd) {
            kernel_socket::set_errno(libc::EAGAIN);
            return -1;
        }
        published_bytes::flush_all();
        let events = PollFlags::OUT.bits() as i16;
        let mut one = [libc::pollfd { fd, events, revents: 0 }];
        let now = tsc_clock::milliseconds();
        let limit = kernel_socket::limit(fd, Timeout::Send).map(u64::from);
        // All in all: the other end may go on saying that more is unread.
        let until = *until.get_or_insert_with(|| limit.map(|limit| now + limit));
        let limit = until.map_or(-1, |until| until.saturating_sub(now) as c_int);
        // Nothing is held that leaving it would keep.
        match next_library::poll(UserSliceMut::of(&mut one), limit) {
            ..0 => return -1,
            0 => {
                kernel_socket::set_errno(libc::EAGAIN);
                return -1;
            }
            _ => has_waited = true,
        }
    }
    // The kernel has told us while it took what was before these bytes, and does not tell again.
    if let Some(error) = kernel_socket_check::take_error(link) {
        link.sender.calls.fetch_sub(1, Ordering::AcqRel);
        kernel_socket::set_errno(error);
        return -1;
    }
    let is_polling = direction.is_polling();
    if !is_polling {
        wake_latency::note_wakeup_sent(link);
    }
    // What the kernel counts of a message is up to twice its bytes.
    if unread_links::is_any() && kernel_socket::room(fd) < length.saturating_mul(2) {
        // It may wait: until others have got what is before them, perhaps.
        published_bytes::flush_before(fd, flags);
    }
    let result = native();
    link.sender.calls.fetch_sub(1, Ordering::AcqRel);
    if !is_polling && (1..LARGE).contains(&result) {
        counts(link);
    }
    result
}

/// The kernel has sent a small message, since the other end does not look.
fn counts(link: Link) {
    let calls = link.congestion.by_kernel.fetch_add(1, Ordering::Relaxed) + 1;
    if calls.is_multiple_of(AT_ONCE) {
        link.congestion.is_counted.set(calls);
    }
}
