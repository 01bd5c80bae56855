//! Which number is for which light connection.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::descriptors::{PIECE, Room};

use crate::room::Pieces;

/// For each number its row, and which turn of that; or 0.
static NUMBERS: Pieces<{ 1 << 12 }> = Pieces::new();

fn word(number: c_int) -> Option<&'static AtomicU64> {
    let number = usize::try_from(number).ok()?;
    let word = NUMBERS.piece(number / PIECE)?.get(number % PIECE)?;
    // SAFETY: pieces stay for good.
    Some(unsafe { &*core::ptr::from_ref(word) })
}

/// A light connection: of use as long as its row is not another one's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(u64);

impl Token {
    pub(super) fn new(row: u32, turn: u32) -> Self {
        Self(u64::from(row) | u64::from(turn) << 32)
    }

    /// From what [`Self::word`] says.
    pub(super) fn of(word: u64) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub(super) fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(super) fn row(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn turn(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The connection that a number is for.
#[inline(always)]
pub(super) fn token(number: c_int) -> Option<Token> {
    let word = word(number)?.load(Ordering::Acquire);
    (word != 0).then_some(Token(word))
}

/// Its row, for who has the lock: numbers change under it only.
#[inline(always)]
pub(super) fn row(number: c_int) -> Option<u32> {
    token(number).map(Token::row)
}

/// There is room to say what a number is for.
pub(super) fn has_room(number: c_int) -> bool {
    usize::try_from(number).is_ok_and(|number| NUMBERS.make(number / PIECE).is_some())
}

/// A number is for a connection from now on, or for none: the row that it was for.
pub(super) fn put(number: c_int, token: Option<Token>) -> Option<u32> {
    let was = word(number)?.swap(token.map_or(0, |token| token.0), Ordering::AcqRel) as u32;
    (was != 0).then_some(was)
}

/// All that are for something.
pub(super) fn each(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(crate::table::NUMBERS.end()).unwrap_or(0);
    (first..=last.min(end)).filter_map(|number| c_int::try_from(number).ok())
}
