//! Maps descriptors to light connections.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::descriptors::{PIECE, Room};

use crate::table_memory::Pieces;

/// For each descriptor its slot, and which generation of that; or 0.
static TOKENS: Pieces<{ 1 << 12 }> = Pieces::new();

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    TOKENS.get(fd / PIECE)?.get(fd % PIECE)
}

/// A light connection: of use as long as its slot is not another one's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(u64);

impl Token {
    pub(super) fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(slot) | u64::from(generation) << 32)
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
    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The connection that a descriptor is for.
#[inline(always)]
pub(super) fn token(fd: c_int) -> Option<Token> {
    let word = word(fd)?.load(Ordering::Acquire);
    (word != 0).then_some(Token(word))
}

/// Its slot, for a caller with the lock: descriptors change under it only.
#[inline(always)]
pub(super) fn slot(fd: c_int) -> Option<u32> {
    token(fd).map(Token::slot)
}

/// There is room to say what a descriptor is for.
pub(super) fn has_room(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| TOKENS.make(fd / PIECE).is_some())
}

/// A descriptor is for a connection from now on, or for none: the slot that it was for.
pub(super) fn put(fd: c_int, token: Option<Token>) -> Option<u32> {
    let was = word(fd)?.swap(token.map_or(0, |token| token.0), Ordering::AcqRel) as u32;
    (was != 0).then_some(was)
}

/// All that are for something.
pub(super) fn each(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(crate::descriptor_tables::DESCRIPTORS.end()).unwrap_or(0);
    (first..=last.min(end)).filter_map(|fd| c_int::try_from(fd).ok())
}
