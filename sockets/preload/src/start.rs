//! The start, when the library is loaded, and the end, when the process returns from `main` or
//! calls `exit`.

use crate::ending::End;
use crate::{carry, next, place};

/// The entry points have the loader call this. Other libraries' constructors may have been earlier.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_start() {
    next::finish();
    place::begin();
    carry::begin();
}

/// The entry points have the loader call this. Other libraries' destructors may be later, and what
/// they send goes by the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_end() {
    carry::ends(End::Later);
}
