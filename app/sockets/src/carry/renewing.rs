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
use super::{clock, ended, members, offering, outward};
use crate::sole;
use crate::table::NUMBERS;

/// How long ago the last fork has to be: who makes processes all the time does not offer all its
/// sockets between two of them.
const FORKED: u64 = clock::SECOND >> 2;
/// When this process was made, or has made another one.
static LAST: AtomicU64 = AtomicU64::new(0);

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
    if !is_free || !outward::is_its(link, number) || !ended::is_noted(link.tag()) {
        return false;
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
