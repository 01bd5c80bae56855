//! What a fork does to a client: the child has none.
//!
//! The child inherits the sockets, but they are the parent's conversation. It gets a new generation
//! number, by which every inherited object is recognised as foreign, and makes its own client when
//! it asks for devices. The daemon is not misled by the inherited sockets: it watches the process,
//! not only the connection.
// UNSAFETY: registers C callbacks with the C library.
#![expect(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static INSTALL: Once = Once::new();

/// The number of this process among those that were forked one from another since the first
/// client was made. What was made under another number is a parent's.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

pub(crate) fn install() {
    // SAFETY: the handler is a static function that only adds to an atomic.
    INSTALL.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
    // Before the application registers handlers that look at adopted memory.
    omniverb_adopt::install_fork_hooks();
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
