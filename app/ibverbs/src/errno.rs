//! The four ways in which C verbs report an error, and the errno of a refused post.

use core::ffi::c_int;

use omniverb_device::{PostError, PostFault};
use omniverb_terms::Errno;

use crate::refusal_log::not_posted;

/// Sets the calling thread's `errno`.
pub fn set_errno(number: Errno) {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = number.raw() };
}

/// For verbs that return zero, or the number itself.
pub fn outcome<T>(result: Result<T, Errno>) -> c_int {
    result.err().unwrap_or(Errno::NONE).raw()
}

/// For verbs that return a pointer: sets `errno`, returns null.
pub fn null<T>(number: Errno) -> *mut T {
    set_errno(number);
    core::ptr::null_mut()
}

/// For the few verbs that return -1 and set `errno`.
pub fn minus_one(number: Errno) -> c_int {
    set_errno(number);
    -1
}

/// The errno of a refused post.
#[inline(always)]
pub(crate) fn post_error(error: PostError) -> Errno {
    match error {
        PostError::Invalid(fault) => not_posted(fault),
        PostError::Full => Errno::ENOMEM,
    }
}

/// A list that is longer than any queue takes, or is none.
#[cold]
pub(crate) fn too_many() -> Errno {
    not_posted(PostFault::Entries)
}
