//! Copies past the cache, for a reader on another processor.
// UNSAFETY: reads and writes through raw pointers that the caller vouches for.
#![expect(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::racy_copy::LINE;
use crate::{copy_many, is_emulated};

/// As [`copy_many`], but what is written goes to memory, and not into this processor's cache, where
/// it can: a reader on another one need not fetch each line from here, nor has this one to fetch
/// each line before from there. All of it is there before whatever is stored next.
///
/// Where lines go from one processor to the other slowly that is up to six times as fast, and
/// slower otherwise (docs/decisions/0061).
///
/// # Safety
/// As [`copy_many`].
#[inline]
pub unsafe fn copy_past(source: *const u8, target: *mut u8, length: usize) {
    if is_emulated() || source.addr().abs_diff(target.addr()) < length {
        // SAFETY: as the caller says.
        return unsafe { copy_many(source, target, length) };
    }
    // SAFETY: as the caller says; the two do not overlap.
    unsafe { copy_lines(source, target, length) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines(source: *const u8, target: *mut u8, length: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let before = target.addr().wrapping_neg() % LINE;
    let before = before.min(length);
    let lines = (length - before) / LINE * LINE;
    // SAFETY: three parts of both, which make up the whole; the target of the second one is
    // aligned.
    unsafe {
        copy_many(source, target, before);
        for at in (before..before + lines).step_by(LINE) {
            let (from, to) = (source.add(at).cast::<__m128i>(), target.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, bytes) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), bytes);
            }
        }
        // Such stores are in no order with others, not even with a release.
        _mm_sfence();
        let done = before + lines;
        copy_many(source.add(done), target.add(done), length - done);
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_lines(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: as the caller says.
    unsafe { copy_many(source, target, length) }
}
