//! Tells whether pages of this process may be read or written, by its mappings only.
//!
//! The kernel is asked for one mapping after the other (`PROCMAP_QUERY`, Linux 6.11), or, where it
//! cannot be, for the list of all. Without `/proc` it is not known.

// UNSAFETY: an ioctl that rustix does not have.
#![expect(unsafe_code)]

use crate::proc_maps;
use core::ops::ControlFlow;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// What a page must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeededAccess {
    /// That it is read.
    Reading,
    /// That it is written.
    Writing,
}

/// Whether every page from `start` on that lies before `end` is mapped and allows it. `None`: not
/// known.
pub fn allows(start: usize, end: usize, needs: NeededAccess) -> Option<bool> {
    let file = proc_maps::open_read(c"/proc/self/maps").ok()?;
    match asked(file.as_fd(), start, end, needs) {
        Ok(allowed) => Some(allowed),
        Err(_) => listed(start, end, needs).ok(),
    }
}

/// `struct procmap_query` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    protection: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
/// Only a mapping that may be read, or written, is found.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Mapping by mapping.
fn asked(
    file: BorrowedFd<'_>,
    start: usize,
    end: usize,
    needs: NeededAccess,
) -> Result<bool, Errno> {
    let flags = match needs {
        NeededAccess::Reading => READABLE,
        NeededAccess::Writing => WRITABLE,
    };
    let mut at = start;
    while at < end {
        let size = size_of::<ProcmapQuery>() as u64;
        let mut query = ProcmapQuery { size, flags, address: at as u64, ..ProcmapQuery::default() };
        // SAFETY: the ioctl takes and fills such a struct, whose name and build id are not asked
        // for.
        let update = unsafe { Updater::<QUERY, ProcmapQuery>::new(&mut query) };
        // SAFETY: it looks at mappings, and changes nothing.
        match unsafe { ioctl(file, update) } {
            Ok(()) => {}
            // No such mapping there.
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let next = usize::try_from(query.end).map_err(|_| Errno::RANGE)?;
        if next <= at {
            return Err(Errno::RANGE);
        }
        at = next;
    }
    Ok(true)
}

/// By the list of all.
fn listed(start: usize, end: usize, needs: NeededAccess) -> Result<bool, Errno> {
    let mut at = start;
    proc_maps::for_each(|mapping| {
        if mapping.end <= at {
            return ControlFlow::Continue(());
        }
        let allows = match needs {
            NeededAccess::Reading => mapping.may_read,
            NeededAccess::Writing => mapping.may_write,
        };
        if mapping.start > at || !allows {
            return ControlFlow::Break(());
        }
        at = mapping.end;
        if at >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(at >= end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    const PAGE: usize = 4096;

    /// What both ways say of some pages, the same.
    fn said(begin: usize, pages: core::ops::Range<usize>, needs: NeededAccess) -> bool {
        let (start, end) = (begin + pages.start * PAGE, begin + pages.end * PAGE);
        let found = listed(start, end, needs).unwrap();
        let file = proc_maps::open_read(c"/proc/self/maps").unwrap();
        match asked(file.as_fd(), start, end, needs) {
            Ok(asked) => assert_eq!(asked, found),
            Err(errno) => assert_eq!(errno, Errno::NOTTY, "a kernel before 6.11"),
        }
        assert_eq!(allows(start, end, needs), Some(found));
        found
    }

    #[test]
    fn what_lies_in_the_middle_counts() {
        use NeededAccess::{Reading, Writing};
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: memory of our own that nothing touches.
        unsafe {
            // Below where the kernel puts what other tests map, which would fit into the hole.
            let low = core::ptr::without_provenance_mut::<c_void>(0x12_3450_0000);
            let fixed = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let at = mmap_anonymous(low, 9 * PAGE, both, fixed).unwrap();
            let begin = at as usize;
            assert!(said(begin, 0..9, Reading) && said(begin, 0..9, Writing));
            mprotect(at.byte_add(2 * PAGE), PAGE, MprotectFlags::READ).unwrap();
            assert!(said(begin, 0..9, Reading) && !said(begin, 0..9, Writing));
            assert!(said(begin, 0..2, Writing) && said(begin, 3..9, Writing));
            mprotect(at.byte_add(4 * PAGE), PAGE, MprotectFlags::empty()).unwrap();
            assert!(!said(begin, 0..9, Reading) && said(begin, 0..4, Reading));
            munmap(at.byte_add(6 * PAGE), PAGE).unwrap();
            assert!(!said(begin, 5..9, Writing) && !said(begin, 5..7, Reading));
            assert!(said(begin, 5..6, Writing) && said(begin, 7..9, Writing));
            munmap(at, 6 * PAGE).unwrap();
            munmap(at.byte_add(7 * PAGE), 2 * PAGE).unwrap();
        }
    }
}
