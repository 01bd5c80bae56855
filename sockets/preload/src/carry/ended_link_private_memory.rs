//! Moves an ended link from shared memory to memory of its own.
//!
//! The other end may go on writing into the shared memory. So what was settled on when the link
//! ended is copied into private memory, which is mapped at the same address: all calls go on there,
//! and later writes of the peer do not reach them.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::critical_section_threads::ActiveThreads;
use omniverb_formats::carried_direction::Inherits;
use omniverb_formats::{Direction, Place, link_layout};
use omniverb_ring::WordMemory;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
use rustix::thread::{Timespec, gettid, nanosleep, sched_yield};

use super::epoll_slot::EpollSlot;
use super::links::{Flag, Link, Memory};
use super::{published_bytes, unread_bytes};
use crate::errno::keeping_errno;
use crate::kernel_socket;

/// Why a link is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The two may not have it any more. What this process has seen by then it reads; all else has
    /// to come by the kernel. What was to come before that and has not is a reset.
    NotAllowed,
    /// Other processes are about to have the socket. What was not received has to come by the
    /// kernel, but for what a writer leaves that dies before.
    Shared,
}

/// Threads that are at it. What they have claimed is nowhere for a moment.
static ACTIVE_THREADS: ActiveThreads = ActiveThreads::new();

/// How often they are waited for by giving the processor away, and how long otherwise, in
/// nanoseconds.
const SETTLES_AWAKE: u32 = 2000;
const PAUSE: i64 = 100_000;

/// For a thread that is about to sleep, and has said so: looks for bytes after this.
#[inline]
pub(super) fn settle() {
    // Such calls are not interrupted, and wait for nothing. But a thread that always comes first
    // would keep the processor.
    let pause = |tried| {
        let is_long = tried >= SETTLES_AWAKE;
        if is_long {
            _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE });
        } else {
            sched_yield();
        }
        is_long
    };
    ACTIVE_THREADS.wait_for_all(pause, is_over);
}

/// There is no such thread of this process any more.
fn is_over(thread: u64) -> bool {
    keeping_errno(|| {
        // SAFETY: no memory is involved, and no signal is sent.
        let found = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread as c_int, 0) };
        found < 0 && kernel_socket::errno() == libc::ESRCH
    })
}

/// This thread's id.
fn own_id() -> u64 {
    u64::from(gettid().as_raw_nonzero().get().unsigned_abs())
}

/// In a child: threads that were at it are not there.
pub(super) fn begin_anew() {
    ACTIVE_THREADS.clear();
}

/// A link's memory is this process's own from now on. Both directions were stopped.
pub(super) fn detach(link: Link, fd: c_int, why: Reason) {
    if link.identity.memory.get() == 0 || link.has(Flag::Detached) {
        return;
    }
    published_bytes::with_signals_blocked(|| {
        let pump = &link.sender.reclaim_lock;
        let has_pump = published_bytes::lock_pump(pump);
        let under_way = loop {
            if let Some(thread) = ACTIVE_THREADS.enter(own_id()) {
                break thread;
            }
            // As many as there can be: they wait for nothing.
            settle();
        };
        fence(Ordering::SeqCst);
        let is_its = published_bytes::is_same_socket(link, fd);
        let is_sound = has_pump && moves(link, fd, why, is_its) == Some(());
        if !is_sound {
            link.set_flag(Flag::Broken);
            if !link.has(Flag::Detached) {
                // There is no memory. The bytes are lost.
                replace_by_nothing(link);
            }
            if is_its {
                kernel_socket::reset(fd);
            }
        }
        under_way.store(0, Ordering::SeqCst);
        if has_pump {
            pump.store(0, Ordering::Release);
        }
    });
    link.mark_maybe_ready();
}

