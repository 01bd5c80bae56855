//! Presents mappings to the ring code.
#![expect(unsafe_code)]
// UNSAFETY: vouches to the ring code that a mapping lives as long as its window, and asks the
// kernel about ranges of it.

use crate::mapping::Mapping;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Window, WordMemory};
use rustix::mm::{Advice, madvise};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A window on all of a mapping, not to be inherited by forked children. The mapping lives as long
/// as the window, or any part of it, and `keep` as long as the mapping.
pub(crate) fn over(mapping: Mapping, keep: impl Send + Sync + 'static) -> Window {
    let (base, length, all) = (mapping.as_ptr(), mapping.len(), mapping.all());
    // SAFETY: the range is this fresh mapping; not inheriting it changes nothing in this process.
    // If it fails, a child merely keeps a mapping it must not use.
    let _ = unsafe { madvise(base.as_ptr().cast(), all, Advice::LinuxDontFork) };
    // SAFETY: mapped for `length` bytes as long as `mapping`, which is kept, lives; page-aligned.
    // A read-only mapping is the caller's to write nothing through.
    unsafe { Window::new(base, length, Arc::new((mapping, keep))) }
}

/// Leaves all of a mapping's pages out of core dumps, which have them by another mapping.
pub fn exclude_from_core_dumps(window: &Window) {
    let address = std::ptr::with_exposed_provenance_mut(window.address());
    // SAFETY: it changes nothing that a load or a store sees. If it fails, dumps are larger.
    let _ = unsafe { madvise(address, window.len(), Advice::LinuxDontDump) };
}

/// Puts these bytes of a verified file, which are as many, in the place of what a writable window
/// shows now; `new` shows them already.
///
/// # Errors
/// `EINVAL` unless the window is all of a mapping's pages, otherwise what the kernel says.
pub(crate) fn replace(
    window: &Window,
    new: &Window,
    file: BorrowedFd<'_>,
    from: u64,
) -> io::Result<()> {
    let page = crate::clock::page_bytes();
    let length = window.len();
    let first = window.cell(0).map(|cell| cell.address());
    let Some(first) = first.filter(|at| at.is_multiple_of(page) && length.is_multiple_of(page))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for offset in (0..length).step_by(8) {
        let word = window.load(offset, Ordering::Relaxed);
        // Unwritten pages stay holes.
        if word != 0 {
            new.store(offset, word, Ordering::Relaxed);
        }
    }
    let address = std::ptr::with_exposed_provenance_mut(first);
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED;
    // SAFETY: the range is all of a live mapping that the window keeps; what takes its place is of
    // the same length and kind, and goes when that mapping would have gone.
    unsafe { rustix::mm::mmap(address, length, protection, flags, file, from)? };
    // SAFETY: as in `over`.
    let _ = unsafe { madvise(address, length, Advice::LinuxDontFork) };
    Ok(())
}

/// As [`residency`], of a window of [`crate::Extent::map_with_proof`]: an error also if the kernel
/// does not tell the truth. To a process that may not write to a file by its mode bits, which the
/// file's owner can change at any time, it says that every page is in memory, even one that the
/// file has not.
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
    use crate::{Access, Extent, memfd};

    #[test]
    fn untouched_pages_are_not_in_memory() {
        let file = memfd::create("test", 5 * 4096).unwrap();
        for first in [0, 4096] {
            let extent = Extent::new(&file, first, 4 * 4096);
            let [ours, theirs] = [(); 2].map(|()| extent.map(Access::ReadWrite).unwrap());
            theirs.store(2 * 4096, 1, Ordering::Relaxed);
            let mut resident = [7; 3];
            residency(&ours, 4096, &mut resident).unwrap();
            assert_eq!(resident.map(|byte| byte & 1), [0, 1, 0]);
            let hole =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, hole, first + 2 * 4096, 4096).unwrap();
            residency(&ours, 4096, &mut resident).unwrap();
            assert_eq!(resident.map(|byte| byte & 1), [0; 3]);
            for start in [8, 2 * 4096, usize::MAX] {
                assert!(residency(&ours, start, &mut resident).is_err(), "{start}");
            }
            assert!(residency(&ours, 0, &mut []).is_err());
        }
    }

    #[test]
    fn an_answer_that_is_worth_nothing_is_an_error() {
        for first in [0, 4096] {
            let file = memfd::create("test", 3 * 4096).unwrap();
            let extent = Extent::new(&file, first, 2 * 4096);
            let window = extent.map_with_proof(Access::ReadWrite, ()).unwrap();
            assert_eq!(window.len(), 2 * 4096);
            window.store(4096, 1, Ordering::Relaxed);
            let mut found = [7; 2];
            residency_for_sure(&window, 0, &mut found).unwrap();
            assert_eq!(found.map(|byte| byte & 1), [0, 1]);
            // As another user than the file's owner sees it, once that has changed the mode.
            let file: std::fs::File = file.into();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o0);
            file.set_permissions(mode).unwrap();
            let told = std::thread::spawn(move || {
                // SAFETY: concerns this thread alone, which ends.
                let other = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                (other == 0).then(|| residency_for_sure(&window, 0, &mut [0; 2]).is_err())
            });
            // `None`: the user of the tests cannot become another one.
            assert_ne!(told.join().unwrap(), Some(false));
        }
    }
}
