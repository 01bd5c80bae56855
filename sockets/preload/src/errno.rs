//! Reads and sets `errno` of the calling thread.

use core::ffi::c_int;

/// What it is.
pub(crate) fn errno() -> c_int {
    with(|errno| *errno)
}

fn with<R>(act: impl FnOnce(&mut c_int) -> R) -> R {
    // SAFETY: libc returns a valid pointer to this thread's own variable, which nothing else uses
    // meanwhile.
    act(unsafe { &mut *libc::__errno_location() })
}

/// The program sees this value from now on.
pub(crate) fn set_errno(value: c_int) {
    with(|errno| *errno = value);
}

/// What a call says that fails with this.
pub(crate) fn fails(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// Does something that may set it; it is then as before.
pub(crate) fn keeping_errno<R>(act: impl FnOnce() -> R) -> R {
    let before = errno();
    let result = act();
    set_errno(before);
    result
}
