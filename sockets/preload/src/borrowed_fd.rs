//! Borrows a descriptor by its number for a system call by rustix.

use core::ffi::c_int;
use std::os::fd::BorrowedFd;

/// Nothing is open here, nor is it a number with a meaning of its own.
const NEVER_OPEN: c_int = c_int::MIN;

/// What is open at this number, for one call: the call fails if nothing is. The program may have
/// something else there by then, as it may for any call of its own.
#[inline]
pub(crate) fn borrow(fd: c_int) -> BorrowedFd<'static> {
    let fd = if fd < 0 { NEVER_OPEN } else { fd };
    // SAFETY: not -1. Nothing is read or written by a descriptor but by a system call, for which
    // any number is good.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes a descriptor that the library has made, and not by its own `close`.
pub(crate) fn close_own(fd: c_int) {
    // SAFETY: as above; that it is the library's is what its caller knows.
    unsafe { rustix::io::close(fd) };
}
