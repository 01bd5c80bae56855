//! Yields the processor while a thread waits for the other end.
//!
//! It sleeps instead if both ends share a processor though another one might be idle.
//!
//! The kernel puts a woken thread near the one that woke it: so both ends of a new connection often
//! begin on one processor. Natively they part, since a sleeper is put on an idle processor when it
//! wakes. A thread that polls does not sleep, and a running one is moved only if the kernel finds
//! its processors out of balance. For two threads that yield to each other all the time that may be
//! never: bytes then go at a third of the speed. So a thread that sees again and again that
//! something came *while others had the processor* sleeps for an instant instead of yielding once
//! more. If no processor is idle nothing is gained by that, so it is done less often then.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::backoff;
use rustix::thread::sched_yield;

use super::cpu_contention;
use crate::tsc_clock;

/// Another thread has run, if yielding took as long: two switches at least.
const SWITCH: u64 = tsc_clock::MOMENT >> 5;
/// So often in a row something came in that time.
const ENOUGH: u64 = 8;
/// The shortest time between two of these sleeps, and the longest.
const PAUSE_MIN: u64 = tsc_clock::SECOND >> 9;
const PAUSE_MAX: u64 = tsc_clock::SECOND >> 2;

/// How often in a row that was so, in any thread.
static TOGETHER: AtomicU64 = AtomicU64::new(0);
/// When the last sleep was, and how long it has to be until the next one.
static SLEPT: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(PAUSE_MIN);

/// Whether a call may sleep for an instant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It waits: an instant more is nothing to it.
    May,
    /// It does not wait.
    Never,
}

/// Which threads have had the processor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RanThreads {
    /// This thread, as far as can be told.
    ThisThread,
    /// Others, for so long.
    Others(u64),
}

/// Yields the processor. Tells which threads had it then.
pub(super) fn yield_now(sleep: Sleep) -> RanThreads {
    let began = tsc_clock::now();
    if sleep == Sleep::May && TOGETHER.load(Ordering::Relaxed) >= ENOUGH && is_time(began) {
        TOGETHER.store(0, Ordering::Relaxed);
        // As short as can be: the kernel makes that 50 us, or what the thread's timer slack is.
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1 };
        _ = rustix::thread::nanosleep(&time);
        return RanThreads::ThisThread;
    }
    sched_yield();
    let took = tsc_clock::now().wrapping_sub(began);
    cpu_contention::note_yield(took);
    if took >= SWITCH { RanThreads::Others(took) } else { RanThreads::ThisThread }
}

/// What was waited for has come; `had`: which threads had the processor just before.
pub(super) fn note_arrival(had: RanThreads) {
    if matches!(had, RanThreads::Others(_)) {
        TOGETHER.fetch_add(1, Ordering::Relaxed);
    } else if TOGETHER.load(Ordering::Relaxed) != 0 {
        TOGETHER.store(0, Ordering::Relaxed);
    }
}

/// It is time for another sleep: longer after the last one each time, unless that has helped.
fn is_time(now: u64) -> bool {
    let (since, pause) =
        (now.wrapping_sub(SLEPT.load(Ordering::Relaxed)), PAUSE.load(Ordering::Relaxed));
    if since < pause {
        return false;
    }
    PAUSE.store(backoff::next_pause(since, pause, PAUSE_MIN, PAUSE_MAX), Ordering::Relaxed);
    SLEPT.store(now, Ordering::Relaxed);
    true
}
