//! Answers calls that this library does not offer: -1, and `EOPNOTSUPP`. The arguments are whatever
//! the caller put in registers; none is looked at.
//!
//! Only the generated entry points call this function. Its symbol ends in the words that
//! `symbols.toml` uses.

use omniverb_terms::Errno;

use crate::errno::set_errno;

/// Returns -1, as wide as the widest such function (`ssize_t`), and sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_unsupported_minus_one() -> isize {
    set_errno(Errno::EOPNOTSUPP);
    -1
}
