//! Bytes that the program sends.
//!
//! Into the ring while the other end looks there; otherwise what it has not read is taken back and
//! goes through the kernel, and the new bytes behind it. So the ring's bytes are always the last.
//!
//! One thread at a time has the turn to do either. It may be left in the middle (`longjmp` out of a
//! signal handler), or interrupted by a handler that sends: whoever finds the turn his own, or
//! taken for too long, stops the direction for good and goes on by the kernel. What was interrupted
//! then finds that nothing was published, and goes the same way.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use omniverb_carry::layout::{CLOSED, RING, SHUT_RECEIVE, SHUT_SEND};
use omniverb_carry::{Direction, Head, direction::Stretch};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::full::{PATIENCE, ROOM, is_left_out, limit, wait_for_room};
use super::links::{self, Link, Memory, Note, Word};
use super::look::{self, ENDING, Seen};
use super::parts::{self, Parts};
use super::{broker, clock, ended, leaving, shadow, waking};
use crate::place;
use crate::slots::{next_poll, next_sendmsg};

/// Flags of messages that change nothing about bytes in the ring.
const PLAIN: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE;
/// The fewest bytes that the kernel has to have room for.
const LEAST: usize = 4096;
/// How often the turn is tried, and how many of these times without giving the processor away.
const TRIES: u32 = 20_000;
const TRIES_AWAKE: u32 = 100;
/// Bytes that are published at a time: while the other end copies some, more are copied in.
const PIECE: usize = RING / 4;
/// Rounds of a call that put nothing into the ring: far more than the ends of a correct link make.
const ROUNDS: u32 = 1 << 10;
/// How often a flush that has to succeed is tried, and how long the kernel has each time to make
/// room, in milliseconds.
const FLUSHES: u32 = 50;
const FLUSH: u32 = 100;
/// How often whoever takes bytes back is waited for, how often of these only by giving the
/// processor away, and how long otherwise, in nanoseconds.
const WAITS: u32 = 12_000;
const WAITS_AWAKE: u32 = 2000;
const WAIT: i64 = 100_000;

/// Calls of so many bytes do not count: what the link costs is little beside their copies, and a
/// reader who has much to do may come to look for more.
const LARGE: isize = 1 << 10;
/// After so many it is looked whether the link is worth it ([`super::resting`]).
pub(super) const AT_ONCE: u64 = 1 << 7;

/// How long who is about to sleep lets others, who look, read what he has sent them: all in all.
const INSTANT: u64 = clock::MOMENT >> 3;

/// Some ring may have bytes that its reader has not read.
static IS_DIRTY: AtomicBool = AtomicBool::new(false);
/// When rings were looked through last that their readers may have left, and how long they are not
/// then.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(clock::MOMENT);

/// Has the turn. `false`: the direction was stopped instead.
fn take_turn(link: Link, direction: &Direction<Memory>) -> bool {
    let (word, me) = (link.word(Word::Writer), place::this_thread());
    for tried in 0..TRIES {
        match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(who) if who == me => break,
            Err(_) if tried < TRIES_AWAKE => core::hint::spin_loop(),
            Err(_) => sched_yield(),
        }
    }
    direction.stop();
    false
}

fn give_turn(link: Link) {
    link.word(Word::Writer).store(0, Ordering::Release);
}

/// Signals are kept from this thread meanwhile.
fn undisturbed<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: sets of signals, which may be zero, of this thread only.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        shadow::keeping_errno(|| libc::sigprocmask(libc::SIG_SETMASK, &all, &raw mut before));
        let result = act();
        let none = core::ptr::null_mut();
        shadow::keeping_errno(|| libc::sigprocmask(libc::SIG_SETMASK, &before, none));
        result
    }
}

