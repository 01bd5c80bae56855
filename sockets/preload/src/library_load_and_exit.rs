//! Starts the library when it is loaded, and stops it when the process exits.

use crate::holder_count_at_exit::End;
use crate::{symbol_lookup, transports_lifecycle, vfork_check};

/// The entry points have the loader call this. Other libraries' constructors may have been earlier.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_start() {
    symbol_lookup::finish();
    vfork_check::begin();
    transports_lifecycle::begin();
}

/// The entry points have the loader call this. Other libraries' destructors may be later, and what
/// they send goes by the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ov_sockets_end() {
    transports_lifecycle::finish(End::Later);
}
