//! Error numbers of the C library and the kernel as ours.

use omniverb_terms::Errno;
use std::io;

/// Of what the standard library says; `EIO` if it does not come from the kernel.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, from_raw)
}

/// As the C library has it, where it is never negative.
pub(crate) fn from_raw(raw: i32) -> Errno {
    Errno(raw.unsigned_abs())
}
