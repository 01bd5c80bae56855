//! The tables of this process.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use omniverb_connection::descriptors::{Entry, Kind, Members, Numbers};

use crate::room::Pieces;
use crate::{kernel, place};

/// Pieces for a word of each number that can be.
const NUMBERS_PIECES: usize = 1 << 10;
/// Pieces for a node of each, and as many more.
const MEMBERS_PIECES: usize = 1 << 13;

/// What is open at each number.
pub(crate) static NUMBERS: Numbers<Pieces<NUMBERS_PIECES>> = Numbers::new(Pieces::new());
/// Which of them are in which sets.
pub(crate) static MEMBERS: Members<Pieces<MEMBERS_PIECES>> = Members::new(Pieces::new());

/// What is open at a number: as known, or else as the kernel says, which is known from then on.
pub(crate) fn look(number: c_int) -> Entry {
    let known = NUMBERS.look(number);
    if known.kind() != Kind::Unknown || !place::is_ours() {
        return known;
    }
    find(number)
}

#[cold]
fn find(number: c_int) -> Entry {
    let seen = NUMBERS.watch(number);
    if seen.kind() == Kind::Unknown
        && let Some(kind) = kernel::kind(number)
    {
        NUMBERS.guess(number, seen, kind);
    }
    NUMBERS.look(number)
}

/// What was open at a number, as forgotten before, is closed there now: it is in no set any more,
/// unless another number is for it.
pub(crate) fn left(number: c_int, was: Entry) {
    if !was.kind().is_stream() && was.kind() != Kind::Set {
        return;
    }
    if !was.is_duplicated() {
        MEMBERS.remove_all(number, was.id());
    } else if !NUMBERS.has_another(was.id(), number) {
        // It may be in sets by numbers that were closed before.
        (0..NUMBERS.end()).for_each(|other| MEMBERS.remove_all(other, was.id()));
    }
}

/// A number was closed, or given to something else, where nobody could see it before.
pub(crate) fn forget(number: c_int) {
    left(number, NUMBERS.forget(number));
}

/// The same for all from `first` to `last`, which are about to be closed.
pub(crate) fn forget_range(first: u32, last: u32) {
    between(first, last).for_each(forget);
}

/// Numbers from `first` to `last` of which anything may be known.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = NUMBERS.end().unsigned_abs();
    (first..=last).take_while(move |number| *number < end).map(|number| number as c_int)
}

/// This process has an `io_uring`, by which anything may be done with any descriptor.
static HAS_RINGS: AtomicBool = AtomicBool::new(false);

/// It is about to get one.
pub(crate) fn has_rings_now() {
    HAS_RINGS.store(true, Ordering::Relaxed);
}

/// It has one.
pub(crate) fn has_rings() -> bool {
    HAS_RINGS.load(Ordering::Relaxed)
}
