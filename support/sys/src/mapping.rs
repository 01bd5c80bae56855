//! Maps a piece of a shared file.
#![expect(unsafe_code)]
// UNSAFETY: mapping memory is what this file is for; the only promise made to callers is that the
// range stays mapped while the `Mapping` lives.

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// What may be done through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads only; a store is a SIGSEGV.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Shared memory, unmapped on drop.
///
/// The contents are shared with other processes, possibly hostile ones: they change at any
/// instant, under a check as well as after it. Never make a reference to them; copy what you need
/// through raw pointers or atomics, then check the copy.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// Bytes behind those that are mapped, too.
    behind: usize,
}

// SAFETY: the mapping belongs to the whole process, and `Mapping` hands out only raw pointers, so
// moving it to another thread adds nothing that pointer users do not have to care about anyway.
unsafe impl Send for Mapping {}
// SAFETY: as above; there is no interior state, `&Mapping` only reads two words.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset`, shared. For [`crate::Extent`], which verifies
    /// them first.
    ///
    /// # Errors
    /// `EINVAL` for a zero length or an unaligned offset, `EPERM` for a write-sealed file mapped
    /// writable, otherwise what the kernel says.
    pub(crate) fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        access: Access,
    ) -> io::Result<Mapping> {
        let protection = access.protection();
        // SAFETY: a null hint lets the kernel choose unused addresses, so no existing object of
        // this process is touched.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, offset)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length, behind: 0 })
    }

    /// As [`shared`](Self::shared), with a page of the file, from `other` on, behind it: a part of
    /// the mapping that is not counted.
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    pub(crate) fn with_a_page_of(
        file: BorrowedFd<'_>,
        (offset, length): (u64, usize),
        other: u64,
        access: Access,
    ) -> io::Result<Mapping> {
        let page = crate::clock::page_bytes();
        let whole = length.checked_add(page).ok_or(io::ErrorKind::InvalidInput)?;
        let mut mapping = Mapping::shared(file, offset, whole, access)?;
        if offset.checked_add(length as u64) != Some(other) {
            // SAFETY: the last page of the mapping just made, which is known only here.
            unsafe {
                let last = mapping.start.as_ptr().add(length).cast();
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                mmap(last, page, access.protection(), flags, file, other)?;
            }
        }
        (mapping.length, mapping.behind) = (length, page);
        Ok(mapping)
    }

    /// Addresses for `length` bytes, at which there is nothing yet.
    ///
    /// # Errors
    /// `EINVAL` for a zero length, otherwise what the kernel says.
    pub(crate) fn reserve(length: usize) -> io::Result<Mapping> {
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses unused addresses, as above.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), reserve)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length, behind: 0 })
    }

    /// Maps `bytes` of a file from `offset` on, whole pages, `at` so many bytes of what was
    /// [reserved](Self::reserve), which nothing uses yet.
    ///
    /// # Errors
    /// One without an errno if there is no such room; otherwise as [`shared`](Self::shared).
    pub(crate) fn fill(
        &mut self,
        at: usize,
        (file, offset, bytes): (BorrowedFd<'_>, u64, usize),
        access: Access,
    ) -> io::Result<()> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.length);
        if !fits {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a part of the range that was reserved, which is known only here: this is the only
        // owner of the mapping.
        unsafe {
            let place = self.start.as_ptr().add(at).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(place, bytes, access.protection(), flags, file, offset)?;
        }
        Ok(())
    }

    /// Maps `length` bytes of zeros that are this process's own. They are not private ones: a
    /// process that is out of memory loses those before the kernel has done with it.
    ///
    /// # Errors
    /// `EINVAL` for a zero length, otherwise what the kernel says.
    pub(crate) fn own(length: usize) -> io::Result<Mapping> {
        let protection = Access::ReadWrite.protection();
        // SAFETY: the kernel chooses unused addresses, as above.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::SHARED)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length, behind: 0 })
    }

    /// Maps `length` bytes of `file` from `offset`, for both to write, behind as many of this
    /// process's own.
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    pub(crate) fn behind_own(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<Mapping> {
        let whole = length.checked_mul(2).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::own(whole)?;
        // SAFETY: the second half of the mapping just made, which is known only here.
        unsafe {
            let place = mapping.start.as_ptr().add(length).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(place, length, Access::ReadWrite.protection(), flags, file, offset)?;
        }
        Ok(mapping)
    }

    /// Where it begins; valid as long as the mapping lives.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes mapped, with those behind.
    pub(crate) fn all(&self) -> usize {
        self.length + self.behind
    }

    /// Bytes mapped, without those behind.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The 64-bit word at `offset`, whatever it is at this instant; `None` if it does not lie
    /// inside or is not aligned. For looking only: orders nothing.
    #[must_use]
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        let inside = offset.checked_add(8).is_some_and(|end| end <= self.length);
        if !inside || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: eight bytes inside the live mapping, aligned because mappings start on a page;
        // volatile, because other processes write them as they please.
        Some(unsafe { self.start.as_ptr().add(offset).cast::<u64>().read_volatile() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped; a user of a pointer into it broke the rule
        // that the range is valid only while the `Mapping` lives.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.all()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let file = crate::memfd::create("test", 8192).unwrap();
        let writer = Mapping::shared(file.as_fd(), 0, 8192, Access::ReadWrite).unwrap();
        let reader = Mapping::shared(file.as_fd(), 4096, 4096, Access::ReadOnly).unwrap();
        assert_eq!(writer.len(), 8192);
        // SAFETY: both pointers lie inside live mappings of this process; no other process has the
        // file.
        unsafe {
            writer.as_ptr().add(5000).write_volatile(42);
            assert_eq!(reader.as_ptr().add(5000 - 4096).read_volatile(), 42);
        }
    }

    #[test]
    fn words_are_read_inside_only() {
        let file = crate::memfd::create("test", 4096).unwrap();
        let mapping = Mapping::shared(file.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
        assert_eq!(mapping.load_u64(4088), Some(0));
        assert_eq!(mapping.load_u64(4089), None);
        assert_eq!(mapping.load_u64(4096), None);
        assert_eq!(mapping.load_u64(usize::MAX), None);
    }

    #[test]
    fn invalid_messages_are_refused() {
        let file = crate::memfd::create("test", 8192).unwrap();
        assert!(Mapping::shared(file.as_fd(), 0, 0, Access::ReadOnly).is_err());
        assert!(Mapping::shared(file.as_fd(), 1, 4096, Access::ReadOnly).is_err());
    }
}
