//! Copies bytes that other processes may change meanwhile.
// UNSAFETY: reads and writes through raw pointers that the caller vouches for.
#![expect(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a part, if it has to be parts: less than what glibc copies by one instruction.
const PART: usize = 2048;
/// Bytes of a line of the cache, and how far ahead of what is copied it is fetched from memory.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) const LINE: usize = 64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const AHEAD: usize = 1024;
/// Bytes after which places in memory are the same for the processor as far as it looks at first.
const ALIASES: usize = 4096;
/// Bytes by which a target may be behind its source, in that sense, for that instruction to be
/// slow.
const BEHIND: usize = 64;

/// Copies `length` bytes, which may overlap, as many threads, processes or devices may touch them
/// at the same time.
///
/// The C library copies some thousand bytes and more by one instruction, `rep movsb`. Processors
/// (Zen 3 and 4) execute that for 64 bytes at a time, but byte by byte if each write seems to be
/// what the next read wants: if the target is some bytes behind the source *as far as the lowest
/// twelve bits say*. 1.9 instead of 38 GB/s were measured. It is no rare case: a ring begins at a
/// page, and what `malloc` gives of a megabyte begins 16 bytes behind one. Those are copied by
/// instructions of our own. QEMU, where it emulates processors, executes it byte by byte wherever
/// the two are: there all are copied in parts that are too small for it.
///
/// # Safety
/// Both ranges must be mapped; they may race with other accesses, which yields torn bytes and
/// nothing worse.
#[inline]
pub unsafe fn copy_many(source: *const u8, target: *mut u8, length: usize) {
    if length < PART || !is_slow(source.addr(), target.addr(), length, is_emulated()) {
        // SAFETY: as the caller says.
        unsafe { core::ptr::copy(source, target, length) };
    } else if is_emulated() {
        // SAFETY: as the caller says; they do not overlap.
        unsafe { copy_in_parts(source, target, length) };
    } else {
        // SAFETY: as the caller says; they do not overlap.
        unsafe { copy_in_lines(source, target, length) };
    }
}

/// Copies so few at a time that the C library moves registers.
unsafe fn copy_in_parts(source: *const u8, target: *mut u8, length: usize) {
    for done in (0..length).step_by(PART) {
        let part = PART.min(length - done);
        // SAFETY: a part of both; they do not overlap.
        unsafe { core::ptr::copy(source.add(done), target.add(done), part) };
    }
}

/// Copies line by line, from the first one on. (The C library copies these two from the last one
/// on, in parts as well, for which it is too late to fetch what comes next from memory.)
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_in_lines(source: *const u8, target: *mut u8, length: usize) {
    use core::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128,
    };

    let lines = length / LINE * LINE;
    // SAFETY: lines of both, and what is left behind them; they do not overlap. A prefetch of
    // unmapped memory does nothing.
    unsafe {
        for at in (0..lines).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(at + AHEAD).cast());
            let (from, to) = (source.add(at).cast::<__m128i>(), target.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, bytes) in line.into_iter().enumerate() {
                _mm_storeu_si128(to.add(part), bytes);
            }
        }
        core::ptr::copy(source.add(lines), target.add(lines), length - lines);
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_in_lines(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: as the caller says.
    unsafe { copy_in_parts(source, target, length) }
}

/// One instruction would take long. Not if they overlap: then parts would be wrong.
#[inline]
fn is_slow(source: usize, target: usize, length: usize, is_emulated: bool) -> bool {
    let behind = target.wrapping_sub(source) % ALIASES;
    (is_emulated || (1..BEHIND).contains(&behind)) && source.abs_diff(target) >= length
}

/// Whether QEMU executes each instruction of this machine's by some of its own, as CPUID tells
/// (leaf 0x40000000); no, where there is no CPUID.
#[inline]
pub fn is_emulated() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    // Nothing hangs on it but speed, and concurrent callers find the same.
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    match FOUND.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = hypervisor() == *b"TCGTCGTCGTCG";
            FOUND.store(if found { YES } else { NO }, Ordering::Relaxed);
            found
        }
        found => found == YES,
    }
}

/// What the hypervisor calls itself; other bytes where there is none.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[cold]
fn hypervisor() -> [u8; 12] {
    let leaf = core::arch::x86_64::__cpuid(0x4000_0000);
    let words = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes);
    core::array::from_fn(|at| words[at / 4][at % 4])
}

/// What is elsewhere is not known here.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn hypervisor() -> [u8; 12] {
    [0; 12]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nontemporal::copy_past;
    use proptest::prelude::*;

    type Copies = unsafe fn(*const u8, *mut u8, usize);

    #[test]
    fn what_malloc_gives_is_slow() {
        let (ring, large) = (0x7000_0000_0000, 0x7f00_0000_0010);
        assert!(is_slow(ring, large, 1 << 16, false));
        for (source, target, length) in [(large, ring, 1 << 16), (ring, ring + 4096, 4096)] {
            assert!(!is_slow(source, target, length, false));
            assert!(is_slow(source, target, length, true));
        }
        // Overlapping.
        assert!([false, true].iter().all(|emulated| !is_slow(ring, ring + 16, 4096, *emulated)));
    }

    proptest! {
        /// Near each other as the processor sees them, either way.
        #[test]
        fn all_bytes_of_slow_ones_come(
            (behind, parts, rest, back) in (1..BEHIND, 1..4_usize, 0..4_usize, any::<bool>()),
        ) {
            let length = parts * PART + rest - 1;
            let far = ALIASES * length.div_ceil(ALIASES) + behind;
            let mut bytes: Vec<u8> = (0..3 * far).map(|at| (at % 251) as u8).collect();
            let (from, to) = if back { (far, 0) } else { (0, far) };
            let before = bytes.clone();
            let base = bytes.as_mut_ptr();
            let (source, target) = (base.wrapping_add(from), base.wrapping_add(to));
            prop_assert!(back || is_slow(source.addr(), target.addr(), length, false));
            for copy in [copy_many as Copies, copy_in_parts, copy_in_lines] {
                bytes.copy_from_slice(&before);
                // SAFETY: both are within the bytes.
                unsafe { copy(source, target, length) };
                prop_assert_eq!(&bytes[to..to + length], &before[from..from + length]);
                prop_assert_eq!(&bytes[to + length..], &before[to + length..]);
            }
        }

        /// Wherever both are, in one buffer too.
        #[test]
        fn every_byte_is_copied(
            (from, to, length) in (0..9000_usize, 0..9000_usize, 0..9000_usize),
        ) {
            let before: Vec<u8> = (0..18_000_u32).map(|at| (at % 251) as u8).collect();
            for copy in [copy_many as Copies, copy_past] {
                let mut bytes = before.clone();
                let base = bytes.as_mut_ptr();
                // SAFETY: both are within the bytes.
                unsafe { copy(base.add(from), base.add(to), length) };
                prop_assert_eq!(&bytes[to..to + length], &before[from..from + length]);
                prop_assert_eq!(&bytes[..to], &before[..to]);
                prop_assert_eq!(&bytes[to + length..], &before[to + length..]);
            }
        }
    }
}