/// What is to be read and what is to be sent moves there. `None`: it makes no sense, or does not
/// come in time.
fn moves(link: Link, fd: c_int, why: Reason, is_its: bool) -> Option<()> {
    let (shared, side) = (link.memory()?, link.identity.side.get() as usize & 1);
    let (outward, inward) = (link.outward()?, link.inward()?);
    // Processes that are made later have it, too: each byte is one's of them.
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: new memory, wherever the kernel likes.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), link_layout::BYTES, access, kind) }.ok()?;
    let own = Memory::new(base as usize);
    for word in [link_layout::SAID, link_layout::RANG] {
        for of in [0, 1] {
            let at = link_layout::word(of, word);
            own.store(at, shared.load(at, Ordering::Acquire), Ordering::Relaxed);
        }
    }
    outward.stop();
    let rest = match outward.reclaim() {
        Ok(Some(stretch)) if is_its => {
            let sent = published_bytes::send_stretch(link, &outward, fd, stretch);
            let rest = stretch.behind(sent);
            if rest.bytes == 0 {
                outward.finish_reclaim(stretch, sent).map(|()| None)
            } else {
                Ok(Some(rest))
            }
        }
        other => other,
    };
    outward.detach_writer(&Direction::new(own, side), rest.unwrap_or(None));
    let own_inward = Direction::new(own, 1 - side);
    let sleeps = || {
        link.receiver.sleeping.load(Ordering::SeqCst) != 0
            || EpollSlot::with(link).is_some_and(EpollSlot::has_sleepers)
    };
    let inherits = if why == Reason::Shared { Inherits::Yes } else { Inherits::No };
    let read = inward.detach_reader(&own_inward, inherits, |place, unread| match why {
        // While a thread sleeps, bytes have to come by the kernel, which wakes it.
        Reason::NotAllowed if !sleeps() => seen(link, place, unread),
        _ => 0,
    });
    link.receiver.passed.set(0);
    link.receiver.before.set(0);
    replace(link, base)?;
    let copied = read.ok()?;
    let is_late = why == Reason::NotAllowed
        && copied > 0
        && !(is_its && unread_bytes::has_arrived(fd, own_inward_fence(link)?));
    (rest.is_ok() && !is_late).then_some(())
}

/// What was to come by the kernel before what is in the ring.
fn own_inward_fence(link: Link) -> Option<u64> {
    link.inward().map(|inward| inward.fence())
}

/// So many of the unread bytes were there when this process looked last, or told the program of
/// them: the rest may have come when nothing was to come any more.
fn seen(link: Link, place: Place, unread: usize) -> usize {
    let told = [&link.receiver.shown, &link.member.told].map(|head| head.get().checked_sub(1));
    let seen = [Some(link.receiver.seen_head.get()), told[0], told[1]];
    let ahead = seen.into_iter().flatten().map(|head| place.until(head));
    ahead.filter(|bytes| *bytes <= unread).max().unwrap_or(0)
}

/// Comes to where the link's memory is, at once for all threads.
fn replace(link: Link, by: *mut c_void) -> Option<()> {
    let at = link.identity.memory.get() as *mut c_void;
    let (bytes, flags) = (link_layout::BYTES, MremapFlags::MAYMOVE);
    // SAFETY: both are mappings of ours of so many bytes, and a thread that has the address of the
    // second continues with what is there then.
    let moved = unsafe { mremap_fixed(by, bytes, bytes, flags, at) };
    if moved.is_err() {
        // SAFETY: made by the caller, and no other thread has seen it.
        _ = unsafe { munmap(by, bytes) };
        return None;
    }
    link.set_flag(Flag::Detached);
    Some(())
}

/// Puts zeroed memory where the link's memory is, at once for all threads.
fn replace_by_nothing(link: Link) {
    let at = link.identity.memory.get() as *mut c_void;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the link's own mapping.
    if unsafe { mmap_anonymous(at, link_layout::BYTES, access, flags) }.is_ok() {
        link.set_flag(Flag::Detached);
    }
}
