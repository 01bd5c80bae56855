//! Moves one piece of memory by a lane, for calls that need nothing else.
//!
//! All other calls go by [`super::transfer`], as if the fast path had not been tried.

use core::ffi::c_int;
use core::ops::RangeInclusive;

use omniverb_connection::light::lane_assignment::Flow;
use omniverb_ring::UserMemory;

use super::descriptors::Token;
use super::lanes::{self, Held, PIECE};
use super::state::with;
use super::supported_socket_options::is_any_least;

/// Flags with which a call does the same here.
const SENDS_PLAINLY: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECEIVES_PLAINLY: c_int = SENDS_PLAINLY | libc::MSG_WAITALL;
/// Bytes of such a piece.
const BYTES: RangeInclusive<usize> = 1..=PIECE;

/// The connection of a descriptor, if a call with such a piece and these flags may come here, and
/// does not have to look after something else.
#[inline(always)]
fn asked(
    fd: c_int,
    piece: &UserMemory,
    (flags, plain): (c_int, c_int),
    has_duties: impl Fn() -> bool,
) -> Option<Token> {
    let token = super::token_of(fd)?;
    let is_plain = flags & !plain == 0 && BYTES.contains(&piece.len());
    (is_plain && !has_duties()).then_some(token)
}

/// The lane of a connection; but now and then the call goes the long way, behind a look at all that
/// has come by all channels, and that this process owes by them.
#[inline(always)]
fn held_for_one(token: Token, way: Flow) -> Option<Held<'static>> {
    let held = lanes::held(token, way)?;
    if held.has_turn() {
        return Some(held);
    }
    drop(held);
    look_after_others();
    None
}

#[cold]
fn look_after_others() {
    with(|state| state.progress());
}

/// Sends a piece by the lane of a descriptor's connection, if it has one, with room.
/// `has_duties`: there is something else that each call looks after.
#[inline(always)]
pub(crate) fn send(
    fd: c_int,
    piece: UserMemory,
    flags: c_int,
    has_duties: impl Fn() -> bool,
) -> Option<isize> {
    let token = asked(fd, &piece, (flags, SENDS_PLAINLY), has_duties)?;
    let held = held_for_one(token, Flow::Out)?;
    if held.sends_whole(piece) { Some(piece.len() as isize) } else { None }
}

/// Receives what is there, if it is enough for this call.
#[inline(always)]
pub(crate) fn receive(
    fd: c_int,
    piece: UserMemory,
    flags: c_int,
    has_duties: impl Fn() -> bool,
) -> Option<isize> {
    let has_more = || is_any_least() || has_duties();
    let token = asked(fd, &piece, (flags, RECEIVES_PLAINLY), has_more)?;
    let least = if flags & libc::MSG_WAITALL == 0 { 1 } else { piece.len() };
    let held = held_for_one(token, Flow::In)?;
    let bytes = held.receives_into(piece, least);
    if bytes > 0 { Some(bytes as isize) } else { None }
}
