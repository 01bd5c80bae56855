//! Receives bytes that no caller wants (`MSG_TRUNC`): they are counted and dropped, as TCP does.

use core::ffi::c_int;

use super::descriptors::Token;
use super::state::with;
use super::transfer::receive;
use crate::iovecs::Parts;
use crate::user_memory::{UserPart, UserSliceMut};

/// Bytes that are dropped at a time.
const PIECE: usize = 16 << 10;

/// `recv` with `MSG_TRUNC`, of so many bytes; with `MSG_PEEK` they stay, and are counted.
pub(crate) fn discard(token: Token, length: usize, flags: c_int) -> isize {
    let flags = flags & !libc::MSG_TRUNC;
    if flags & libc::MSG_PEEK != 0 {
        return peek(token, length, flags);
    }
    if length == 0 {
        return piece(token, 0, flags);
    }
    let (mut done, mut more) = (0, 0);
    while done < length {
        let most = PIECE.min(length - done);
        let got = piece(token, most, flags | more);
        let Ok(got) = usize::try_from(got) else { break };
        done += got;
        if got < most {
            return done as isize;
        }
        if flags & libc::MSG_WAITALL == 0 {
            more = libc::MSG_DONTWAIT;
        }
    }
    if done == 0 { -1 } else { done as isize }
}

fn peek(token: Token, length: usize, flags: c_int) -> isize {
    let got = piece(token, length.min(1), flags & !libc::MSG_WAITALL);
    if got <= 0 {
        return got;
    }
    let there = with(|state| state.slot(token).map(|at| state.queued(at))).flatten();
    there.map_or(got, |there| there.max(1).min(length) as isize)
}

fn piece(token: Token, bytes: usize, flags: c_int) -> isize {
    let mut place = [0_u8; PIECE];
    let part = [UserPart::of(UserSliceMut::of(&mut place[..bytes]).as_const())];
    receive(token, Parts::new(&part), flags)
}