/// What the other end has not read goes through the kernel. `false` if there is no room for all of
/// it there now; then the rest is still in the ring. For whoever has the turn, or has stopped the
/// direction.
fn take_back(link: Link, direction: &Direction<Memory>, number: c_int) -> bool {
    let (place, head) = (direction.place(), direction.head());
    if !place.is_taken() && place.position() == head.position() {
        return true;
    }
    link.set(Word::IsFenced, 0);
    let both = SHUT_RECEIVE | SHUT_SEND;
    if link.said() & (both | CLOSED) == both {
        // It can still read what is there. The kernel would reset for it, and does for what comes
        // behind it.
        return true;
    }
    undisturbed(|| {
        let pump = link.word(Word::Pump);
        if !take_pump(pump) {
            // Its bytes may be with the kernel or not: nobody can tell any more.
            link.note(Note::Broken);
            shadow::reset(number);
            return true;
        }
        let done = match direction.take_back() {
            Ok(None) => true,
            Ok(Some(stretch)) => pass(link, direction, number, stretch),
            Err(_) => {
                link.note(Note::Broken);
                true
            }
        };
        pump.store(0, Ordering::Release);
        done
    })
}

/// Who has the pump is undisturbed, too, and waits for nothing. So it is free soon, unless whoever
/// had it is in the process that this one was a copy of, or was cancelled in the middle.
fn take_pump(pump: &AtomicU64) -> bool {
    for tried in 0..WAITS {
        if pump.swap(1, Ordering::Acquire) == 0 {
            return true;
        }
        if tried < WAITS_AWAKE {
            sched_yield();
            continue;
        }
        if tried == WAITS_AWAKE && broker::is_copy() {
            leaving::begin_anew();
        }
        // Not by giving the processor away: a thread that always comes first would keep it.
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: WAIT };
        _ = rustix::thread::nanosleep(&time);
    }
    false
}

