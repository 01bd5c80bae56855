//! What calls that this library does not offer answer: -1, and `EOPNOTSUPP`; of calls with a
//! socket over RDMA `EBADF`, since none can be made. The arguments are whatever the caller put in
//! registers; none is looked at.
//!
//! Only the generated entry points call these functions. Their symbols end in the words that
//! `symbols.toml` uses.

use omniverb_terms::Errno;

use crate::errno::set_errno;

/// Returns -1, as wide as the widest such function (`ssize_t`), and sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_minus_one() -> isize {
    set_errno(Errno::EOPNOTSUPP);
    -1
}

/// Returns -1, as wide, and sets `errno` to `EBADF`: there is no socket of that number.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_bad_descriptor() -> isize {
    set_errno(Errno::EBADF);
    -1
}
