//! The start, when the library is loaded.

use crate::{carry, next, place};

/// The entry points have the loader call this. Other libraries' constructors may have been earlier.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_start() {
    next::finish();
    place::begin();
    carry::begin();
}