/// Gives the kernel what was taken back.
fn pass(link: Link, direction: &Direction<Memory>, number: c_int, stretch: Stretch) -> bool {
    let mut done = 0;
    while done < stretch.bytes {
        // From where it is: this may be the stack of a handler, which has no room for it.
        let Some(memory) = link.memory() else { break };
        let pieces = direction.pieces(stretch, done).map(|(at, length)| memory.bytes(at, length));
        match shadow::send(number, pieces) {
            Ok(sent) => done += sent,
            Err(Errno::INTR) => {}
            Err(error @ (Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) => {
                _ = error;
                break;
            }
            Err(error) => {
                // Nobody is there any more. What the kernel has told us it does not tell again.
                if error != Errno::PIPE {
                    link.set(Word::Error, error.raw_os_error() as u64);
                }
                done = stretch.bytes;
            }
        }
    }
    if done < stretch.bytes {
        // The rest is behind what the kernel has now.
        let given = shadow::Information::of(number).map_or(0, |of| of.given());
        direction.set_fence(given);
    }
    if direction.passed(stretch, done).is_err() {
        link.note(Note::Broken);
    }
    done == stretch.bytes
}

/// What is in the ring goes through the kernel, as far as that has room.
pub(super) fn flush(link: Link, number: c_int) -> bool {
    let Some(direction) = link.outward() else { return true };
    let has_turn = take_turn(link, &direction);
    let done = take_back(link, &direction, number);
    if has_turn {
        give_turn(link);
    }
    done
}

/// The same; all of it. Somebody is about to have the socket who may send behind it, so a
/// connection of which the kernel takes nothing for long is reset: rather that than wrong bytes.
pub(super) fn flush_wholly(link: Link, number: c_int) {
    for _ in 0..FLUSHES {
        if flush(link, number) {
            return;
        }
        shadow::events(number, PollFlags::OUT, FLUSH);
    }
    shadow::reset(number);
}

/// Some ring may have bytes that its reader has not read, and that are to go through the kernel.
pub(super) fn may_have_bytes() {
    IS_DIRTY.store(true, Ordering::Release);
}

/// Before this thread sleeps, or does something for long: nobody is left who would have to wait for
/// us to get what was sent.
#[inline(always)]
pub(super) fn flush_all() {
    if IS_DIRTY.load(Ordering::Relaxed) {
        flush_each();
    }
}

/// Now and then, by calls that do not sleep: what is in the ring of whoever has left it goes
/// through the kernel. Who only looks for an answer would wait for it for ever otherwise.
#[inline(always)]
pub(super) fn give_back() {
    if IS_DIRTY.load(Ordering::Relaxed) {
        give_back_at(clock::now());
    }
}

/// The same for who knows what time it is.
#[inline(always)]
pub(super) fn give_back_at(now: u64) {
    let since = now.wrapping_sub(GIVEN_BACK.load(Ordering::Relaxed));
    if IS_DIRTY.load(Ordering::Relaxed) && since >= PAUSE.load(Ordering::Relaxed) {
        give_back_each();
    }
}

#[cold]
fn give_back_each() {
    let began = clock::now();
    GIVEN_BACK.store(began, Ordering::Relaxed);
    IS_DIRTY.swap(false, Ordering::SeqCst);
    links::each(|number, link| {
        let Some(direction) = link.outward() else { return };
        let (place, head) = (direction.place(), direction.head());
        if place.position() == head.position() {
            return;
        }
        let is_left = place.is_taken() || !direction.is_welcome();
        if !is_left || is_its(link, number) && !flush(link, number) {
            IS_DIRTY.store(true, Ordering::Relaxed);
        }
    });
    // Who has many links is not to do this most of the time.
    let took = clock::now().wrapping_sub(began).min(clock::SECOND);
    PAUSE.store((16 * took).max(clock::MOMENT), Ordering::Relaxed);
}

#[cold]
fn flush_each() {
    // Who puts bytes publishes them and says so then.
    IS_DIRTY.swap(false, Ordering::SeqCst);
    let began = clock::now();
    links::each(|number, link| {
        let Some(direction) = link.outward() else { return };
        // Who looks has them in an instant, and for less than what the kernel takes for them. This
        // may be left by `longjmp`.
        while is_about_to_read(&direction) && !clock::is_over(began, INSTANT) {
            IS_DIRTY.store(true, Ordering::Release);
            core::hint::spin_loop();
        }
        let is_there = direction.place().position() != direction.head().position();
        if is_there && is_its(link, number) && !flush(link, number) {
            IS_DIRTY.store(true, Ordering::Relaxed);
        }
    });
}

/// There are bytes that the other end will find, since it looks.
fn is_about_to_read(direction: &Direction<Memory>) -> bool {
    let place = direction.place();
    place.position() != direction.head().position() && !place.is_taken() && direction.is_welcome()
}

/// There are bytes in the ring that the other end has not read.
pub(super) fn has_bytes(link: Link) -> bool {
    link.outward().is_some_and(|one| one.place().position() != one.head().position())
}

/// The number is still for the link's socket.
pub(super) fn is_its(link: Link, number: c_int) -> bool {
    shadow::cookie(number) == Some(link.get(Word::Cookie))
}

/// Sends. `native` does what the program has called, and the whole of it. The call began at `now`.
#[inline(always)]
pub(super) fn send(
    link: Link,
    number: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    now: u64,
    native: impl Fn() -> isize,
) -> isize {
    let Some(direction) = link.outward() else { return native() };
    if let Some(parts) = &parts
        && flags & !PLAIN == 0
        && now.wrapping_sub(link.get(Word::Looked)) < clock::MOMENT
        && put_all(link, &direction, number, parts)
    {
        return parts.total() as isize;
    }
    send_in_parts(link, &direction, number, parts, flags, native)
}

/// What most calls come to: all of it goes into the ring, and there is nothing else to be thought
/// of. `false`: nothing has gone there.
#[inline(always)]
fn put_all(link: Link, direction: &Direction<Memory>, number: c_int, parts: &Parts<'_>) -> bool {
    let length = parts.total();
    if length == 0 || length > PIECE || !direction.is_welcome() {
        return false;
    }
    let (word, me) = (link.word(Word::Writer), place::this_thread());
    if word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    // The other end looks at the head itself all the time: it would have to be fetched from there.
    let head = Head::at(link.get(Word::Head));
    let mut seen = link.get(Word::SeenPlace);
    // As if what the kernel has no room for were in use.
    let (room, wanted) = (link.room(), length + RING - link.room());
    let used = direction.used(head, &mut seen, wanted);
    link.set(Word::SeenPlace, seen);
    let has_room = used.is_ok_and(|bytes| bytes + length <= room);
    let notes = Note::Broken as u64 | Note::Left as u64;
    let is_open = link.get(Word::IsFenced) != 0
        && link.get(Word::Notes) & notes == 0
        && link.get(Word::Error) == 0
        && link.word(Word::Sending).load(Ordering::SeqCst) == 0;
    let is_published = has_room && is_open && {
        parts.each(0, length, |done, piece| direction.fill(head.position(), done, piece));
        publish(link, direction, number, head, length).is_some()
    };
    give_turn(link);
    is_published
}

/// What was copied in is the other end's. Whether that looks there still; if it does not, it has
/// read that, or the kernel has it. `None`: the direction was stopped, and nothing has happened.
#[inline(always)]
fn publish(
    link: Link,
    direction: &Direction<Memory>,
    number: c_int,
    head: Head,
    length: usize,
) -> Option<bool> {
    IS_DIRTY.store(true, Ordering::Relaxed);
    let is_welcome = direction.publish(head, length)?;
    link.set(Word::Head, head.position().wrapping_add(length as u64));
    // Somebody may have looked before these were there.
    IS_DIRTY.store(true, Ordering::Release);
    if !is_welcome {
        // It went to sleep, or left, at this moment.
        take_back(link, direction, number);
    }
    Some(is_welcome)
}

/// The same, whatever it takes.
#[inline(never)]
fn send_in_parts(
    link: Link,
    direction: &Direction<Memory>,
    number: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    if link.has(Note::Broken) {
        return native();
    }
    if is_kernels(link, direction, flags) {
        return by_kernel(link, direction, number, flags, native);
    }
    match look::look(link, number) {
        Seen::Another => return another(number, link, native),
        Seen::Events(events) if events.intersects(ENDING) => _ = direction.stop(),
        Seen::Events(_) => {}
    }
    if let Some(error) = look::take_error(link) {
        shadow::set_errno(error);
        return -1;
    }
    let Some(parts) = parts.filter(|parts| parts.total() > 0 && flags & !PLAIN == 0) else {
        direction.stop();
        return by_kernel(link, direction, number, flags, native);
    };
    let is_waiting = flags & libc::MSG_DONTWAIT == 0 && !link.has(Note::NonBlocking);
    let sent = put(link, direction, number, &parts, is_waiting);
    if sent == parts.total() {
        return sent as isize;
    }
    if sent == 0 {
        return by_kernel(link, direction, number, flags, native);
    }
    let mut list = parts::list();
    let count = parts.rest(sent, &mut list);
    let message = parts::message(&mut list, count);
    // What was sent counts: an error is for the next call.
    let flags = flags | libc::MSG_NOSIGNAL;
    let before = shadow::errno();
    let more = by_kernel(link, direction, number, flags, || {
        // SAFETY: the message lives across the call, and so do the program's parts.
        unsafe { next_sendmsg(number, &raw const message, flags) }
    });
    if more >= 0 {
        return sent as isize + more;
    }
    if shadow::errno() == libc::ECONNRESET {
        link.set(Word::Error, libc::ECONNRESET as u64);
    }
    shadow::set_errno(before);
    sent as isize
}

/// The kernel has to send it, and there is nothing that it would have to come behind: its own call
/// says all that a look would.
fn is_kernels(link: Link, direction: &Direction<Memory>, flags: c_int) -> bool {
    let (head, place) = (direction.head(), direction.place());
    if head.is_stopped() {
        ended::is_ended(link);
    }
    let is_empty = !place.is_taken() && place.position() == head.position();
    let is_plain = flags & !PLAIN == 0 || head.is_stopped();
    let may_put = direction.is_welcome() && !head.is_stopped();
    is_empty && is_plain && !may_put && link.get(Word::Error) == 0
}

/// A number is for another socket than the call began with. If nobody has seen how that came, it
/// was so before. Otherwise it was closed meanwhile, and the call has nothing to do with what is
/// there now.
pub(super) fn another(number: c_int, link: Link, native: impl Fn() -> isize) -> isize {
    if links::forget(number, link) {
        return native();
    }
    shadow::set_errno(libc::EBADF);
    -1
}

/// Puts into the ring what it takes. How much that is.
fn put(
    link: Link,
    direction: &Direction<Memory>,
    number: c_int,
    parts: &Parts<'_>,
    is_waiting: bool,
) -> usize {
    let is_open = direction.is_welcome() && !direction.head().is_stopped() && !is_left_out(link);
    if !is_open || !take_turn(link, direction) {
        return 0;
    }
    let (mut sent, mut rounds, mut left) = (0, 0, if is_waiting { PATIENCE } else { ROOM });
    loop {
        let (head, place) = (direction.head(), direction.place());
        let is_ours = !link.has(Note::Left) && link.word(Word::Sending).load(Ordering::SeqCst) == 0;
        let is_open = direction.is_welcome() && !place.is_taken() && is_ours;
        let Ok(bytes) = head.since(place) else {
            link.note(Note::Broken);
            break;
        };
        if !is_open || link.get(Word::IsFenced) == 0 && !fence(link, direction, number, bytes) {
            break;
        }
        link.set(Word::SeenPlace, place.position());
        let wanted = (parts.total() - sent).min(PIECE);
        if RING > link.room() && link.room().saturating_sub(bytes) < wanted {
            // What the kernel had has gone on since.
            let room = shadow::room(number) as u64;
            link.set(Word::Room, room.max(link.get(Word::Room)));
        }
        let room = link.room();
        let length = wanted.min(room / 2);
        if room.saturating_sub(bytes) < length {
            rounds += 1;
            if rounds > ROUNDS {
                // Its reader says what no reader says.
                link.note(Note::Broken);
                break;
            }
            if is_waiting && rounds == 1 {
                left = left.min(limit(number));
            }
            // Others take back what is there before they sleep.
            give_turn(link);
            if wait_for_room(link, direction, room, &mut left) && take_turn(link, direction) {
                continue;
            }
            return sent;
        }
        parts.each(sent, length, |done, piece| direction.fill(head.position(), done, piece));
        let Some(is_seen) = publish(link, direction, number, head, length) else { break };
        (sent, rounds) = (sent + length, 0);
        if !is_seen || sent == parts.total() {
            break;
        }
    }
    give_turn(link);
    sent
}

/// From here on bytes go into the ring: as many as the kernel has room for, should they be taken
/// back. Over a link of a network that is little at first.
fn fence(link: Link, direction: &Direction<Memory>, number: c_int, bytes: usize) -> bool {
    // It grows with what goes through the kernel.
    link.set(Word::Room, shadow::room(number) as u64);
    if bytes > 0 || link.room() < LEAST {
        return false;
    }
    let Some(information) = shadow::Information::of(number) else { return false };
    direction.set_fence(information.given());
    // Nothing that goes by the kernel says so any more.
    shadow::acknowledge(number);
    link.set(Word::IsFenced, 1);
    true
}

/// Sends by the kernel, behind what is in the ring.
fn by_kernel(
    link: Link,
    direction: &Direction<Memory>,
    number: c_int,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    loop {
        let has_turn = take_turn(link, direction);
        let done = take_back(link, direction, number);
        if done {
            link.word(Word::Sending).fetch_add(1, Ordering::SeqCst);
            link.set(Word::IsFenced, 0);
        }
        if has_turn {
            give_turn(link);
        }
        if done {
            break;
        }
        // As the kernel would say if it had no room.
        if flags & libc::MSG_DONTWAIT != 0 || shadow::is_non_blocking(number) {
            shadow::set_errno(libc::EAGAIN);
            return -1;
        }
        let events = PollFlags::OUT.bits() as i16;
        let mut one = libc::pollfd { fd: number, events, revents: 0 };
        let limit = shadow::send_limit(number).map_or(-1, |limit| limit as c_int);
        // SAFETY: the structure lives across the call; nothing is held that leaving it would keep.
        match unsafe { next_poll(&raw mut one, 1, limit) } {
            ..0 => return -1,
            0 => {
                shadow::set_errno(libc::EAGAIN);
                return -1;
            }
            _ => {}
        }
    }
    let is_welcome = direction.is_welcome();
    if !is_welcome {
        waking::rings(link);
    }
    let result = native();
    link.word(Word::Sending).fetch_sub(1, Ordering::AcqRel);
    if !is_welcome && (1..LARGE).contains(&result) {
        counts(link);
    }
    result
}

/// The kernel has sent a small message, since the other end does not look.
fn counts(link: Link) {
    let calls = link.word(Word::ByKernel).fetch_add(1, Ordering::Relaxed) + 1;
    if calls.is_multiple_of(AT_ONCE) {
        link.set(Word::IsCounted, calls);
    }
}
