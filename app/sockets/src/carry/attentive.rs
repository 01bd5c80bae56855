//! Looking at the ring without giving the processor away, at first: what is waited for is likely to
//! come soon.

use omniverb_carry::{Direction, Place};

use super::links::{Link, Memory, Note, Word};

/// So many looks. Before the first one there are pauses of the processor, few where each message is
/// waited for, more where several came without waiting: then more are to come at a time, since each
/// look takes what the other end writes to away from it.
const LOOKS: u32 = 200;
const PAUSES: u64 = 2;
const PAUSES_MAX: u64 = 64;

/// In [`Word::VainAt`], beside where that was: by this very call, the long way of which follows.
const JUST_NOW: u64 = 1;

/// For a call that has asked nobody so far: nothing is known that it would have to look after, and
/// it has not looked for this in vain before. What was sent by the kernel it would not find here.
#[inline(always)]
pub(super) fn may_look(link: Link, direction: &Direction<Memory>, place: Place) -> bool {
    let notes = Note::NonBlocking as u64 | Note::Broken as u64;
    let head = direction.head();
    !place.is_taken()
        && head.position() == place.position()
        && !head.is_stopped()
        && direction.is_welcome()
        && link.get(Word::Notes) & notes == 0
        && link.get(Word::Skip) == 0
        && link.get(Word::Error) == 0
        && link.get(Word::Looked) != 0
        && link.get(Word::VainAt) & !JUST_NOW != vain_at(place)
}

/// Another place than before has another one here.
fn vain_at(place: Place) -> u64 {
    (place.position() + 1) << 1
}

/// Looks, for such a call, which wants so many bytes. `true`: something has come.
#[inline(always)]
pub(super) fn look_first(
    link: Link,
    direction: &Direction<Memory>,
    place: Place,
    wanted: usize,
) -> bool {
    let has_come = look(link, direction, place, wanted);
    if !has_come {
        link.set(Word::VainAt, vain_at(place) | JUST_NOW);
    }
    has_come
}

/// This call has just looked so.
pub(super) fn has_looked(link: Link, place: Place) -> bool {
    let has_looked = link.get(Word::VainAt) == vain_at(place) | JUST_NOW;
    if has_looked {
        link.set(Word::VainAt, vain_at(place));
    }
    has_looked
}

/// Looks, where the ring was found empty, for a call that wants so many bytes. `true`: something has
/// come.
#[inline(always)]
pub(super) fn look(link: Link, direction: &Direction<Memory>, place: Place, wanted: usize) -> bool {
    let taken = place.position().wrapping_sub(link.get(Word::EmptyAt));
    let is_stream = taken > wanted as u64;
    let more = if is_stream { 2 * link.get(Word::Pauses) } else { 0 };
    let pauses = more.clamp(PAUSES, PAUSES_MAX);
    link.set(Word::EmptyAt, place.position());
    link.set(Word::Pauses, pauses);
    (0..pauses).for_each(|_| core::hint::spin_loop());
    let has_come = (0..LOOKS).any(|_| {
        direction.expect(place.position());
        let has_come = direction.head().position() != place.position();
        if !has_come {
            core::hint::spin_loop();
        }
        has_come
    });
    if has_come && link.get(Word::Vain) != 0 {
        link.set(Word::Vain, 0);
    }
    has_come
}
