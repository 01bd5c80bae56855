//! Describes an address range of the application that the caller vouches for.
// UNSAFETY: turns addresses that the application handed to a verbs call into memory accesses.
#![expect(unsafe_code)]

/// A range of the application's own memory.
///
/// Creating one is the unsafe act: the creator vouches that the range stays readable (and, where
/// it is written, writable) while the value is used. For a memory region that is the contract of
/// `ibv_reg_mr`; for inline data that of `ibv_post_send`. Afterwards copying is safe to call:
/// races with the application's own threads are the application's business, as they are with an
/// RNIC's DMA.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory {
    address: usize,
    length: usize,
}

impl UserMemory {
    /// # Safety
    /// `address .. address + length` must be mapped, with the access the user of the value needs,
    /// for as long as the value or a part of it is used.
    #[inline(always)]
    pub const unsafe fn new(address: usize, length: usize) -> Self {
        Self { address, length }
    }

    /// Lends bytes of our own for the length of a call, to be read only.
    pub fn lend<R>(bytes: &[u8], borrower: impl FnOnce(UserMemory) -> R) -> R {
        borrower(Self { address: bytes.as_ptr().expose_provenance(), length: bytes.len() })
    }

    /// Lends bytes of our own for the length of a call, to be read and written.
    pub fn lend_mut<R>(bytes: &mut [u8], borrower: impl FnOnce(UserMemory) -> R) -> R {
        borrower(Self { address: bytes.as_mut_ptr().expose_provenance(), length: bytes.len() })
    }

    /// The empty range.
    pub const EMPTY: Self = Self { address: 0, length: 0 };

    /// Address of the first byte.
    #[inline(always)]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part, or `None` if it does not lie wholly inside.
    #[inline(always)]
    pub const fn part(&self, offset: usize, length: usize) -> Option<Self> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => {
                Some(Self { address: self.address + offset, length })
            }
            _ => None,
        }
    }

    /// The first `length` bytes, at most all.
    #[inline(always)]
    pub fn first(&self, length: usize) -> Self {
        Self { address: self.address, length: length.min(self.length) }
    }

    /// What is left without the first `length` bytes.
    #[inline(always)]
    pub fn skip(&self, length: usize) -> Self {
        let length = length.min(self.length);
        Self { address: self.address + length, length: self.length - length }
    }

    /// The first byte. The maker of the range exposed it, or it came from outside as a number.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Copies bytes in; as many as both have.
    pub fn write(&self, bytes: &[u8]) {
        let length = bytes.len().min(self.length);
        // SAFETY: the creator vouched for the range; `bytes` is a live slice of at least `length`.
        unsafe { copy(bytes.as_ptr(), self.pointer(), length) }
    }

    /// Copies bytes out; as many as both have.
    pub fn read(&self, bytes: &mut [u8]) {
        let length = bytes.len().min(self.length);
        // SAFETY: the creator vouched for the range; `bytes` is a live slice of at least `length`.
        unsafe { copy(self.pointer(), bytes.as_mut_ptr(), length) }
    }

    /// Copies in what another range has; as many bytes as both have.
    pub fn copy_from(&self, source: UserMemory) {
        let length = source.length.min(self.length);
        // SAFETY: their creators vouched for both.
        unsafe { copy(source.pointer(), self.pointer(), length) }
    }

    /// Compare-and-swap of the aligned native-endian `u64` at the start; returns the old value.
    /// `None` if the range is not 8 bytes on an 8-byte boundary.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> Option<u64> {
        let cell = self.cell()?;
        use core::sync::atomic::Ordering::SeqCst;
        Some(cell.compare_exchange(compare, swap, SeqCst, SeqCst).unwrap_or_else(|old| old))
    }

    /// Fetch-and-add, as [`Self::compare_swap`].
    pub fn fetch_add(&self, add: u64) -> Option<u64> {
        Some(self.cell()?.fetch_add(add, core::sync::atomic::Ordering::SeqCst))
    }

    /// Stores so that no reader sees a part of it, as [`Self::compare_swap`]. The bytes are as they
    /// are to be in memory.
    pub fn store(&self, value: [u8; 8]) -> Option<()> {
        let value = u64::from_ne_bytes(value);
        self.cell()?.store(value, core::sync::atomic::Ordering::SeqCst);
        Some(())
    }

    fn cell(&self) -> Option<&core::sync::atomic::AtomicU64> {
        if self.length != 8 || !self.address.is_multiple_of(8) {
            return None;
        }
        // SAFETY: aligned, and the creator vouched for the 8 bytes; atomics allow sharing.
        Some(unsafe { &*self.pointer().cast::<core::sync::atomic::AtomicU64>() })
    }
}

/// Copies `length` bytes between memory that other threads, processes or devices may touch at the
/// same time. Small sizes take one or two moves instead of a call: they are what latency is made
/// of.
///
/// # Safety
/// Both ranges must be mapped; they may race with other accesses, which yields torn bytes and
/// nothing worse.
#[inline(always)]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: the caller's promise; each arm touches exactly `length` bytes on both sides.
    unsafe {
        match length {
            0 => {}
            8 => target.cast::<u64>().write_unaligned(source.cast::<u64>().read_unaligned()),
            4 => target.cast::<u32>().write_unaligned(source.cast::<u32>().read_unaligned()),
            2 => target.cast::<u16>().write_unaligned(source.cast::<u16>().read_unaligned()),
            1 => target.write(source.read()),
            // Both ends may be one buffer of one process.
            _ => crate::copy_many(source, target, length),
        }
    }
}
