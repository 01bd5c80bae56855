//! Maps memory for tables, piece by piece, when it is first needed.
//!
//! A piece that is made stays. A child of `vfork` makes none: what it would write there is not its
//! parent's affair.

use core::sync::atomic::AtomicU64;

use omniverb_connection::descriptors::{PIECE, Room};

use crate::anonymous_mappings::{MappedOnce, Sharing};

type Piece = [AtomicU64; PIECE];

/// Pieces by index.
pub(crate) struct Pieces<const COUNT: usize>([MappedOnce<Piece>; COUNT]);

impl<const COUNT: usize> Pieces<COUNT> {
    pub(crate) const fn new() -> Self {
        Self([const { MappedOnce::new() }; COUNT])
    }

    /// A piece that was made.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&'static Piece> {
        self.0.get(index)?.get()
    }

    /// A piece, which is made if it was not.
    pub(crate) fn make_piece(&self, index: usize) -> Option<&'static Piece> {
        self.0.get(index)?.make(Sharing::Private)
    }
}

impl<const COUNT: usize> Room for Pieces<COUNT> {
    #[inline(always)]
    fn piece(&self, index: usize) -> Option<&Piece> {
        self.get(index)
    }

    fn make(&self, index: usize) -> Option<&Piece> {
        self.make_piece(index)
    }
}
