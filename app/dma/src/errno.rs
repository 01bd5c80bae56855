//! Reports errors of calls as C programs expect them: -1 or null, and `errno`.

use core::ffi::c_int;

use omniverb_terms::Errno;

/// Of numbers that the C library has and `rnic/terms` has no use for.
const fn of(raw: c_int) -> Errno {
    Errno(raw.unsigned_abs())
}

pub(crate) const ECONNREFUSED: Errno = of(libc::ECONNREFUSED);
pub(crate) const EEXIST: Errno = of(libc::EEXIST);
pub(crate) const ESTALE: Errno = of(libc::ESTALE);
/// What a transfer's status is while it is under way.
pub(crate) const EINPROGRESS: Errno = of(libc::EINPROGRESS);

/// Sets the calling thread's `errno`.
pub(crate) fn set(number: Errno) {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = number.raw() };
}

/// This thread's `errno`; `EIO` if it says nothing.
pub(crate) fn last() -> Errno {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    match unsafe { *libc::__errno_location() } {
        0 => Errno::EIO,
        number => of(number),
    }
}

/// For calls that return zero, or -1 and set `errno`.
pub(crate) fn outcome(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => {
            set(number);
            -1
        }
    }
}

/// For calls that return a pointer: null, and `errno` is set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|number| {
        set(number);
        core::ptr::null_mut()
    })
}

/// What a call of rdma_cma.h said: 0, or -1 and `errno`.
pub(crate) fn call(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last()) }
}

/// What a verb said that returns zero or the number.
pub(crate) fn verb(number: c_int) -> Result<(), Errno> {
    if number == 0 { Ok(()) } else { Err(of(number)) }
}

/// What a call said that returns a pointer, or null and sets `errno`.
pub(crate) fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(last()) } else { Ok(pointer) }
}

/// What an event of a connection has in its status: a negative error number, or a reason.
pub(crate) fn status(status: c_int, otherwise: Errno) -> Errno {
    if (-4095..0).contains(&status) { of(status) } else { otherwise }
}
