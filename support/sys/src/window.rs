//! Mappings as the ring code sees them.
#![expect(unsafe_code)]
// UNSAFETY: vouches to the ring code that a mapping lives as long as its window, and asks the
// kernel about ranges of it.

use crate::mapping::{Access, Mapping};
use omniverb_ring::sync::Ordering;
use omniverb_ring::{Window, WordMemory};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maps the first `length` bytes of a verified memfd, not to be inherited by forked children. The
/// mapping lives as long as the window, or any part of it.
///
/// # Errors
/// What the kernel says.
pub fn map(file: BorrowedFd<'_>, length: usize, access: Access) -> io::Result<Window> {
    let mapping = Arc::new(Mapping::shared(file, 0, length, access)?);
    let base = mapping.as_ptr();
    // SAFETY: the range is this fresh mapping; not inheriting it changes nothing in this process.
    // If it fails, a child merely keeps a mapping it must not use.
    let _ = unsafe {
        rustix::mm::madvise(base.as_ptr().cast(), length, rustix::mm::Advice::LinuxDontFork)
    };
    // SAFETY: mapped for `length` bytes as long as `mapping`, the owner, lives; page-aligned.
    // A read-only mapping is the caller's to write nothing through.
    Ok(unsafe { Window::new(base, length, mapping) })
}

/// Puts the verified memfd `file`, which has at least the window's length, in the place of what a
/// writable window of [`map`] shows now, at the same addresses, with the same contents. What is
/// written meanwhile may be lost.
///
/// # Errors
/// `EINVAL` unless the window is all of a mapping's pages, otherwise what the kernel says.
pub fn replace(window: &Window, file: BorrowedFd<'_>) -> io::Result<()> {
    let page = crate::clock::page_bytes();
    let length = window.len();
    let first = window.cell(0).map(|cell| cell.address());
    let Some(first) = first.filter(|at| at.is_multiple_of(page) && length.is_multiple_of(page))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let new = map(file, length, Access::ReadWrite)?;
    for offset in (0..length).step_by(8) {
        let word = window.load(offset, Ordering::Relaxed);
        // Pages that nobody wrote stay holes.
        if word != 0 {
            new.store(offset, word, Ordering::Relaxed);
        }
    }
    let address = std::ptr::with_exposed_provenance_mut(first);
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED;
    // SAFETY: the range is all of a live mapping that the window keeps; what takes its place is of
    // the same length and kind, and goes when that mapping would have gone.
    unsafe { rustix::mm::mmap(address, length, protection, flags, file, 0)? };
    // SAFETY: as in `map`.
    let _ = unsafe { rustix::mm::madvise(address, length, rustix::mm::Advice::LinuxDontFork) };
    Ok(())
}

