//! Finds out how many places the kernel's table of descriptors has, for `select`.
//!
//! `select` looks at no bit beyond the table, and copies no word of a set that is longer: a program
//! may say `getdtablesize()` and have a set of `FD_SETSIZE`.

use core::ffi::c_int;
use std::os::fd::OwnedFd;

use omniverb_connection::readiness::select_sets::{BITS, FDS};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_getfd;

use crate::borrowed_fd::borrow;
use crate::next_library;
use crate::user_memory::{UserFdSets, UserPtrMut};

/// Words of a set that has one descriptor more than the C library's.
const WORDS: usize = FDS / BITS + 1;

/// How many places it has, and no less than the C library's sets. `None`: unknown.
pub(super) fn size() -> Option<usize> {
    // Few tables are longer, and the kernel says that sooner than `/proc`.
    if is_ignored(FDS) { Some(FDS) } else { size_by_proc().map(|size| size.max(FDS)) }
}

/// It has none for this descriptor, of which `poll` has said that it is not open.
pub(super) fn is_past_end(fd: usize) -> bool {
    if fd < WORDS * BITS { is_ignored(fd) } else { size().is_some_and(|size| fd >= size) }
}

/// `select` does not look at this descriptor, which is below the end of [`WORDS`].
fn is_ignored(fd: usize) -> bool {
    if fcntl_getfd(borrow(fd as c_int)).is_ok() {
        return false;
    }
    let mut words = [0; WORDS];
    words[fd / BITS] = 1 << (fd % BITS);
    let mut zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    next_library::select(UserFdSets::of_readers(&mut words), UserPtrMut::of(&mut zero)) == 0
}

#[cold]
fn size_by_proc() -> Option<usize> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file: OwnedFd = open(c"/proc/thread-self/status", flags, Mode::empty()).ok()?;
    // That line is one of the first, whatever the name of the program.
    let mut bytes = [0; 512];
    let count = rustix::io::read(&file, &mut bytes).ok()?;
    size_said(&bytes[..count])
}

fn size_said(status: &[u8]) -> Option<usize> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let said = lines.find_map(|line| line.strip_prefix(b"FDSize:"))?;
    core::str::from_utf8(said).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_says_the_size_of_the_table() {
        assert!(size_by_proc().is_some_and(|size| size >= BITS && size.is_multiple_of(BITS)));
        assert_eq!(size_said(b"Gid:\t0\t0\nFDSize:\t256\nGroups:\t"), Some(256));
        assert_eq!(size_said(b"Gid:\t0\t0\n"), None);
        assert!(size().is_some_and(|size| size >= FDS));
    }

    #[test]
    fn what_is_open_is_in_the_table() {
        assert!(!is_past_end(0) && !is_ignored(0));
        assert!(is_past_end(1 << 30));
    }
}
