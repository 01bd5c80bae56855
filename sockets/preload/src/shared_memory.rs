//! Accesses memory that this process shares with another one: of a link, or of a channel.

use core::sync::atomic::AtomicU64;
use std::io::{IoSlice, IoSliceMut};

use omniverb_ring::{UserMemory, WordMemory, copy_many};

use crate::nontemporal::copy_over;

/// So many bytes, where this process has them mapped. A link's are there as long as it is held
/// (`carry::links::enter`), a channel's as long as it is in its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<const LENGTH: usize>(usize);

impl<const LENGTH: usize> Memory<LENGTH> {
    /// What is mapped here.
    pub(crate) fn new(base: usize) -> Self {
        Self(base)
    }

    fn at(self, offset: usize, length: usize) -> usize {
        assert!(length <= LENGTH && offset <= LENGTH - length);
        self.0 + offset
    }

    /// Bytes for the kernel, which copies them once. Nothing in here looks at them.
    pub(crate) fn bytes<'a>(self, offset: usize, length: usize) -> IoSlice<'a> {
        let at = self.at(offset, length) as *const u8;
        // SAFETY: within the mapping. The other end may change them meanwhile: what is made of this
        // is an address and a length.
        IoSlice::new(unsafe { core::slice::from_raw_parts(at, length) })
    }

    /// Room for bytes that the kernel copies there. Nothing in here looks at them.
    pub(crate) fn room<'a>(self, offset: usize, length: usize) -> IoSliceMut<'a> {
        let at = self.at(offset, length) as *mut u8;
        // SAFETY: within the mapping. As above.
        IoSliceMut::new(unsafe { core::slice::from_raw_parts_mut(at, length) })
    }
}

impl<const LENGTH: usize> WordMemory for Memory<LENGTH> {
    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let address = self.at(offset, 8);
        // SAFETY: within the mapping, aligned, and only used as an atomic.
        unsafe { &*(address as *const AtomicU64) }
    }

    fn length(&self) -> usize {
        LENGTH
    }

    #[inline(always)]
    fn fill(&self, offset: usize, source: UserMemory) {
        let to = self.at(offset, source.len());
        let length = source.len();
        let (from, to) = (source.address() as *const u8, to as *mut u8);
        // SAFETY: the target is within the mapping; the source is the program's, who said that it
        // is there. Somebody may change either meanwhile: bytes are bytes.
        unsafe { copy(from, to, length, |from, to| copy_over(from, to, length)) }
    }

    #[inline(always)]
    fn drain(&self, offset: usize, target: UserMemory) {
        let from = self.at(offset, target.len());
        let length = target.len();
        let (from, to) = (from as *const u8, target.address() as *mut u8);
        // SAFETY: as above.
        unsafe { copy(from, to, length, |from, to| copy_many(from, to, length)) }
    }

    #[inline(always)]
    fn prefetch(&self, offsets: core::ops::Range<usize>) {
        omniverb_ring::shared_window::prefetch_for_read(self.0.wrapping_add(offsets.start));
    }
}

/// Copies bytes, of which others may change any meanwhile. Few are moved without a call, `many` by
/// that.
///
/// # Safety
/// So many are there at both places.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize, many: impl FnOnce(*const u8, *mut u8)) {
    // SAFETY: as the caller says. Both ends of them are read before any is written, so the two
    // places may be the same.
    unsafe {
        match length {
            8..=16 => {
                let last = length - 8;
                let (begin, end) = (from.cast::<u64>(), from.add(last).cast::<u64>());
                let (begin, end) = (begin.read_unaligned(), end.read_unaligned());
                to.cast::<u64>().write_unaligned(begin);
                to.add(last).cast::<u64>().write_unaligned(end);
            }
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            1 => to.write(from.read()),
            _ => many(from, to),
        }
    }
}
