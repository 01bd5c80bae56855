//! Maps memory of the kernel's, all zeros at first, and marks pages that a child finds wiped.
//!
//! What runs in here may be left by `longjmp`: then a mapping that was not given back stays, and
//! nothing else happens.

use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Types of which bytes that are all zeros are a value, and which have nothing to be dropped.
///
/// # Safety
/// It is so.
pub(crate) unsafe trait Zeros: Sized {}

// SAFETY: numbers, and arrays of what is.
unsafe impl Zeros for u8 {}
// SAFETY: as above.
unsafe impl Zeros for u32 {}
// SAFETY: as above.
unsafe impl Zeros for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeros for AtomicU64 {}
// SAFETY: as above.
unsafe impl Zeros for libc::pollfd {}
// SAFETY: as above.
unsafe impl<T: Zeros, const N: usize> Zeros for [T; N] {}

/// Which processes see what is written there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// This process sees it.
    Private,
    /// This process sees it, page by page as they are touched, and never by large pages.
    Sparse,
    /// Its children see it as well.
    Shared,
}

/// So many values in memory of their own, which goes back with this.
pub(crate) struct Mapping<T: Zeros + 'static>(&'static mut [T]);

impl<T: Zeros> Mapping<T> {
    /// `None`: there is no memory.
    pub(crate) fn new(count: usize, sharing: Sharing) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let flags = match sharing {
            Sharing::Private => MapFlags::PRIVATE,
            Sharing::Sparse => MapFlags::PRIVATE | MapFlags::NORESERVE,
            Sharing::Shared => MapFlags::SHARED,
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever the kernel likes, for which zeros are values; no other
        // thread has it.
        let values = unsafe {
            let start = mmap_anonymous(ptr::null_mut(), bytes, access, flags).ok()?;
            if sharing == Sharing::Sparse {
                // A page that is used, or has been given back, is not to cost 2 MiB.
                _ = madvise(start, bytes, Advice::LinuxNoHugepage);
            }
            core::slice::from_raw_parts_mut(start.cast::<T>(), count)
        };
        Some(Self(values))
    }

    /// It stays for good.
    pub(crate) fn leak(mut self) -> &'static mut [T] {
        core::mem::take(&mut self.0)
    }
}

impl<T: Zeros> Deref for Mapping<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T: Zeros> DerefMut for Mapping<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0
    }
}

impl<T: Zeros> Drop for Mapping<T> {
    fn drop(&mut self) {
        let (start, bytes) = (self.0.as_mut_ptr(), size_of_val(self.0));
        if bytes > 0 {
            // SAFETY: made in here, and borrowed by nothing any more.
            _ = unsafe { munmap(start.cast(), bytes) };
        }
    }
}

/// A value that is mapped when it is first needed, and stays. Two threads that make it at the same
/// time agree by one compare-and-swap, and the other's goes back.
pub(crate) struct MappedOnce<T>(AtomicPtr<T>);

impl<T: Zeros + Sync + 'static> MappedOnce<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// It was made.
    #[inline(always)]
    pub(crate) fn is_made(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a mapping that stays.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// `None`: there is no memory.
    pub(crate) fn make(&self, sharing: Sharing) -> Option<&'static T> {
        if !self.is_made() {
            let mut new = Mapping::<T>::new(1, sharing)?;
            let (place, null) = (new.as_mut_ptr(), ptr::null_mut());
            let made = self.0.compare_exchange(null, place, Ordering::AcqRel, Ordering::Acquire);
            if made.is_ok() {
                new.leak();
            }
        }
        self.get()
    }
}

/// Gives memory of a private mapping back, which is all zeros then. `false`: that cannot be, as
/// where it is not of whole pages.
pub(crate) fn wipe<T: Zeros>(memory: &mut [T]) -> bool {
    let (base, bytes) = (memory.as_mut_ptr(), size_of_val(memory));
    let is_whole = base.addr().is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
    // SAFETY: as whole pages, of which zeros are a value.
    is_whole && unsafe { madvise(base.cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
}

/// What a child of `fork` finds wiped, on a page of its own.
#[repr(C, align(4096))]
pub(crate) struct WipedPage<T>(T);

impl<T: Zeros + Sync> WipedPage<T> {
    /// In a `static`, all zeros: pages of a file's own data are not wiped.
    pub(crate) const fn new(value: T) -> Self {
        const { assert!(size_of::<Self>() == PAGE) };
        Self(value)
    }

    /// Children find zeros from now on. `false`: the kernel does not do that.
    pub(crate) fn wipe_on_fork(&'static self) -> bool {
        let page = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: a page that has nothing else, and zeros are a value of what it has.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_ok()
    }
}

impl<T> Deref for WipedPage<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zeros_and_may_be_written() {
        for sharing in [Sharing::Private, Sharing::Sparse, Sharing::Shared] {
            let mut memory = Mapping::<u32>::new(3000, sharing).unwrap();
            assert!(memory.len() == 3000 && memory.iter().all(|word| *word == 0));
            memory[2999] = 7;
            assert_eq!(memory.iter().sum::<u32>(), 7);
        }
    }

    #[test]
    fn more_than_there_can_be_is_none() {
        assert!(Mapping::<u64_pair::Pair>::new(usize::MAX / 8, Sharing::Private).is_none());
        assert!(Mapping::<u8>::new(0, Sharing::Private).is_none(), "nothing is no mapping");
    }

    mod u64_pair {
        #[derive(Clone, Copy)]
        pub(super) struct Pair(#[allow(dead_code, reason = "only its size matters")] [u64; 2]);
        // SAFETY: numbers.
        unsafe impl super::Zeros for Pair {}
    }

    #[test]
    fn what_is_made_once_is_the_same_for_all() {
        static ONCE: MappedOnce<[AtomicU64; 512]> = MappedOnce::new();
        assert!(!ONCE.is_made() && ONCE.get().is_none());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    ONCE.make(Sharing::Private).unwrap()[0].fetch_add(1, Ordering::Relaxed)
                });
            }
        });
        assert_eq!(ONCE.get().map(|words| words[0].load(Ordering::Relaxed)), Some(4));
    }

    #[test]
    fn only_whole_pages_are_wiped() {
        let mut memory = Mapping::<u8>::new(2 * PAGE, Sharing::Private).unwrap();
        memory.fill(7);
        assert!(!wipe(&mut memory[1..PAGE + 1]) && !wipe(&mut memory[..PAGE - 1]));
        assert!(memory.iter().all(|byte| *byte == 7));
        assert!(wipe(&mut memory[PAGE..]));
        assert!(memory[..PAGE].iter().all(|byte| *byte == 7));
        assert!(memory[PAGE..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_child_finds_its_page_wiped() {
        static MARK: WipedPage<AtomicU64> = WipedPage::new(AtomicU64::new(0));
        assert!(MARK.wipe_on_fork());
        MARK.store(5, Ordering::Relaxed);
        let mut status = -1;
        // SAFETY: the child does nothing but end, for which its parent waits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(MARK.load(Ordering::Relaxed) as i32);
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert_eq!((status, MARK.load(Ordering::Relaxed)), (0, 5));
    }
}
