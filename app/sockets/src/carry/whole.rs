//! A call that moves one piece of memory, whole, by the ring: the shortest way there is. What is not
//! so simple goes the ways of [`super::outward`] and [`super::inward`], as if nobody had looked here.

use core::ffi::{c_int, c_void};

use omniverb_carry::Direction;
use omniverb_ring::UserMemory;

use super::at_once::{self, PLAIN};
use super::links::{Link, Memory, Note, Word};
use super::{attentive, brief, broker, clock, dirty, look, outward, residue};

/// A program's memory, if there may be some.
#[inline(always)]
fn piece(bytes: *const c_void, length: usize) -> Option<UserMemory> {
    let is_some = !bytes.is_null() && length > 0 && isize::try_from(length).is_ok();
    // SAFETY: the program's own memory, as it said.
    is_some.then(|| unsafe { UserMemory::new(bytes.expose_provenance(), length) })
}

/// Sends a piece by the link of a number, if that has one, with room, and nothing has to be looked
/// after.
#[inline(always)]
pub(crate) fn send(
    number: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> Option<isize> {
    let piece = piece(bytes, length)?;
    if flags & !outward::PLAIN != 0 {
        return None;
    }
    let brief = brief::enter(number, Word::Writer)?;
    let (link, now) = (brief.link(), clock::now());
    if broker::is_any() || dirty::is_any() && residue::is_due(now) || !look::was_recent(link, now) {
        return None;
    }
    let direction = link.outward()?;
    let is_put = direction.is_welcome() && at_once::put(link, &direction, number, &piece);
    is_put.then_some(length as isize)
}

/// Receives what is in the ring, if it is enough for this call.
#[inline(always)]
pub(crate) fn receive(
    number: c_int,
    bytes: *mut c_void,
    length: usize,
    flags: c_int,
) -> Option<isize> {
    let piece = piece(bytes, length)?;
    if flags & !PLAIN != 0 {
        return None;
    }
    let brief = brief::enter(number, Word::Reader)?;
    if broker::is_any() || dirty::is_any() && residue::is_due(clock::now()) {
        return None;
    }
    let (link, direction) = (brief.link(), brief.link().inward()?);
    let got = at_once::take(link, &direction, &piece, flags);
    if got.is_some() || !may_look(link, &direction, flags) {
        return got;
    }
    let place = direction.place();
    let is_empty = !place.is_taken() && direction.head().position() == place.position();
    let has_come = is_empty && attentive::look(link, &direction, place, length);
    if has_come { at_once::take(link, &direction, &piece, flags) } else { None }
}

/// A call may wait for bytes to come into the ring, for a moment: they would, and nothing else is
/// known that it would have to look after.
#[inline(always)]
fn may_look(link: Link, direction: &Direction<Memory>, flags: c_int) -> bool {
    let notes = Note::NonBlocking as u64 | Note::Broken as u64;
    flags & libc::MSG_DONTWAIT == 0
        && direction.is_welcome()
        && link.get(Word::Notes) & notes == 0
        && link.get(Word::Skip) == 0
        && link.get(Word::Error) == 0
        && link.get(Word::Looked) != 0
}
