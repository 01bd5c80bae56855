//! Finds out whether memory that a call names can be read, so that a bad address is an error.
//!
//! The kernel is asked once for each page, and a page that could be read counts as readable from
//! then on: a call costs a comparison. A program that unmaps such a page and names it in a later
//! call still gets SIGSEGV, where the kernel says `EFAULT`. Before Linux 5.14 all do.

use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Bytes of a page; of larger ones these are parts.
const PAGE: usize = 4096;
/// Pages that are remembered, 512 bytes a process.
const PLACES: usize = 64;

/// Numbers of pages that could be read, each in the place of its last bits. The first page, which
/// is 0, is never remembered.
static READABLE: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

/// All of so many bytes can be read.
#[inline]
pub(super) fn can_read(start: usize, bytes: usize) -> bool {
    let Some(last) = bytes.checked_sub(1) else { return true };
    let Some(last) = start.checked_add(last) else { return false };
    (start / PAGE..=last / PAGE).all(|page| {
        let is_known = page != 0 && place(page).load(Ordering::Relaxed) == page;
        is_known || ask(page)
    })
}

#[inline(always)]
fn place(page: usize) -> &'static AtomicUsize {
    &READABLE[page % PLACES]
}

/// Asks the kernel about a page, and remembers it. Where the kernel cannot tell, not even of a page
/// of ours, any counts as readable.
#[cold]
fn ask(page: usize) -> bool {
    if !is_read_in(page) {
        return !is_read_in(READABLE.as_ptr().addr() / PAGE);
    }
    place(page).store(page, Ordering::Relaxed);
    true
}

/// The kernel has read a page in for whoever may read it.
fn is_read_in(page: usize) -> bool {
    let size = page_size();
    let start = core::ptr::with_exposed_provenance_mut((page * PAGE) & !(size - 1));
    // SAFETY: nothing is changed, whatever is there.
    unsafe { madvise(start, size, Advice::LinuxPopulateRead) }.is_ok()
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    /// Calls with three new pages of which the one in the middle cannot be read.
    fn with_pages(act: impl FnOnce(usize)) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, which nothing else uses.
        unsafe {
            let start =
                mmap_anonymous(core::ptr::null_mut(), 3 * PAGE, access, MapFlags::PRIVATE).unwrap();
            mprotect(start.byte_add(PAGE), PAGE, MprotectFlags::empty()).unwrap();
            act(start.expose_provenance());
            munmap(start, 3 * PAGE).unwrap();
        }
    }

    #[test]
    fn memory_is_readable_up_to_a_page_that_is_not() {
        with_pages(|start| {
            for _ in 0..2 {
                assert!(can_read(start, PAGE) && can_read(start + 2 * PAGE, PAGE));
                assert!(can_read(start + PAGE - 1, 1) && !can_read(start + PAGE - 1, 2));
                assert!(!can_read(start, 3 * PAGE) && !can_read(start + PAGE, 1));
                assert!(can_read(start + PAGE, 0), "nothing is read");
            }
        });
    }

    #[test]
    fn addresses_of_no_program_are_not_readable() {
        assert!(!can_read(usize::MAX, 2) && !can_read(usize::MAX - PAGE, PAGE));
        assert!(!can_read(1 << 63, 8) && !can_read(8, 8));
    }
}
