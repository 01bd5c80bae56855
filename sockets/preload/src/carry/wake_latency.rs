//! Measures how long a wakeup takes, and polls for about as long before a sleep.
//!
//! A thread that polls for as long as a wakeup takes never needs more than twice the time of the
//! better choice.
//!
//! A sender by the kernel to an end that sleeps notes the time in the link, by the processor's
//! count. The woken thread, which gets bytes of the kernel, sees how long that took. It is 10 us
//! where both share a processor, and more than 100 where a processor of a virtual machine has to be
//! woken for it. What the other end says is believed within bounds only.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::backoff::moving_average;
use omniverb_formats::link_layout;

use super::links::Link;
use crate::tsc_clock;

/// How long is looked at least, and at most.
const LEAST: u64 = 3 * tsc_clock::MOMENT;
const MOST: u64 = 8 * tsc_clock::MOMENT;

/// The last sleep of any thread.
static FELL_ASLEEP: AtomicU64 = AtomicU64::new(0);
static WOKE: AtomicU64 = AtomicU64::new(0);
/// How long a wake takes, of late.
static TAKES: AtomicU64 = AtomicU64::new(0);

/// How long a call looks before it sleeps: there and back, rather more than one way.
#[inline]
pub(super) fn poll_time() -> u64 {
    (2 * TAKES.load(Ordering::Relaxed)).clamp(LEAST, MOST)
}

/// Makes a call of the kernel's that waits. What it gave, and whether that was there so soon that
/// looking would have found it, whatever a wake takes.
pub(super) fn timed_sleep<R>(call: impl FnOnce() -> R) -> (R, bool) {
    let began = tsc_clock::now();
    FELL_ASLEEP.store(began, Ordering::Relaxed);
    let result = call();
    let woke = tsc_clock::now();
    WOKE.store(woke, Ordering::Relaxed);
    (result, woke.wrapping_sub(began) < LEAST)
}

/// Bytes are about to go by the kernel to a reader that does not poll.
pub(super) fn note_wakeup_sent(link: Link) {
    if let Some(memory) = link.memory() {
        let side = link.identity.side.get() as usize;
        link_layout::rang(&memory, side).store(tsc_clock::now(), Ordering::Relaxed);
    }
}

/// Bytes of the kernel's were received. `true`: looking for them would have found them, rather than
/// the sleep that just was.
pub(super) fn learn_wakeup(link: Link) -> bool {
    let Some(memory) = link.memory() else { return false };
    let side = 1 - link.identity.side.get() as usize;
    let rang = link_layout::rang(&memory, side).load(Ordering::Relaxed);
    if rang == link.polling.heard.get() {
        return false;
    }
    link.polling.heard.set(rang);
    let asleep = FELL_ASLEEP.load(Ordering::Relaxed);
    let woke = WOKE.load(Ordering::Relaxed);
    if rang.wrapping_sub(asleep) as i64 <= 0 {
        return false;
    }
    let took = woke.wrapping_sub(rang);
    // More is no wakeup, but another thread's time slice.
    if took < MOST {
        TAKES.store(moving_average(TAKES.load(Ordering::Relaxed), took), Ordering::Relaxed);
    }
    woke.wrapping_sub(asleep) < poll_time()
}
