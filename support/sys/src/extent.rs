//! Describes shared memory as some bytes of a file, and maps it after a check.
//!
//! In: a descriptor, an offset and a length, perhaps from a hostile process. Out: those bytes
//! mapped, and no others; nothing is mapped that was not verified, and files are mapped in no other
//! way. How a file shows that it cannot be cut short under a reader depends on its kind: for a
//! memfd its seals do ([`memfd::size`]); memory that the machine was given as a device is as large
//! as that ([`dax_device::size`]). An extent is no border: a holder of the descriptor can map all
//! of the file.

use crate::extent_error::VerifyError;
use crate::mapping::{Access, Mapping};
use crate::{clock, dax_device, mapping_as_ring_window, memfd};
use omniverb_ring::Window;
use rustix::fs::{FallocateFlags, FileType, fallocate, fstat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What lengths are multiples of: a page where pages are smallest. All that share memory count in
/// these; an extent begins on a page of this kernel's.
const UNIT: u64 = 4096;

/// Some whole pages of a file.
#[derive(Clone, Copy, Debug)]
pub struct Extent<F = Arc<OwnedFd>> {
    /// Whose pages they are.
    pub file: F,
    /// Where in the file they begin, in bytes.
    pub offset: u64,
    /// Their length in bytes.
    pub length: u64,
}

/// Which file it is, for all its descriptors, for as long as it is open or mapped anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// What kind of memory a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory file: it has pages where it was written, or looked at.
    File,
    /// Memory that was plugged into this machine: it has all its pages, and can only be mapped.
    Device,
}

/// Bytes of a file that can never lose any, whatever kind of memory it is.
fn size(file: BorrowedFd<'_>) -> Result<u64, VerifyError> {
    match memfd::size(file) {
        Err(VerifyError::NotMemory) => dax_device::size(file).ok_or(VerifyError::NotMemory),
        found => found,
    }
}

impl<F: AsFd> Extent<F> {
    /// These bytes of a file; anything at all.
    pub fn new(file: F, offset: u64, length: u64) -> Extent<F> {
        Extent { file, offset, length }
    }

    /// Checks that these are whole pages which the file has and keeps. Says how many bytes.
    ///
    /// # Errors
    /// [`VerifyError`] says what is wrong.
    pub fn verify(&self) -> Result<usize, VerifyError> {
        Ok(self.inspect()?.0)
    }

    /// The same, and how many bytes the file has.
    fn inspect(&self) -> Result<(usize, u64), VerifyError> {
        let Extent { offset, length, .. } = *self;
        let (page, range) = (clock::page_bytes() as u64, VerifyError::Range { offset, length });
        let whole = length > 0 && offset.is_multiple_of(page) && length.is_multiple_of(UNIT);
        let end = offset.checked_add(length).filter(|end| whole && i64::try_from(*end).is_ok());
        let (Some(needed), Ok(bytes)) = (end, usize::try_from(length)) else { return Err(range) };
        let found = size(self.file.as_fd())?;
        if needed > found {
            return Err(VerifyError::Short { found, needed });
        }
        Ok((bytes, found))
    }

    /// What can still be done to its file. Asks no file system, which may never answer.
    ///
    /// # Errors
    /// What the kernel says, if it is no memory file.
    pub fn seals(&self) -> io::Result<memfd::Seals> {
        memfd::Seals::of(self.file.as_fd())
    }

