//! Receiving what is in the ring, where nothing else has to be thought of.

use core::ffi::c_int;

use omniverb_carry::Direction;
use omniverb_carry::layout::RING;

use super::links::{Link, Memory, Note, Word};
use super::parts::Parts;

/// Flags that are understood here; all others are for the kernel alone.
pub(super) const PLAIN: c_int = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;
/// Bytes that are taken at a time: while some are copied out, the other end copies more in.
pub(super) const PIECE: usize = RING / 4;

/// What many calls come to: there are bytes in the ring, few enough to be copied at once, and none
/// of the kernel's before them. How many it has got; `None`: nothing was taken.
#[inline(always)]
pub(super) fn take(
    link: Link,
    direction: &Direction<Memory>,
    parts: &Parts<'_>,
    flags: c_int,
) -> Option<isize> {
    let mut seen = link.get(Word::SeenHead);
    let waiting = direction.waiting_by(&mut seen, parts.total());
    link.set(Word::SeenHead, seen);
    let (place, bytes) = waiting.ok()?;
    let length = bytes.min(parts.total());
    let is_quick = length > 0
        && length <= PIECE
        && flags & (!PLAIN | libc::MSG_PEEK) == 0
        && (flags & libc::MSG_WAITALL == 0 || length == parts.total())
        && link.get(Word::Passed) == direction.fence().wrapping_add(1)
        && !link.has(Note::Broken);
    if !is_quick {
        return None;
    }
    match parts.only() {
        Some(piece) => direction.drain(place.position(), 0, piece.first(length)),
        None => parts.each(0, length, |done, piece| direction.drain(place.position(), done, piece)),
    }
    if !direction.take(place, length) {
        return None;
    }
    if link.get(Word::Shown) != 0 {
        link.set(Word::Shown, 0);
    }
    Some(length as isize)
}
