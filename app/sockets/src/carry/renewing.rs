//! A link that is over although the connection goes on is forgotten, and its socket offered again.
//!
//! Who forks stops both directions, the other end's, too. When both rings are empty then nothing
//! will ever come by that link: whatever is sent since goes through the kernel, and each end may
//! forget it by itself, whatever the other one does. Each offers its socket anew: who has forked,
//! when nobody else has it any more. What a new link carries comes behind all that the kernel was
//! given before, as with a first one.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use omniverb_carry::Direction;

use super::links::{self, Link, Note, Word};
use super::memory::Memory;
use super::worth::WORTH;
use super::{clock, ended, members, offering, outward};
use crate::sole;
use crate::table::NUMBERS;

/// How long ago the last fork has to be: who makes processes all the time does not offer all its
/// sockets between two of them.
const FORKED: u64 = clock::SECOND >> 2;
/// When this process was made, or has made another one.
static LAST: AtomicU64 = AtomicU64::new(0);

/// By the last bits of a number: how often in a row something was offered anew there for little,
/// and when that was last. Who is at the other end says when a link is over, and may say so for
/// ever; it may write how much was carried as well, so each has to wait a while.
static RENEWED: [[AtomicU64; 2]; 1 << 10] = [const { [const { AtomicU64::new(0) }; 2] }; 1 << 10];
/// Two to the power of this is how much longer the longest wait is than the first.
const OFTEN: u64 = 8;

/// How often in a row something was offered anew at a number, how long ago the last time was, and
/// how long it has to be.
fn renewed(number: c_int, now: u64) -> (u64, u64, u64) {
    let [often, last] = &RENEWED[number as usize % RENEWED.len()];
    let times = often.load(Ordering::Relaxed);
    let since = now.wrapping_sub(last.load(Ordering::Relaxed));
    (times, since, FORKED << times.saturating_sub(1).min(OFTEN))
}

/// What was offered anew at a number may be so again.
fn is_time(number: c_int, now: u64) -> bool {
    let (times, since, wait) = renewed(number, now);
    times == 0 || since > wait
}

/// It is, after a link that has carried so many bytes.
fn renews(number: c_int, bytes: u64, now: u64) {
    let (times, since, wait) = renewed(number, now);
    let is_forgotten = times == 0 || since > 16 * wait;
    let next = if is_forgotten || bytes >= WORTH { 1 } else { (times + 1).min(OFTEN + 1) };
    let [often, last] = &RENEWED[number as usize % RENEWED.len()];
    often.store(next, Ordering::Relaxed);
    last.store(now, Ordering::Relaxed);
}

/// A process is being made.
pub(super) fn forks() {
    LAST.store(clock::now(), Ordering::Relaxed);
}

/// A link may come again; it is over now, and forgotten. For who holds it.
#[cold]
pub(super) fn forgets(link: Link, number: c_int) -> bool {
    if !is_over(link) {
        return false;
    }
    let entry = NUMBERS.look(number);
    let is_free = offering::may_be(number, entry)
        && (!entry.is_shared()
            || sole::has(number, entry, Some(link.get(Word::Cookie)))
                && clock::is_over(LAST.load(Ordering::Relaxed), FORKED));
    // Without memory there was none: it is not the other end that has ended it.
    let (has_memory, now) = (link.get(Word::Memory) != 0, clock::now());
    let is_due = !has_memory || is_time(number, now);
    if !is_free || !is_due || !outward::is_its(link, number) || !ended::is_noted(link.tag()) {
        return false;
    }
    if has_memory {
        renews(number, link.has_carried(), now);
    }
    fence(Ordering::SeqCst);
    members::take_out(link);
    links::forget(number, link)
}

/// Nothing comes by it any more, either way, and nothing is to be told of it.
fn is_over(link: Link) -> bool {
    let harmless = Note::Unwelcoming as u64
        | Note::Shared as u64
        | Note::NonBlocking as u64
        | Note::Returned as u64
        | Note::Left as u64
        | Note::Renewable as u64
        | Note::Slow as u64;
    if link.get(Word::Notes) & !harmless != 0 || link.get(Word::Error) != 0 {
        return false;
    }
    match (link.outward(), link.inward()) {
        (Some(outward), Some(inward)) => [outward, inward].iter().all(is_done),
        // It has never come, and if it does it is sent back.
        _ => true,
    }
}

fn is_done(direction: &Direction<Memory>) -> bool {
    let (head, place) = (direction.head(), direction.place());
    head.is_stopped() && !place.is_taken() && place.position() == head.position()
}
