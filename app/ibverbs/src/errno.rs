//! The three ways in which C verbs report an error.

use core::ffi::c_int;

/// Sets the calling thread's `errno`.
pub fn set_errno(number: c_int) {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = number };
}

/// For verbs that return a pointer: sets `errno`, returns null.
pub fn null<T>(number: c_int) -> *mut T {
    set_errno(number);
    core::ptr::null_mut()
}

/// For the few verbs that return -1 and set `errno`.
pub fn minus_one(number: c_int) -> c_int {
    set_errno(number);
    -1
}
