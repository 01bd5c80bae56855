//! A call that moves one piece of memory, whole, by a lane: the shortest way there is. What is not
//! so simple goes the ways of [`super::moving`], as if nobody had looked here.

use core::ffi::{c_int, c_void};
use core::ops::RangeInclusive;

use omniverb_ring::UserMemory;
use omniverb_stream::light::busy::Way;

use super::lanes::{self, PIECE};

/// Flags with which a call does the same here.
const SENDS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECEIVES: c_int = SENDS | libc::MSG_WAITALL;
/// Bytes of such a piece.
const BYTES: RangeInclusive<usize> = 1..=PIECE;

/// What a program said where its bytes are, or are to be.
#[inline(always)]
fn piece(bytes: *const c_void, length: usize) -> Option<UserMemory> {
    let is_one = !bytes.is_null() && BYTES.contains(&length);
    // SAFETY: the program's own memory, as it said.
    is_one.then(|| unsafe { UserMemory::new(bytes.expose_provenance(), length) })
}

/// Sends a piece by the lane of a number's connection, if it has one, with room.
#[inline(always)]
pub(crate) fn send(
    number: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> Option<isize> {
    let token = super::row(number)?;
    let piece = piece(bytes, length).filter(|_| flags & !SENDS == 0)?;
    let held = lanes::held(token, Way::Out)?;
    if held.has_turn() && held.sends_whole(piece) { Some(length as isize) } else { None }
}

/// Receives what is there, if it is enough for this call.
#[inline(always)]
pub(crate) fn receive(
    number: c_int,
    bytes: *mut c_void,
    length: usize,
    flags: c_int,
) -> Option<isize> {
    let token = super::row(number)?;
    let piece = piece(bytes, length).filter(|_| flags & !RECEIVES == 0)?;
    let least = if flags & libc::MSG_WAITALL == 0 { 1 } else { length };
    let held = lanes::held(token, Way::In)?;
    if !held.has_turn() {
        return None;
    }
    held.receives_into(piece, least).flatten().map(|bytes| bytes as isize)
}
