//! Describes a range of a shared mapping.
// UNSAFETY: reads and writes memory that another process can change at any time, through raw
// pointers and atomics.
#![expect(unsafe_code)]

use crate::shared_atomics::AtomicU64;
use crate::user_memory::{UserMemory, copy};
use crate::word_memory::WordMemory;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use std::any::Any;
use std::sync::{Arc, Weak};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Part of a mapping that is shared with another process. Keeps the mapping alive.
#[derive(Clone)]
pub struct Window {
    base: NonNull<u8>,
    length: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A window that does not keep its mapping alive.
#[derive(Clone)]
pub struct WeakWindow {
    base: NonNull<u8>,
    length: usize,
    owner: Weak<dyn Any + Send + Sync>,
}

impl WeakWindow {
    /// The window, if its mapping is there.
    pub fn upgrade(&self) -> Option<Window> {
        let owner = self.owner.upgrade()?;
        Some(Window { base: self.base, length: self.length, _owner: owner })
    }

    /// Whether its mapping is there.
    pub fn is_there(&self) -> bool {
        self.owner.strong_count() > 0
    }
}

// SAFETY: as for the window that it may become; by itself it reaches nothing.
unsafe impl Send for WeakWindow {}
// SAFETY: as above.
unsafe impl Sync for WeakWindow {}

// SAFETY: a window is an address range of shared memory; every access goes through atomics or
// byte copies that tolerate concurrent change.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// # Safety
    /// `base .. base + length` must stay mapped readable and writable (readable only, if nothing
    /// is ever written through the window) while `owner` lives, and `base` must be 8-byte aligned.
    pub unsafe fn new(base: NonNull<u8>, length: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(8));
        Self { base, length, _owner: owner }
    }

    /// A window over zeroed memory of this process alone: for tests and loopback.
    pub fn private(length: usize) -> Self {
        let words: Arc<Box<[core::sync::atomic::AtomicU64]>> =
            Arc::new((0..length.div_ceil(8)).map(|_| Default::default()).collect());
        let base = NonNull::from(&words[..]).cast::<u8>();
        Self { base, length, _owner: words }
    }

    /// The same window, as long as another owner keeps the mapping alive.
    pub fn downgrade(&self) -> WeakWindow {
        let owner = Arc::downgrade(&self._owner);
        WeakWindow { base: self.base, length: self.length, owner }
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where it begins, as a number.
    #[inline(always)]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// A part, or `None` if it does not lie wholly inside.
    pub fn part(&self, offset: usize, length: usize) -> Option<Window> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: `offset` is inside the range the creator vouched for.
        let base = unsafe { self.base.add(offset) };
        Some(Self { base, length, _owner: self._owner.clone() })
    }

    /// The range as if it were the application's own memory, for atomics on it.
    pub fn cell(&self, offset: usize) -> Option<UserMemory> {
        if offset.checked_add(8)? > self.length {
            return None;
        }
        // SAFETY: inside the mapping; it lives as long as `self`, which the caller holds while
        // using the value.
        Some(unsafe { UserMemory::new(self.base.as_ptr().expose_provenance() + offset, 8) })
    }

    /// The same of any length, for copies that are made elsewhere. Out of range panics.
    pub fn memory(&self, offset: usize, length: usize) -> UserMemory {
        let first = self.at(offset, length);
        // SAFETY: as for `cell`.
        unsafe { UserMemory::new(first.expose_provenance(), length) }
    }

    /// Copies `source` so that its last bytes become visible last: an application may wait for
    /// the end of a WRITE by looking at its last byte, as RNICs allow in practice.
    #[inline(always)]
    pub fn fill_last_byte_last(&self, offset: usize, source: UserMemory) {
        let length = source.len();
        if length <= 8 {
            self.fill(offset, source);
        } else {
            self.fill(offset, source.first(length - 8));
            fence(Ordering::Release);
            self.fill(offset + length - 8, source.skip(length - 8));
        }
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(length <= self.length && offset <= self.length - length, "outside the window");
        // SAFETY: just checked against the range the creator vouched for.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

/// Has the processor execute a prefetch of the cache line at an address: only a hint, and harmless
/// for any number, since these instructions never fault.
macro_rules! prefetch {
    ($instruction:literal, $address:expr) => {{
        let address: usize = $address;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: changes neither memory nor registers nor flags, whatever the address is.
        unsafe {
            core::arch::asm!(
                concat!($instruction, " [{0}]"),
                in(reg) address,
                options(nomem, nostack, preserves_flags)
            );
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = address;
    }};
}

/// Asks the processor to get the cache line at `address` for writing, meanwhile.
#[inline(always)]
pub fn prefetch_for_write(address: usize) {
    prefetch!("prefetchw", address);
}

/// Asks the processor to get the cache line at `address`, meanwhile.
#[inline(always)]
pub fn prefetch_for_read(address: usize) {
    prefetch!("prefetcht0", address);
}

impl WordMemory for Window {
    #[inline(always)]
    fn prefetch(&self, offsets: Range<usize>) {
        for offset in offsets.step_by(LINE_BYTES) {
            prefetch!("prefetcht0", self.address().wrapping_add(offset));
        }
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let pointer = self.at(offset, 8);
        // SAFETY: inside the mapping, aligned (base is, offset is), and only ever accessed as an
        // atomic or by byte copies whose races the protocols above rule out or tolerate.
        unsafe { &*pointer.cast::<AtomicU64>() }
    }

    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn fill(&self, offset: usize, source: UserMemory) {
        let target = self.at(offset, source.len());
        // SAFETY: target checked against the window, source vouched for by its creator.
        unsafe { copy(source.pointer(), target, source.len()) }
    }

    #[inline(always)]
    fn drain(&self, offset: usize, target: UserMemory) {
        let source = self.at(offset, target.len());
        // SAFETY: source checked against the window, target vouched for by its creator.
        unsafe { copy(source, target.pointer(), target.len()) }
    }
}
