//! Answers verbs that this device does not offer: `EOPNOTSUPP`, in the way that the return type
//! calls for. The arguments are whatever the caller put in registers; none is looked at.
//!
//! Only the generated entry points call these functions. Their symbols end in the words that
//! `symbols.toml` uses.

use core::ffi::{c_int, c_void};
use omniverb_terms::Errno;

use crate::errno::{minus_one, null, set_errno};

/// Returns the number itself.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_errno() -> c_int {
    Errno::EOPNOTSUPP.raw()
}

/// Returns the number negated, as wide as the widest such function (`ssize_t`).
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_negative_errno() -> isize {
    -(Errno::EOPNOTSUPP.raw() as isize)
}

/// Returns NULL and sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_null() -> *mut c_void {
    null(Errno::EOPNOTSUPP)
}

/// Returns -1 and sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_minus_one() -> c_int {
    minus_one(Errno::EOPNOTSUPP)
}

/// Returns 0 and sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_zero() -> u64 {
    set_errno(Errno::EOPNOTSUPP);
    0
}

/// For calls that return nothing: no error can be told, and `errno` is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_nothing() {}

/// Returns its argument.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_first_argument(argument: c_int) -> c_int {
    argument
}
