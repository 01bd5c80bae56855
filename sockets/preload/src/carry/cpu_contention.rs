//! Detects that other processes compute all the time, on every processor.
//!
//! A thread that yields the processor to one that computes waits for the end of that one's time
//! slice, some milliseconds. A thread that sleeps instead is scheduled by the kernel as soon as it
//! is woken. So once contention was seen no call waits by polling: what is not there yet is left to
//! the kernel, as natively.
//!
//! After a while polling is tried again, less often each time that it was in vain. Processes that
//! poll take turns, and any process that sleeps instead keeps one that polls from its turn: each of
//! them, alone, would see contention for ever. So all try at the same times.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::backoff;

use crate::tsc_clock;

/// A time slice of a computing thread, which is not preempted before.
const TURN: u64 = tsc_clock::SECOND >> 9;
/// For how long that is so, at least, and at most.
const PAUSE_MIN: u64 = tsc_clock::SECOND >> 6;
const PAUSE_MAX: u64 = 2 * tsc_clock::SECOND;

/// When it was found last, for how long it is believed then, and until when; 0: it was not found.
static FOUND: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU64 = AtomicU64::new(0);
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// It is so.
#[inline]
pub(super) fn is_contended() -> bool {
    let until = UNTIL.load(Ordering::Relaxed);
    until != 0 && until.wrapping_sub(tsc_clock::now()).wrapping_sub(1) < PAUSE_MAX
}

/// The processor was given away, and came back after so long.
pub(super) fn note_yield(time: u64) {
    if time >= TURN && !is_contended() {
        let now = tsc_clock::now();
        let since = now.wrapping_sub(FOUND.load(Ordering::Relaxed));
        let pause = PAUSE.load(Ordering::Relaxed);
        let pause = backoff::next_pause(since, pause, PAUSE_MIN, PAUSE_MAX).max(PAUSE_MIN);
        FOUND.store(now, Ordering::Relaxed);
        PAUSE.store(pause, Ordering::Relaxed);
        UNTIL.store(next_retry(now, pause), Ordering::Relaxed);
    }
}

/// When it is tried again: all processes do so at the same times.
fn next_retry(now: u64, pause: u64) -> u64 {
    (now / pause + 1).saturating_mul(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pauses_end_when_short_ones_do() {
        for now in [1, PAUSE_MIN - 1, PAUSE_MIN, 12_345 * PAUSE_MIN + 17] {
            let long = next_retry(now, PAUSE_MAX);
            assert!(long > now && long - now <= PAUSE_MAX);
            let mut short = now;
            while short < long {
                short = next_retry(short, PAUSE_MIN);
            }
            assert_eq!(short, long);
        }
    }
}
