//! Copies large pieces through the cache or past it, whichever the reader gets faster
//! (docs/decisions/0061).
//!
//! Where processors share a cache, lines go from one to the other about as fast as bytes are
//! copied, and past the cache is slower. Where they do not, or a virtual machine's host has put
//! them far apart for the moment, each line has to be fetched from there, here and there. The
//! kernel does not tell which it is. So it is measured by each copy into the cache; if one was slow
//! the next ones go past it, and then it is tried again.

use core::sync::atomic::{AtomicU32, Ordering};

use omniverb_ring::{copy_many, nontemporal::copy_past};

use crate::tsc_clock;

/// Pieces of fewer bytes are left to the cache.
const LEAST: usize = 4096;
/// Bytes that are copied while the processor counts one, at least, or it is slow: some 6 to 10
/// GB/s.
const SWIFT: u64 = 3;
/// So many pieces go past the cache before it is tried again, if what was tried last was slow and
/// what was tried before was not: that may have been for another reason. Each further time in a row
/// twice as many, up to the second one.
const PAST: u32 = 4;
const PAST_MAX: u32 = 256;

/// How many of them are left, of this process; and how many there are to be next time.
static LEFT: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU32 = AtomicU32::new(PAST);

/// Copies bytes to where another process reads them.
///
/// # Safety
/// As of [`copy_many`].
#[inline(always)]
pub(crate) unsafe fn copy_over(from: *const u8, to: *mut u8, length: usize) {
    let is_large = length >= LEAST;
    let (is_past, began) = if is_large { begin_large() } else { (false, 0) };
    // SAFETY: as the caller says.
    unsafe { if is_past { copy_past(from, to, length) } else { copy_many(from, to, length) } }
    if is_large && !is_past {
        end_large(tsc_clock::now().wrapping_sub(began), length);
    }
}

/// Whether such a piece goes past the cache; and since when it is on its way.
fn begin_large() -> (bool, u64) {
    let left = LEFT.load(Ordering::Relaxed);
    if left > 0 {
        // Whatever other threads write there meanwhile it comes to its end.
        LEFT.store(left - 1, Ordering::Relaxed);
    }
    (left > 0, tsc_clock::now())
}

/// So long it took into the cache.
fn end_large(time: u64, length: usize) {
    if time > length as u64 / SWIFT {
        let next = NEXT.load(Ordering::Relaxed);
        LEFT.store(next, Ordering::Relaxed);
        NEXT.store((2 * next).min(PAST_MAX), Ordering::Relaxed);
    } else if NEXT.load(Ordering::Relaxed) != PAST {
        NEXT.store(PAST, Ordering::Relaxed);
    }
}
