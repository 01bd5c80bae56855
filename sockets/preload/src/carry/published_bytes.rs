//! Publishes bytes in the ring, and reclaims those that the peer has not read.
//!
//! [`publish`] marks the link as one with unread bytes, and moves the head. If the reader polls no
//! more then, it reclaims them at once: they are sent by the kernel.
//!
//! A call that has to send by the kernel takes back what is before that. So does a thread that is
//! about to sleep, or to do something for long: no reader then has to wait for it. While a thread
//! runs its calls look now and then for unread bytes of readers that have left the ring.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_formats::carried_direction::Stretch;
use omniverb_formats::link_layout::{CLOSED, SHUT_RECEIVE, SHUT_SEND};
use omniverb_formats::{Direction, Head};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::broker;
use super::links::{self, Flag, Link, Memory};
use super::unread_links::{self, is_any};
use super::writer_lock::{self, lock, unlock};
use crate::kernel_socket;
use crate::tsc_clock;
use crate::vfork_check;

/// How often a thread that takes bytes back is waited for, how often of these only by yielding the
/// processor, and how long otherwise, in nanoseconds.
const WAITS: u32 = 12_000;
const WAITS_AWAKE: u32 = 2000;
const WAIT: i64 = 100_000;

/// Budget: how long a thread that is about to sleep lets polling readers read what it has sent: all
/// in all.
const INSTANT: u64 = 1 << 13;

/// How often a link is dealt with again that has got more meanwhile.
const AGAIN: u32 = 3;
/// When rings were looked through last that their readers may have left, and how long they are not
/// then.
static RECLAIMED_AT: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(tsc_clock::MOMENT);

/// Signals are kept from this thread meanwhile.
pub(super) fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: sets of signals, which may be zero, of this thread only.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        kernel_socket::keeping_errno(|| {
            libc::sigprocmask(libc::SIG_SETMASK, &all, &raw mut before)
        });
        let result = act();
        let none = core::ptr::null_mut();
        kernel_socket::keeping_errno(|| libc::sigprocmask(libc::SIG_SETMASK, &before, none));
        result
    }
}

/// What the other end has not read goes through the kernel. `false` if there is no room for all of
/// it there now; then the rest is still in the ring. For a caller that has the lock, or has stopped
/// the direction.
pub(super) fn reclaim(link: Link, direction: &Direction<Memory>, fd: c_int) -> bool {
    let (place, head) = (direction.place(), direction.head());
    if !place.is_taken() && place.position() == head.position() {
        return true;
    }
    link.sender.is_fenced.set(0);
    if place.is_before(link.sender.seen_place.get()) {
        // What was read is unread again, and may be so for ever.
        link.set_flag(Flag::Broken);
        kernel_socket::reset(fd);
        return true;
    }
    let both = SHUT_RECEIVE | SHUT_SEND;
    if link.peer_said() & (both | CLOSED) == both {
        // It can still read what is there. The kernel would reset for it, and does for what comes
        // behind it.
        return true;
    }
    with_signals_blocked(|| {
        let pump = &link.sender.reclaim_lock;
        if !lock_pump(pump) {
            // Its bytes may be with the kernel or not: there is no way to tell any more.
            link.set_flag(Flag::Broken);
            kernel_socket::reset(fd);
            return true;
        }
        let done = match direction.reclaim() {
            Ok(None) => true,
            Ok(Some(stretch)) => pass(link, direction, fd, stretch),
            Err(_) => {
                link.set_flag(Flag::Broken);
                true
            }
        };
        pump.store(0, Ordering::Release);
        done
    })
}

/// A thread with this lock is undisturbed, too, and waits for nothing. So the lock is free soon,
/// unless its owner is in the process that this one was a copy of, or was cancelled in the middle.
pub(super) fn lock_pump(pump: &AtomicU64) -> bool {
    for tried in 0..WAITS {
        if pump.swap(1, Ordering::Acquire) == 0 {
            return true;
        }
        if tried < WAITS_AWAKE {
            sched_yield();
            continue;
        }
        if tried == WAITS_AWAKE && broker::is_copy() {
            writer_lock::reset_in_child();
        }
        // Not by giving the processor away: a thread that always comes first would keep it.
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: WAIT };
        _ = rustix::thread::nanosleep(&time);
    }
    false
}