    /// What kind of memory it is in, if it was [verified](Self::verify).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn kind(&self) -> io::Result<Kind> {
        let mode = fstat(&self.file)?.st_mode;
        Ok(match FileType::from_raw_mode(mode) {
            FileType::CharacterDevice => Kind::Device,
            _ => Kind::File,
        })
    }

    /// Bytes of all of the file.
    ///
    /// # Errors
    /// If it is none of memory that can never be cut short.
    pub fn file_bytes(&self) -> Result<u64, VerifyError> {
        size(self.file.as_fd())
    }

    /// Which file it is in.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn file_id(&self) -> io::Result<FileId> {
        let status = fstat(&self.file)?;
        Ok(FileId { device: status.st_dev, inode: status.st_ino })
    }

    /// Maps it, if it is sound, where a forked child inherits it.
    ///
    /// # Errors
    /// One without an errno if it is not sound; otherwise what the kernel says, which is `EPERM`
    /// for a write-sealed file that is to be written.
    pub fn mapping(&self, access: Access) -> io::Result<Mapping> {
        Mapping::shared(self.file.as_fd(), self.offset, self.verify()?, access)
    }

    /// Maps it, if it is sound, not to be inherited by forked children. The mapping lives as long
    /// as the window, or any part of it.
    ///
    /// # Errors
    /// As [`mapping`](Self::mapping).
    pub fn map(&self, access: Access) -> io::Result<Window> {
        self.map_and_keep(access, ())
    }

    /// The same; `keep` lives as long as the mapping.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_and_keep(
        &self,
        access: Access,
        keep: impl Send + Sync + 'static,
    ) -> io::Result<Window> {
        Ok(mapping_as_ring_window::over(self.mapping(access)?, keep))
    }

    /// As [`map`](Self::map), if it has just so many bytes.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_exactly(&self, bytes: usize, access: Access) -> io::Result<Window> {
        self.map_exactly_and_keep(bytes, access, ())
    }

    /// The same; `keep` lives as long as the mapping.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_exactly_and_keep(
        &self,
        bytes: usize,
        access: Access,
        keep: impl Send + Sync + 'static,
    ) -> io::Result<Window> {
        let (found, expected) = (self.length, bytes as u64);
        if found != expected {
            return Err(VerifyError::Length { found, expected }.into());
        }
        self.map_and_keep(access, keep)
    }

    /// As [`map_exactly`](Self::map_exactly), for both to write, behind as many bytes of this
    /// process's own, which are the first half of the window; for [`crate::ProcessLiveness`].
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub(crate) fn map_behind_own(&self, bytes: usize) -> io::Result<Window> {
        let (found, expected) = (self.verify()? as u64, bytes as u64);
        if found != expected {
            return Err(VerifyError::Length { found, expected }.into());
        }
        Ok(mapping_as_ring_window::over(
            Mapping::behind_own(self.file.as_fd(), self.offset, bytes)?,
            (),
        ))
    }

    /// As [`map`](Self::map), with a page behind it that the file does not have, for
    /// [`mapping_as_ring_window::residency_for_sure`]. `keep` lives as long as the mapping.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_with_proof(
        &self,
        access: Access,
        keep: impl Send + Sync + 'static,
    ) -> io::Result<Window> {
        let (length, size) = self.inspect()?;
        let end = size.next_multiple_of(clock::page_bytes() as u64);
        let mapping =
            Mapping::with_a_page_of(self.file.as_fd(), (self.offset, length), end, access)?;
        Ok(mapping_as_ring_window::over(mapping, keep))
    }

    /// Takes its pages out of the file: it reads as zeros, also by mappings of it. The kernel takes
    /// long for a large one.
    ///
    /// # Errors
    /// One without an errno if it is not sound; `EPERM` for a write-sealed file.
    pub fn empty(&self) -> io::Result<()> {
        self.verify()?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, how, self.offset, self.length)?)
    }

    /// Puts it in the place of what a writable window of [`map`](Self::map) shows now, at the same
    /// addresses, with the same contents. What is written meanwhile may be lost.
    ///
    /// # Errors
    /// One without an errno if it is not sound or not as long as the window, or the window is not
    /// all of a mapping's pages; otherwise what the kernel says.
    pub fn replace(&self, window: &Window) -> io::Result<()> {
        let new = self.map_exactly(window.len(), Access::ReadWrite)?;
        mapping_as_ring_window::replace(window, &new, self.file.as_fd(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::WordMemory;
    use omniverb_ring::shared_atomics::Ordering;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> Arc<OwnedFd> {
        Arc::new(memfd::create("test", pages * PAGE).unwrap())
    }

    fn of(file: &Arc<OwnedFd>, first: u64, pages: u64) -> Extent {
        Extent::new(file.clone(), first * PAGE, pages * PAGE)
    }

    #[test]
    fn what_a_file_has_is_acceptable_wherever_it_begins() {
        let file = file(4);
        for (first, pages) in [(0, 4), (0, 1), (1, 2), (3, 1)] {
            assert_eq!(of(&file, first, pages).verify().unwrap() as u64, pages * PAGE);
        }
    }

    #[test]
    fn what_no_file_has_is_refused() {
        let file = file(4);
        let verify = |offset, length| Extent::new(file.clone(), offset, length).verify();
        for (offset, length) in [(0, 5 * PAGE), (4 * PAGE, PAGE), (1 << 40, PAGE)] {
            let found = verify(offset, length);
            assert!(matches!(found, Err(VerifyError::Short { .. })), "{offset} {length}");
        }
        let nonsense = [
            (0, 0),
            (PAGE, 0),
            (1, PAGE),
            (0, 1),
            (8, 8),
            (PAGE, PAGE - 8),
            (u64::MAX - PAGE + 1, PAGE),
            (PAGE, u64::MAX - PAGE + 1),
            (u64::MAX, u64::MAX),
            (1 << 63, PAGE),
            (PAGE, 1 << 63),
        ];
        for (offset, length) in nonsense {
            let found = verify(offset, length);
            assert!(matches!(found, Err(VerifyError::Range { .. })), "{offset} {length}");
            let extent = Extent::new(file.clone(), offset, length);
            assert!(extent.map(Access::ReadOnly).is_err());
            assert!(extent.map_with_proof(Access::ReadOnly, ()).is_err());
        }
    }

    #[test]
    fn a_file_that_could_shrink_is_refused_wherever_the_extent_lies() {
        let open = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4 * PAGE).unwrap();
        for offset in [0, PAGE] {
            let extent = Extent::new(&open, offset, PAGE);
            assert!(matches!(extent.verify(), Err(VerifyError::Resizable)));
            let refused = extent.map(Access::ReadOnly).err();
            assert_eq!(refused.and_then(|error| error.raw_os_error()), None);
        }
    }

    #[test]
    fn other_descriptors_are_refused() {
        for path in ["/proc/self/exe", "/dev/null", "/"] {
            let other = std::fs::File::open(path).unwrap();
            let found = Extent::new(&other, 0, PAGE).verify();
            assert!(matches!(found, Err(VerifyError::NotMemory)), "{path}");
        }
    }

    #[test]
    fn extents_of_one_file_show_its_bytes_and_no_others() {
        let file = file(4);
        let whole = of(&file, 0, 4).map(Access::ReadWrite).unwrap();
        let (first, second) = (of(&file, 1, 1), of(&file, 2, 2));
        let [one, other] = [&first, &second].map(|extent| extent.map(Access::ReadWrite).unwrap());
        assert_eq!((one.len(), other.len()), (4096, 8192));
        one.store(8, 1, Ordering::Relaxed);
        other.store(4096, 2, Ordering::Relaxed);
        assert_eq!(whole.load(4096 + 8, Ordering::Relaxed), 1);
        assert_eq!(whole.load(3 * 4096, Ordering::Relaxed), 2);
        assert_eq!(first.file_id().unwrap(), second.file_id().unwrap());
        assert_ne!(first.file_id().unwrap(), of(&self::file(4), 0, 4).file_id().unwrap());
        assert!(first.map_exactly(4096, Access::ReadOnly).is_ok());
        assert!(first.map_exactly(8192, Access::ReadOnly).is_err());
    }

    #[test]
    fn windows_on_one_file_share_and_outlive_their_whole() {
        let extent = of(&file(2), 0, 2);
        let writer = extent.map(Access::ReadWrite).unwrap().part(4096, 8).unwrap();
        let reader = extent.map(Access::ReadOnly).unwrap();
        drop(extent);
        writer.store(0, 42, Ordering::Relaxed);
        assert_eq!(reader.load(4096, Ordering::Relaxed), 42);
    }

    #[test]
    fn a_sealed_file_is_mapped_for_reading_only() {
        let file = memfd::create_sealable("test", 2 * PAGE).unwrap();
        let extent = Extent::new(&file, PAGE, PAGE);
        let owner = extent.mapping(Access::ReadWrite).unwrap();
        memfd::seal_future_write(file.as_fd()).unwrap();
        let refused = extent.map(Access::ReadWrite).err();
        assert_eq!(refused.and_then(|error| error.raw_os_error()), Some(libc::EPERM));
        extent.map(Access::ReadOnly).unwrap();
        drop(owner);
    }

    #[test]
    fn seals_are_reported_of_memory_files_only() {
        let seals = |file: &OwnedFd| Extent::new(file, 0, PAGE).seals();
        let open = memfd::create_sealable("test", PAGE).unwrap();
        assert!(!seals(&open).unwrap().is_for_writers(), "somebody may still seal it");
        memfd::seal_future_write(open.as_fd()).unwrap();
        assert!(seals(&open).unwrap().is_write_sealed);
        assert!(seals(&file(1)).unwrap().is_for_writers());
        assert!(seals(&std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }

    #[test]
    fn another_extent_takes_the_place_of_one() {
        for (before, after) in [(0, 0), (1, 3), (3, 1)] {
            let (old, new) = (of(&file(5), before, 2), of(&file(5), after, 2));
            let window = old.map(Access::ReadWrite).unwrap();
            let part = window.part(4096, 64).unwrap();
            part.store(8, 42, Ordering::Relaxed);
            new.replace(&window).unwrap();
            let theirs = new.map(Access::ReadOnly).unwrap();
            assert_eq!(part.load(8, Ordering::Relaxed), 42);
            assert_eq!(theirs.load(4104, Ordering::Relaxed), 42);
            part.store(8, 43, Ordering::Relaxed);
            assert_eq!(theirs.load(4104, Ordering::Relaxed), 43);
            let left = old.map(Access::ReadOnly).unwrap();
            assert_eq!(left.load(4104, Ordering::Relaxed), 42);
            assert!(old.replace(&part).is_err(), "not all of a mapping's pages");
            assert!(of(&new.file, 0, 1).replace(&window).is_err(), "shorter");
        }
    }

    #[test]
    fn what_is_emptied_reads_as_zeros_and_nothing_beside_it() {
        let file = file(4);
        let whole = of(&file, 0, 4).map(Access::ReadWrite).unwrap();
        (0..4).for_each(|page| whole.store(page * 4096, 7, Ordering::Relaxed));
        of(&file, 1, 2).empty().unwrap();
        let left = [0, 1, 2, 3].map(|page| whole.load(page * 4096, Ordering::Relaxed));
        assert_eq!(left, [7, 0, 0, 7]);
        assert!(of(&file, 3, 2).empty().is_err());
    }

    #[test]
    fn resident_pages_of_an_extent_are_exact() {
        let file = file(6);
        let whole = of(&file, 0, 6).map(Access::ReadWrite).unwrap();
        whole.store(4 * 4096, 1, Ordering::Relaxed);
        for (first, pages, there) in [(0, 6, 4), (3, 3, 1), (3, 2, 1), (4, 1, 0)] {
            let extent = of(&file, first, pages);
            let window = extent.map_with_proof(Access::ReadWrite, ()).unwrap();
            assert_eq!(window.len() as u64, pages * PAGE);
            let mut found = vec![7; pages as usize];
            mapping_as_ring_window::residency_for_sure(&window, 0, &mut found).unwrap();
            let expected = |page: usize| u8::from(page == there);
            let right = found.iter().enumerate().all(|(i, byte)| byte & 1 == expected(i));
            assert!(right, "{first} {pages}: {found:?}");
        }
    }
}