/// As [`map`], with a page behind it that the file does not have, for [`residency_for_sure`].
/// `keep` lives as long as the mapping.
///
/// # Errors
/// What the kernel says.
pub fn map_with_proof(
    file: BorrowedFd<'_>,
    length: usize,
    access: Access,
    keep: impl Send + Sync + 'static,
) -> io::Result<Window> {
    let whole =
        length.checked_add(crate::clock::page_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
    let mapping = Mapping::shared(file, 0, whole, access)?;
    let base = mapping.as_ptr();
    // SAFETY: as in `map`.
    let _ = unsafe {
        rustix::mm::madvise(base.as_ptr().cast(), whole, rustix::mm::Advice::LinuxDontFork)
    };
    // SAFETY: as in `map`; the page behind the window is part of no window.
    Ok(unsafe { Window::new(base, length, Arc::new((mapping, keep))) })
}

/// As [`residency`], of a window of [`map_with_proof`]: an error also if the kernel does not tell
/// the truth. To a process that may not write to a file by its mode bits, which the file's owner
/// can change at any time, it says that every page is in memory, even one that the file has not.
///
/// # Errors
/// As [`residency`]; `EPERM` if the answer is worth nothing.
pub fn residency_for_sure(window: &Window, start: usize, resident: &mut [u8]) -> io::Result<()> {
    proof(window)?;
    residency(window, start, resident)?;
    proof(window)
}

/// Asks about the page behind the window.
fn proof(window: &Window) -> io::Result<()> {
    let (page, mut byte) = (crate::clock::page_bytes(), 0);
    let behind = std::ptr::with_exposed_provenance_mut(window.address() + window.len());
    // SAFETY: the call reads and writes no memory but the byte.
    let done = unsafe { libc::mincore(behind, page, &raw mut byte) };
    match (done, byte & 1) {
        (0, 0) => Ok(()),
        (0, _) => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For each page that the range touches, whether it is in memory, so that reading or writing it
/// neither waits for a disk nor takes a page from the kernel on our account. It may be gone again
/// when this returns. `resident` has as many elements as there are pages; `start` is the first one.
///
/// # Errors
/// What the kernel says; `EINVAL` for pages that are not part of the window.
pub fn residency(window: &Window, start: usize, resident: &mut [u8]) -> io::Result<()> {
    let page = crate::clock::page_bytes();
    let inside = resident.len().checked_mul(page).and_then(|length| window.part(start, length));
    let part = inside.filter(|part| !part.is_empty()).and_then(|part| part.cell(0));
    let Some(first) = part.filter(|first| first.address().is_multiple_of(page)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let address = std::ptr::with_exposed_provenance_mut(first.address());
    // SAFETY: the kernel writes one byte for each page of the range, which is a part of the window,
    // page-aligned and just as long as there are bytes to write.
    let done = unsafe { libc::mincore(address, resident.len() * page, resident.as_mut_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn another_file_takes_the_place_of_one() {
        let (old, new) = (0, 1);
        let files = [old, new].map(|_| crate::memfd::create("test", 8192).unwrap());
        let window = map(files[old].as_fd(), 8192, Access::ReadWrite).unwrap();
        let part = window.part(4096, 64).unwrap();
        part.store(8, 42, Ordering::Relaxed);
        replace(&window, files[new].as_fd()).unwrap();
        let theirs = map(files[new].as_fd(), 8192, Access::ReadOnly).unwrap();
        assert_eq!(part.load(8, Ordering::Relaxed), 42);
        assert_eq!(theirs.load(4104, Ordering::Relaxed), 42);
        part.store(8, 43, Ordering::Relaxed);
        assert_eq!(theirs.load(4104, Ordering::Relaxed), 43);
        let before = map(files[old].as_fd(), 8192, Access::ReadOnly).unwrap();
        assert_eq!(before.load(4104, Ordering::Relaxed), 42);
        assert!(replace(&part, files[old].as_fd()).is_err());
    }

    #[test]
    fn windows_on_one_file_share_and_outlive_their_whole() {
        let file = crate::memfd::create("test", 8192).unwrap();
        let writer = map(file.as_fd(), 8192, Access::ReadWrite).unwrap().part(4096, 8).unwrap();
        let reader = map(file.as_fd(), 8192, Access::ReadOnly).unwrap();
        drop(file);
        writer.store(0, 42, Ordering::Relaxed);
        assert_eq!(reader.load(4096, Ordering::Relaxed), 42);
    }

    #[test]
    fn pages_that_nobody_touched_are_not_in_memory() {
        let file = crate::memfd::create("test", 4 * 4096).unwrap();
        let ours = map(file.as_fd(), 4 * 4096, Access::ReadWrite).unwrap();
        let theirs = map(file.as_fd(), 4 * 4096, Access::ReadWrite).unwrap();
        theirs.store(2 * 4096, 1, Ordering::Relaxed);
        let mut resident = [7; 3];
        residency(&ours, 4096, &mut resident).unwrap();
        assert_eq!(resident.map(|byte| byte & 1), [0, 1, 0]);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 2 * 4096, 4096).unwrap();
        residency(&ours, 4096, &mut resident).unwrap();
        assert_eq!(resident.map(|byte| byte & 1), [0; 3]);
        for start in [8, 2 * 4096, usize::MAX] {
            assert!(residency(&ours, start, &mut resident).is_err(), "{start}");
        }
        assert!(residency(&ours, 0, &mut []).is_err());
    }

    #[test]
    fn an_answer_that_is_worth_nothing_is_an_error() {
        let file = crate::memfd::create("test", 2 * 4096).unwrap();
        let window = map_with_proof(file.as_fd(), 2 * 4096, Access::ReadWrite, ()).unwrap();
        assert_eq!(window.len(), 2 * 4096);
        window.store(4096, 1, Ordering::Relaxed);
        let mut found = [7; 2];
        residency_for_sure(&window, 0, &mut found).unwrap();
        assert_eq!(found.map(|byte| byte & 1), [0, 1]);
        // As whoever is not the file's owner sees it, once that has changed the mode.
        let file: std::fs::File = file.into();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
        file.set_permissions(mode).unwrap();
        let told = std::thread::spawn(move || {
            // SAFETY: concerns this thread alone, which ends.
            let other = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            (other == 0).then(|| residency_for_sure(&window, 0, &mut [0; 2]).is_err())
        });
        // `None`: whoever runs the tests cannot become another user.
        assert_ne!(told.join().unwrap(), Some(false));
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        let file = crate::memfd::create("test", 4096).unwrap();
        assert!(map(file.as_fd(), 0, Access::ReadOnly).is_err());
    }
}
