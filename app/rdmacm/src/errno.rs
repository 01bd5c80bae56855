//! Reports errors of calls as C programs expect them: -1 or null, and `errno`.

use core::ffi::c_int;

use omniverb_terms::Errno;

/// Of numbers that the C library has and `rnic/terms` has no use for.
pub(crate) const fn of(raw: c_int) -> Errno {
    Errno(raw.unsigned_abs())
}

pub(crate) const EADDRNOTAVAIL: Errno = of(libc::EADDRNOTAVAIL);
pub(crate) const ECONNREFUSED: Errno = of(libc::ECONNREFUSED);
pub(crate) const EEXIST: Errno = of(libc::EEXIST);
pub(crate) const ENOSYS: Errno = of(libc::ENOSYS);

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(number: Errno) {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = number.raw() };
}

/// For calls that return zero, or -1 and set `errno`.
pub(crate) fn outcome(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => {
            set_errno(number);
            -1
        }
    }
}

/// For calls that return a pointer: sets `errno`, returns null.
pub(crate) fn null<T>(number: Errno) -> *mut T {
    set_errno(number);
    core::ptr::null_mut()
}

/// What a verb said that returns zero or the number.
pub(crate) fn verb(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        number => Err(of(number)),
    }
}

/// What a verb said that returns a pointer, or null and sets `errno`.
pub(crate) fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(last()) } else { Ok(pointer) }
}

/// This thread's `errno`; `EIO` if it says nothing.
pub(crate) fn last() -> Errno {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    match unsafe { *libc::__errno_location() } {
        0 => Errno::EIO,
        number => of(number),
    }
}
