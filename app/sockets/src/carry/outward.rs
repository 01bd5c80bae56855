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
use omniverb_carry::{Direction, direction::Stretch};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::links::{self, Link, Note, Word};
use super::look::{self, ENDING, Seen};
use super::memory::Memory;
use super::parts::{self, Parts};
use super::{broker, clock, leaving, shadow};
use crate::place;
use crate::slots::{next_poll, next_sendmsg};

/// Flags of messages that change nothing about bytes in the ring.
const PLAIN: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE;
/// How often the turn is tried, and how many of these times without giving the processor away.
const TRIES: u32 = 20_000;
const TRIES_AWAKE: u32 = 100;
/// How long room in the ring is waited for, of an end that reads; for a call that does not wait,
/// all in all.
const ROOM: u64 = 8 * clock::MOMENT;
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
    let is_long_ago =
        || clock::is_over(GIVEN_BACK.load(Ordering::Relaxed), PAUSE.load(Ordering::Relaxed));
    if IS_DIRTY.load(Ordering::Relaxed) && is_long_ago() {
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
        let is_left = place.is_taken() || !place.is_welcome();
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
    links::each(|number, link| {
        let Some(direction) = link.outward() else { return };
        let is_there = direction.place().position() != direction.head().position();
        if is_there && is_its(link, number) && !flush(link, number) {
            IS_DIRTY.store(true, Ordering::Relaxed);
        }
    });
}

/// There are bytes in the ring that the other end has not read.
pub(super) fn has_bytes(link: Link) -> bool {
    link.outward().is_some_and(|one| one.place().position() != one.head().position())
}

/// The number is still for the link's socket.
pub(super) fn is_its(link: Link, number: c_int) -> bool {
    shadow::cookie(number) == Some(link.get(Word::Cookie))
}

/// Sends. `native` does what the program has called, and the whole of it.
pub(super) fn send(
    link: Link,
    number: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    let Some(direction) = link.outward() else { return native() };
    if link.has(Note::Broken) {
        return native();
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
        return by_kernel(link, &direction, number, flags, native);
    };
    let is_waiting = flags & libc::MSG_DONTWAIT == 0 && !link.has(Note::NonBlocking);
    let sent = put(link, &direction, number, &parts, is_waiting);
    if sent == parts.total() {
        return sent as isize;
    }
    if sent == 0 {
        return by_kernel(link, &direction, number, flags, native);
    }
    let mut list = parts::list();
    let count = parts.rest(sent, &mut list);
    let message = parts::message(&mut list, count);
    // What was sent counts: an error is for the next call.
    let flags = flags | libc::MSG_NOSIGNAL;
    let before = shadow::errno();
    let more = by_kernel(link, &direction, number, flags, || {
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
    let mut place = direction.place();
    if !place.is_welcome() || direction.head().is_stopped() || !take_turn(link, direction) {
        return 0;
    }
    let (mut sent, mut rounds, mut began) = (0, 0, None);
    loop {
        let head = direction.head();
        place = direction.place();
        let is_ours = !link.has(Note::Left) && link.word(Word::Sending).load(Ordering::SeqCst) == 0;
        let is_open = place.is_welcome() && !place.is_taken() && is_ours;
        let Ok(bytes) = head.since(place) else {
            link.note(Note::Broken);
            break;
        };
        if !is_open || link.get(Word::IsFenced) == 0 && !fence(link, direction, number, bytes) {
            break;
        }
        let room = link.room();
        let length = room.saturating_sub(bytes).min(parts.total() - sent);
        if length == 0 {
            rounds += 1;
            if rounds > ROUNDS {
                // Its reader says what no reader says.
                link.note(Note::Broken);
                break;
            }
            let first = *began.get_or_insert_with(clock::now);
            if wait_for_room(direction, room, if is_waiting { clock::now() } else { first }) {
                continue;
            }
            break;
        }
        parts.each(sent, length, |done, piece| direction.fill(head.position(), done, piece));
        IS_DIRTY.store(true, Ordering::Relaxed);
        let Some(after) = direction.publish(head, length) else { break };
        // Somebody may have looked before these were there.
        IS_DIRTY.store(true, Ordering::Release);
        (sent, rounds) = (sent + length, 0);
        let is_seen = after.is_welcome() && !after.is_taken();
        if !is_seen {
            // It went to sleep, or left, at this moment.
            if after.position() != head.position().wrapping_add(length as u64) {
                take_back(link, direction, number);
            }
            break;
        }
        if sent == parts.total() {
            break;
        }
    }
    give_turn(link);
    sent
}

/// From here on bytes go into the ring. The kernel keeps so little of what went before that it has
/// room for all of the ring, should that be taken back.
fn fence(link: Link, direction: &Direction<Memory>, number: c_int, bytes: usize) -> bool {
    if link.room() < RING {
        // It grows with what goes through the kernel.
        link.set(Word::Buffer, shadow::send_buffer(number) as u64);
    }
    let most = link.get(Word::Buffer) as usize / 4;
    if bytes > 0 || shadow::unsent(number).is_none_or(|unsent| unsent > most) {
        return false;
    }
    let Some(information) = shadow::Information::of(number) else { return false };
    direction.set_fence(information.given());
    link.set(Word::IsFenced, 1);
    true
}

/// The reader makes room, of so much, since `began`. Who has waited long enough does not look
/// again.
fn wait_for_room(direction: &Direction<Memory>, room: usize, began: u64) -> bool {
    loop {
        for _ in 0..64 {
            core::hint::spin_loop();
        }
        let place = direction.place();
        match direction.head().since(place) {
            Ok(bytes) if place.is_welcome() && !place.is_taken() => {
                if bytes <= room / 2 {
                    return true;
                }
            }
            _ => return false,
        }
        if clock::is_over(began, ROOM) {
            return false;
        }
        sched_yield();
    }
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
    let result = native();
    link.word(Word::Sending).fetch_sub(1, Ordering::AcqRel);
    result
}
