//! Decides whether a new connection is worth a link.
//!
//! A link costs two processes and the broker some dozens of system calls and page faults, which a
//! connection of a few messages does not give back: a server that asks another one by connections
//! that are closed soon is slower with links than without. How long a connection will last is not
//! known, but the connections of one program are much alike. So the ends of those that had been
//! offered are counted. Once most of them have carried little, a socket is offered only when the
//! program has made some calls with it, or if it is its turn to be tried at once, so that a change
//! is seen.
//!
//! Processes that were made by `fork` count together: a server that makes one for each connection
//! has none that has seen more than one.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::process_count_slots;

/// Bytes that a link has to have carried, both ways together, to have been worth it.
pub(super) const WORTH: u64 = 16 << 10;
/// So many more that were not than that were: from then on new ones have to wait. The count goes
/// no further than twice that.
const ENOUGH: u64 = 8;
/// Calls that move bytes, or wait for them, before a socket that has to wait is offered.
const CALLS: u64 = 64;
/// One in so many sockets need not wait.
const TRIED: u64 = 16;

/// How often the count is tried to be changed that others change at the same time.
const TRIES: u32 = 8;

/// `seen:32 | short:32`: sockets that had to wait, or would have had to, and how many more have
/// ended that were not worth it than that were. Of a process that was never made two; others have
/// theirs in common.
static HERE: AtomicU64 = AtomicU64::new(0);
const SEEN: u64 = 1 << 32;

fn counts() -> &'static AtomicU64 {
    process_count_slots::process_counts().family_word().unwrap_or(&HERE)
}

fn short(counts: u64) -> u64 {
    u64::from(counts as u32).min(2 * ENOUGH)
}

/// By the last bits of a descriptor: the id of the socket that it was counted for, and how many
/// calls are left. Two that have the same begin anew in turns, which costs them the link and no
/// more.
static WAITING: [AtomicU64; 1 << 10] = [const { AtomicU64::new(0) }; 1 << 10];

/// One has ended that had been offered, and has carried so many bytes.
pub(super) fn ended(bytes: u64) {
    let next = |counts: u64| {
        let short = match bytes >= WORTH {
            true => short(counts).saturating_sub(1),
            false => short(counts.wrapping_add(1)),
        };
        counts & !(SEEN - 1) | short
    };
    // What is missed now and then does not matter.
    for _ in 0..TRIES {
        let was = counts().load(Ordering::Relaxed);
        let (ok, err) = (Ordering::Relaxed, Ordering::Relaxed);
        if counts().compare_exchange(was, next(was), ok, err).is_ok() {
            return;
        }
    }
}

/// The socket of this id is to be offered by the call that is made with it now.
#[inline]
pub(super) fn is_due(fd: c_int, id: u32) -> bool {
    short(counts().load(Ordering::Relaxed)) < ENOUGH || has_waited(fd, id)
}

fn has_waited(fd: c_int, id: u32) -> bool {
    let place = &WAITING[fd as usize % WAITING.len()];
    let word = place.load(Ordering::Relaxed);
    let left = if word >> 32 == u64::from(id) {
        (word as u32).saturating_sub(1).into()
    } else if is_tried() {
        0
    } else {
        CALLS
    };
    place.store(u64::from(id) << 32 | left, Ordering::Relaxed);
    left == 0
}

fn is_tried() -> bool {
    (counts().fetch_add(SEEN, Ordering::Relaxed) / SEEN).is_multiple_of(TRIED)
}
