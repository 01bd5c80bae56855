//! Does the process hold a file open for direct I/O?
//!
//! A thread inside a direct read has handed physical pages to a device; the device's stores pass
//! by every write protection. Where threads are stopped there is no such thread (a thread in
//! direct I/O does not stop before it is done), but write-protecting pages does not see it.
#![expect(unsafe_code)]
// UNSAFETY: borrows descriptors of the program by number, only to ask for their flags.

use core::mem::MaybeUninit;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, RawDir, fcntl_getfl, openat};

/// True also when it cannot be known.
pub(super) fn may_be_in_use() -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return true };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return true };
        let name = core::str::from_utf8(entry.file_name().to_bytes()).unwrap_or("");
        let Ok(number) = name.parse::<RawFd>() else { continue };
        // SAFETY: used for one fcntl; a descriptor closed meanwhile yields EBADF.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if fcntl_getfl(descriptor).is_ok_and(|flags| flags.contains(OFlags::DIRECT)) {
            return true;
        }
    }
    false
}
