//! Finds out whether memory that a call names can be read, so that a bad address is an error.
//!
//! The kernel is asked once for each page, and a page that could be read counts as readable from
//! then on: a call costs a comparison. A program that unmaps such a page and names it in a later
//! call still gets SIGSEGV, where the kernel says `EFAULT`.

use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use super::{CallFrame, UserSystemCall};
use crate::errno::keeping_errno;
use crate::native;

/// Bytes of a page; of larger ones these are parts.
const PAGE: usize = 4096;
/// Budget: pages that are remembered, 512 bytes a process.
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

/// Asks the kernel about a page, and remembers it.
#[cold]
fn ask(page: usize) -> bool {
    let address = page * PAGE;
    // SAFETY: reads a page in, if there is one, as who reads it does.
    let advised = unsafe {
        let start = core::ptr::with_exposed_provenance_mut(address);
        madvise(start, PAGE, Advice::LinuxPopulateRead)
    };
    let can_read = advised.is_ok() || ask_by_mask(address);
    if can_read {
        place(page).store(page, Ordering::Relaxed);
    }
    can_read
}

/// The same where the kernel does not know that advice (before Linux 5.14), or will not say: it
/// reads a signal mask there before it refuses what is to be done with it.
fn ask_by_mask(address: usize) -> bool {
    const NOTHING: usize = usize::MAX;
    let (frame, bytes) = (CallFrame::begin(), size_of::<u64>());
    // The last bytes of the page, since the first ones of the first page would be no mask at all.
    let address = address + PAGE - bytes;
    let number = libc::SYS_rt_sigprocmask;
    // SAFETY: the kernel takes any address, and writes to none.
    let call =
        unsafe { UserSystemCall::given(frame.during(), number, NOTHING, address, 0, bytes, 0, 0) };
    keeping_errno(|| {
        native::syscall(call);
        crate::errno::errno() != libc::EFAULT
    })
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;
    use crate::errno::{errno, set_errno};

    /// Calls with three new pages of which the one in the middle cannot be read.
    fn with_pages(act: impl FnOnce(usize)) {
        native::fill();
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
    fn both_ways_of_asking_agree() {
        with_pages(|start| {
            set_errno(libc::EDOM);
            assert!(ask_by_mask(start) && ask_by_mask(start + 2 * PAGE));
            assert!(!ask_by_mask(start + PAGE) && !ask_by_mask(0));
            assert_eq!(errno(), libc::EDOM);
        });
    }

    #[test]
    fn addresses_of_no_program_are_not_readable() {
        native::fill();
        assert!(!can_read(usize::MAX, 2) && !can_read(usize::MAX - PAGE, PAGE));
        assert!(!can_read(1 << 63, 8) && !can_read(8, 8));
    }
}
