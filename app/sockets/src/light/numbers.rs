//! Which number is for which light connection.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_stream::descriptors::{PIECE, Room};

use crate::room::Pieces;

/// For each number its row, or 0.
static NUMBERS: Pieces<{ 1 << 12 }> = Pieces::new();

fn word(number: c_int) -> Option<&'static AtomicU64> {
    let number = usize::try_from(number).ok()?;
    let word = NUMBERS.piece(number / PIECE)?.get(number % PIECE)?;
    // SAFETY: pieces stay for good.
    Some(unsafe { &*core::ptr::from_ref(word) })
}

/// The row that a number is for.
#[inline(always)]
pub(super) fn row(number: c_int) -> Option<u32> {
    let row = word(number)?.load(Ordering::Acquire) as u32;
    (row != 0).then_some(row)
}

/// There is room to say what a number is for.
pub(super) fn has_room(number: c_int) -> bool {
    usize::try_from(number).is_ok_and(|number| NUMBERS.make(number / PIECE).is_some())
}

/// A number is for a row from now on, or for none (0): what it was for.
pub(super) fn put(number: c_int, row: u32) -> Option<u32> {
    let was = word(number)?.swap(u64::from(row), Ordering::AcqRel) as u32;
    (was != 0).then_some(was)
}

/// All that are for something.
pub(super) fn each(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(crate::table::NUMBERS.end()).unwrap_or(0);
    (first..=last.min(end)).filter_map(|number| c_int::try_from(number).ok())
}
