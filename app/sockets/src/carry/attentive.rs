//! Looking at the ring without giving the processor away, at first: what is waited for is likely to
//! come soon.

use omniverb_carry::{Direction, Place};

use super::links::{Link, Memory, Word};

/// So many looks. Before the first one there are pauses of the processor, few where each message is
/// waited for, more where several came without waiting: then more are to come at a time, since each
/// look takes what the other end writes to away from it.
const LOOKS: u32 = 200;
const PAUSES: u64 = 2;
const PAUSES_MAX: u64 = 64;

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
