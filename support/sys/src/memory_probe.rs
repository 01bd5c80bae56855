//! Tells whether memory of this process may be read or written, without a signal.
//!
//! What it finds may change at once.
// UNSAFETY: asks the kernel about addresses, by calls that rustix has not in that form.
#![expect(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;

use crate::page_protection::{self, NeededAccess};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

const PAGE: usize = 4096;

/// Whether every page of a range is mapped.
#[must_use]
pub fn is_mapped(address: usize, length: usize) -> bool {
    let start = address & !(PAGE - 1);
    let Some(end) = (address + length).checked_next_multiple_of(PAGE) else { return false };
    // SAFETY: MS_ASYNC changes nothing; it only reports unmapped pages (ENOMEM).
    let found = unsafe {
        rustix::mm::msync(start as *mut c_void, end - start, rustix::mm::MsyncFlags::ASYNC)
    };
    found.is_ok()
}

/// What looks at one page.
fn look(needs: NeededAccess) -> fn(usize) -> bool {
    match needs {
        NeededAccess::Reading => is_readable,
        NeededAccess::Writing => is_writable,
    }
}

/// Whether every page of a range, which is not empty, may be read, or written. Brings them in.
#[must_use]
pub fn is_usable_throughout(address: usize, length: usize, needs: NeededAccess) -> bool {
    let start = address & !(PAGE - 1);
    let Some(end) = (address + length).checked_next_multiple_of(PAGE) else { return false };
    let advice = match needs {
        NeededAccess::Writing => Advice::LinuxPopulateWrite,
        NeededAccess::Reading => Advice::LinuxPopulateRead,
    };
    // SAFETY: reads pages of the program, or writes them as they are; what it may not, it reports.
    match unsafe { madvise(start as *mut c_void, end - start, advice) } {
        // A page that may not be used, one of a device's memory, or a kernel before 5.14.
        Err(Errno::INVAL) => {
            let kind = look(needs);
            is_mapped(address, length) && (start..end).step_by(PAGE).all(kind)
        }
        found => found.is_ok(),
    }
}

/// Whether every page of a range may be read, or written. Where `/proc` says nothing of the pages
/// between the first and the last, it is enough that they are mapped. Touches no more than two of
/// them. The range is not empty.
#[must_use]
pub fn is_usable(address: usize, length: usize, needs: NeededAccess) -> bool {
    let kind = look(needs);
    let last = address + length - 1;
    let pages = last / PAGE - address / PAGE + 1;
    let between = || {
        let (start, end) = ((address / PAGE + 1) * PAGE, last / PAGE * PAGE);
        page_protection::allows(start, end, needs).unwrap_or_else(|| is_mapped(start, end - start))
    };
    kind(address) && (pages == 1 || kind(last)) && (pages <= 2 || between())
}

/// Asks the kernel to look at the number at `address`, and says whether it could. The numbers of
/// `futex(2)`: operation, its value, its second argument, and its second number.
fn asked(address: usize, operation: c_int, more: (*const c_void, *const u32, u32)) -> bool {
    let before = errno();
    // SAFETY: the kernel checks every address it is given.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            address as *const u32,
            operation | libc::FUTEX_PRIVATE_FLAG,
            0,
            more.0,
            more.1,
            more.2,
        )
    };
    let fault = answer == -1 && errno() == libc::EFAULT;
    set_errno(before);
    !fault
}

pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Puts back what a program may look at.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Whether the page of a byte may be read: a wait for no time at all looks at it.
fn is_readable(byte: usize) -> bool {
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let more = ((&raw const no_time).cast(), core::ptr::null(), 0);
    asked(byte & !3, libc::FUTEX_WAIT, more)
}

/// Whether it may be written: adds zero to it, in one step with whatever else is written there.
#[must_use]
pub fn is_writable(byte: usize) -> bool {
    /// `FUTEX_OP_ADD` of zero; compared with a number, and no thread is woken but by chance.
    const ADD_ZERO: u32 = 1 << 28 | 0x7ff;
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    let nobody = NOBODY.as_ptr() as usize;
    asked(nobody, libc::FUTEX_WAKE_OP, (core::ptr::null(), (byte & !3) as *const u32, ADD_ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn memory_is_usable_as_it_is_protected() {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: memory of our own; what is not writable is not written.
        unsafe {
            // Below where the kernel puts what other tests map, which would fit into the hole.
            let low = core::ptr::without_provenance_mut(0x12_3460_0000);
            let fixed = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let at = mmap_anonymous(low, 3 * PAGE, flags, fixed).unwrap();
            let begin = at as usize;
            at.cast::<u32>().write(77);
            assert!(
                is_usable(begin, 3 * PAGE, NeededAccess::Writing)
                    && is_usable(begin + 1, 1, NeededAccess::Reading)
            );
            assert_eq!(at.cast::<u32>().read(), 77);
            let last = at.byte_add(2 * PAGE);
            mprotect(last, PAGE, MprotectFlags::READ).unwrap();
            assert!(
                !is_usable(begin, 3 * PAGE, NeededAccess::Writing)
                    && is_usable(begin, 3 * PAGE, NeededAccess::Reading)
            );
            let all = is_usable_throughout;
            assert!(
                !all(begin, 3 * PAGE, NeededAccess::Writing)
                    && all(begin + 1, 3 * PAGE - 1, NeededAccess::Reading)
            );
            assert!(
                all(begin, 2 * PAGE, NeededAccess::Writing)
                    && !all(begin + 2 * PAGE - 1, 2, NeededAccess::Writing)
            );
            mprotect(last, PAGE, MprotectFlags::empty()).unwrap();
            assert!(
                !all(begin, 3 * PAGE, NeededAccess::Reading)
                    && all(begin, 2 * PAGE, NeededAccess::Reading)
            );
            assert_eq!(at.cast::<u32>().read(), 77);
            assert!(
                !is_usable(begin, 3 * PAGE, NeededAccess::Reading)
                    && is_usable(begin, 2 * PAGE, NeededAccess::Writing)
            );
            mprotect(last, PAGE, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            let middle = at.byte_add(PAGE);
            mprotect(middle, PAGE, MprotectFlags::READ).unwrap();
            assert!(
                !is_usable(begin, 3 * PAGE, NeededAccess::Writing)
                    && is_usable(begin, 3 * PAGE, NeededAccess::Reading)
            );
            mprotect(middle, PAGE, MprotectFlags::empty()).unwrap();
            assert!(
                !is_usable(begin, 3 * PAGE, NeededAccess::Reading)
                    && is_usable(begin, PAGE, NeededAccess::Writing)
            );
            munmap(middle, PAGE).unwrap();
            assert!(!is_usable(begin, 3 * PAGE, NeededAccess::Reading));
            assert!(!is_mapped(begin, 3 * PAGE) && is_usable(begin, PAGE, NeededAccess::Writing));
            assert!(
                !all(begin, 2 * PAGE, NeededAccess::Reading)
                    && all(begin, PAGE, NeededAccess::Writing)
            );
            munmap(at, PAGE).unwrap();
            munmap(last, PAGE).unwrap();
        }
    }
}
