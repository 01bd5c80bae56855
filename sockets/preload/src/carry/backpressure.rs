//! Waits for the reader of a full ring to make room.

use core::ffi::c_int;

use omniverb_formats::Direction;
use rustix::net::sockopt::Timeout;

use super::links::{Link, Memory};
use super::{cpu_contention, yield_cpu};
use crate::kernel_socket;
use crate::tsc_clock;

/// Budget: how long a call that must not wait looks for room in the ring, all in all. A reader that
/// reads all the time makes some sooner.
pub(super) const ROOM: u64 = 1 << 19;
/// Budget: the same for one that waits: longer than the other end needs to read all that the kernel
/// may have before. And how long it may show no sign of reading meanwhile.
pub(super) const PATIENCE: u64 = 1 << 28;
const SILENCE: u64 = tsc_clock::SECOND >> 8;
/// After so long in vain, all in all, the ring is left out for as long, and each time in a row for
/// twice as long as before, up to two to this power. Calls that do not wait need several to see the
/// other end through what the kernel has.
const IN_VAIN: u64 = tsc_clock::SECOND >> 7;
const LEFT_OUT_MAX: u64 = 8;
/// How long it is between two looks for room, in pauses of the processor; and how many of them are
/// done without giving the processor away.
const PAUSES: u32 = 16;
const LOOKS_AWAKE: u32 = 20;

/// How long the program lets a call wait that sends, as the processor counts: rather less.
pub(super) fn limit(fd: c_int) -> u64 {
    let milliseconds = kernel_socket::limit(fd, Timeout::Send).map_or(u64::MAX, u64::from);
    milliseconds.saturating_mul(tsc_clock::SECOND >> 12)
}

/// The ring was full for long, not long ago.
pub(super) fn is_left_out(link: Link) -> bool {
    let until = link.congestion.given_up_until.get();
    until != 0 && (until.wrapping_sub(tsc_clock::now()) as i64) > 0
}

/// The reader makes room, for half of `room`, in the time that is `left` to this call, and as long
/// as it shows that it reads, be it from the kernel what was sent before.
pub(super) fn wait_for_room(
    link: Link,
    direction: &Direction<Memory>,
    room: usize,
    left: &mut u64,
) -> bool {
    let (began, mut seen, mut seen_at) =
        (tsc_clock::now(), (0, direction.place()), tsc_clock::now());
    let sleep = if *left > ROOM { yield_cpu::Sleep::May } else { yield_cpu::Sleep::Never };
    let (mut looks, mut had) = (0_u32, yield_cpu::RanThreads::ThisThread);
    let (has_room, took) = loop {
        for _ in 0..PAUSES {
            core::hint::spin_loop();
        }
        let (place, life) = (direction.place(), direction.activity());
        let Ok(bytes) = direction.head().since(place) else { return false };
        if life == 0 || place.is_taken() {
            return false;
        }
        let now = tsc_clock::now();
        if seen != (life, place) {
            (seen, seen_at) = ((life, place), now);
        }
        let took = now.wrapping_sub(began);
        let is_over = took >= *left || now.wrapping_sub(seen_at) >= SILENCE;
        if bytes <= room / 2 || is_over {
            break (bytes <= room / 2, took);
        }
        looks += 1;
        if looks > LOOKS_AWAKE && cpu_contention::is_contended() {
            break (false, took);
        } else if looks > LOOKS_AWAKE {
            had = yield_cpu::yield_now(sleep);
        }
    };
    *left = left.saturating_sub(took);
    if has_room {
        yield_cpu::note_arrival(had);
        link.congestion.waited_for_room.set(0);
        if took < ROOM {
            link.congestion.given_up.set(0);
        }
        return true;
    }
    let waited = link.congestion.waited_for_room.get().saturating_add(took);
    link.congestion.waited_for_room.set(waited);
    if waited >= IN_VAIN {
        // It reads slowly, or not at all: the writer had better sleep in the kernel.
        let times = link.congestion.given_up.get();
        link.congestion.given_up.set((times + 1).min(LEFT_OUT_MAX));
        let time = (waited << times).min(tsc_clock::SECOND);
        link.congestion.given_up_until.set(tsc_clock::now().wrapping_add(time).max(1));
        link.congestion.waited_for_room.set(0);
    }
    false
}
