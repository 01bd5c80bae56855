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

    /// Copies bytes of the program's there, or from there; others may change any meanwhile. Few are
    /// moved without a call.
    #[inline(always)]
    fn copy<const FILLS: bool>(self, offset: usize, user: UserMemory) {
        let (length, shared) = (user.len(), self.at(offset, user.len()));
        let (from, to) = if FILLS { (user.address(), shared) } else { (shared, user.address()) };
        let (from, to) = (from as *const u8, to as *mut u8);
        // SAFETY: one is within the mapping, the other is the program's, which said that it is
        // there. Bytes are bytes. Both ends of few are read before any is written, so the two
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
                _ if FILLS => copy_over(from, to, length),
                _ => copy_many(from, to, length),
            }
        }
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
        self.copy::<true>(offset, source);
    }

    #[inline(always)]
    fn drain(&self, offset: usize, target: UserMemory) {
        self.copy::<false>(offset, target);
    }

    #[inline(always)]
    fn prefetch(&self, offsets: core::ops::Range<usize>) {
        omniverb_ring::shared_window::prefetch_for_read(self.0.wrapping_add(offsets.start));
    }
}