/// Gives the kernel what was taken back, as far as it has room for it now. How much that is.
pub(super) fn send_stretch(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    stretch: Stretch,
) -> usize {
    let mut done = 0;
    while done < stretch.bytes {
        // From where it is: this may be the stack of a handler, which has no room for it.
        let Some(memory) = link.memory() else { break };
        let pieces = direction.pieces(stretch, done).map(|(at, length)| memory.bytes(at, length));
        match kernel_socket::send(fd, pieces) {
            Ok(sent) => done += sent,
            Err(Errno::INTR) => {}
            Err(error @ (Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) => {
                _ = error;
                break;
            }
            Err(error) => {
                // There is no peer any more. What the kernel has told us it does not tell again.
                if error != Errno::PIPE {
                    link.set_error(error.raw_os_error());
                }
                done = stretch.bytes;
            }
        }
    }
    done
}

/// The same; the rest is the reader's again, if there is one.
fn pass(link: Link, direction: &Direction<Memory>, fd: c_int, stretch: Stretch) -> bool {
    let done = send_stretch(link, direction, fd, stretch);
    if done < stretch.bytes {
        // The rest is behind what the kernel has now.
        let given = kernel_socket::Information::of(fd).map_or(0, |of| of.given());
        direction.set_fence(given);
    }
    if direction.finish_reclaim(stretch, done).is_err() {
        link.set_flag(Flag::Broken);
    }
    link.sender.seen_place.set(stretch.behind(done).from);
    done == stretch.bytes
}

/// What is in the ring goes through the kernel, as far as that has room.
pub(super) fn flush(link: Link, fd: c_int) -> bool {
    let Some(direction) = link.outward() else { return true };
    let is_locked = lock(link, &direction);
    let done = reclaim(link, &direction, fd);
    if is_locked {
        unlock(link);
    }
    done
}

/// Gives all unread bytes to the kernel, since another process is about to have the socket that may
/// send behind them. No more is ever put into a ring than the kernel has room for ([`Link::room`]),
/// so it takes all at once unless the other end says that more is unread than there is, or the host
/// is out of memory. Neither is waited for: the connection is reset. Rather that than wrong bytes.
pub(super) fn flush_wholly(link: Link, fd: c_int) {
    if !flush(link, fd) {
        kernel_socket::reset(fd);
    }
}

/// The ring of a link is about to have bytes that are to go through the kernel if they are not
/// read; or it has some.
#[inline(always)]
pub(super) fn mark_unread(link: Link) {
    if link.sender.dirty.get() == 0 {
        mark_unread_now(link);
    }
}

/// What was copied in behind `head` is the other end's. Whether that looks there still; if it does
/// not, it has read that, or the kernel has it. `None`: the direction was stopped, and nothing has
/// happened. For a caller that has the lock.
#[inline(always)]
pub(super) fn publish(
    link: Link,
    direction: &Direction<Memory>,
    fd: c_int,
    head: Head,
    length: usize,
) -> Option<bool> {
    mark_unread(link);
    let is_polling = direction.publish(head, length)?;
    link.sender.head.set(head.position().wrapping_add(length as u64));
    // Another thread may have looked before these were there.
    mark_unread(link);
    if !is_polling && is_same_socket(link, fd) {
        // It went to sleep, or left, at this moment.
        reclaim(link, direction, fd);
    }
    Some(is_polling)
}

#[cold]
fn mark_unread_now(link: Link) {
    unread_links::put(link.index(), &link.sender.dirty);
}

/// Calls with each link, and a descriptor of it, that has such bytes: whether some are left. It may
/// be left by `longjmp`: what is said of those that have bytes is true all the time.
fn each_dirty(mut with: impl FnMut(c_int, Link) -> bool) {
    if !vfork_check::is_this_process() {
        return;
    }
    unread_links::all().each(0, links::end(), |index| {
        let Some(link) = links::hold(index) else {
            mark_outlived(index);
            return true;
        };
        for _ in 0..AGAIN {
            let head = put_so_far(link);
            let has = has_unread(link);
            if has && links::fd_of(link).is_some_and(|fd| with(fd, link)) {
                break;
            }
            unread_links::take(link.index(), &link.sender.dirty);
            // A thread that has put more since may be about to sleep, and has seen that the mark is
            // set.
            let is_old = put_so_far(link) == head;
            if is_old && link.sender.dirty.load(Ordering::SeqCst) == 0 {
                break;
            }
            mark_unread_now(link);
        }
        link.release();
        true
    });
}

/// Marks a link without holders that still has unread bytes of a call which has outlived it.
#[cold]
fn mark_outlived(index: u32) {
    let Some(link) = Link::at(index) else { return };
    unread_links::take(index, &link.sender.dirty);
    // Its slot may have been used anew at this moment.
    if let Some(link) = links::hold(index) {
        mark_unread_now(link);
        link.release();
    }
}

/// How far this end has written.
fn put_so_far(link: Link) -> u64 {
    link.outward().map_or(0, |direction| direction.head().position())
}

/// Calls with each link, held, that has unread bytes in its ring, if `which` says so of it without
/// holding it.
pub(super) fn each_with_bytes(which: impl Fn(Link) -> bool, mut with: impl FnMut(Link)) {
    if !is_any() || !vfork_check::is_this_process() {
        return;
    }
    unread_links::all().each(0, links::end(), |index| {
        if !Link::at(index).is_some_and(&which) {
            return true;
        }
        if let Some(link) = links::hold(index) {
            if has_unread(link) && which(link) {
                with(link);
            }
            link.release();
        }
        true
    });
}

/// Before this thread sleeps, or does something for long: gives all unread bytes to the kernel, so
/// that no reader waits for this thread.
#[inline(always)]
pub(super) fn flush_all() {
    if is_any() {
        flush_each(|direction, began| {
            // A polling reader has them in an instant, and for less than what the kernel takes for
            // them. This may be left by `longjmp`.
            while is_about_to_read(direction) && !tsc_clock::is_over(began, INSTANT) {
                core::hint::spin_loop();
            }
            true
        });
    }
}

/// Gives unread bytes to the kernel, but for those of polling readers: whether there are any. These
/// are to be given some time, and no more, before all of it goes through the kernel.
pub(super) fn flush_unless_polled() -> bool {
    let mut has_unread = false;
    if is_any() {
        flush_each(|direction, _| {
            let is_left = is_about_to_read(direction);
            has_unread |= is_left;
            !is_left
        });
    }
    has_unread
}

/// The same before a call of the kernel's with these flags, which may wait.
#[inline(always)]
pub(super) fn flush_before(fd: c_int, flags: c_int) {
    if is_any() && flags & libc::MSG_DONTWAIT == 0 && !kernel_socket::is_non_blocking(fd) {
        flush_all();
    }
}

/// Now and then, by calls that do not sleep: gives unread bytes to the kernel whose reader has left
/// the ring. A thread that only polls for an answer would wait for it for ever otherwise.
#[inline(always)]
pub(super) fn reclaim_abandoned() {
    if is_any() {
        reclaim_abandoned_at(tsc_clock::now());
    }
}

/// Does that for a caller that knows the time.
#[inline(always)]
pub(super) fn reclaim_abandoned_at(now: u64) {
    if is_any() && is_due(now) {
        reclaim_each_abandoned();
    }
}

/// That would be looked after now, if there may be any.
#[inline(always)]
pub(super) fn is_due(now: u64) -> bool {
    now.wrapping_sub(RECLAIMED_AT.load(Ordering::Relaxed)) >= PAUSE.load(Ordering::Relaxed)
}

#[cold]
fn reclaim_each_abandoned() {
    let began = tsc_clock::now();
    RECLAIMED_AT.store(began, Ordering::Relaxed);
    each_dirty(|fd, link| {
        let Some(direction) = link.outward() else { return false };
        let is_left = direction.place().is_taken() || !direction.is_polling();
        !is_left || is_same_socket(link, fd) && !flush(link, fd)
    });
    // A process with many links must not do this most of the time.
    let took = tsc_clock::now().wrapping_sub(began).min(tsc_clock::SECOND);
    PAUSE.store((16 * took).max(tsc_clock::MOMENT), Ordering::Relaxed);
}

/// Those of which that says so, given when this began.
#[cold]
fn flush_each(mut which: impl FnMut(&Direction<Memory>, u64) -> bool) {
    let began = tsc_clock::now();
    each_dirty(|fd, link| {
        let Some(direction) = link.outward() else { return false };
        if !which(&direction, began) {
            return true;
        }
        has_unread(link) && is_same_socket(link, fd) && !flush(link, fd)
    });
}

/// There are bytes that the other end will find, since it looks.
fn is_about_to_read(direction: &Direction<Memory>) -> bool {
    let place = direction.place();
    place.position() != direction.head().position() && !place.is_taken() && direction.is_polling()
}

/// There are bytes in the ring that the other end has not read.
pub(super) fn has_unread(link: Link) -> bool {
    link.outward().is_some_and(|one| one.place().position() != one.head().position())
}

/// The descriptor is still for the link's socket.
pub(super) fn is_same_socket(link: Link, fd: c_int) -> bool {
    kernel_socket::cookie(fd) == Some(link.identity.cookie.get())
}
