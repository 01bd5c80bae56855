//! What a fork does to a client: the child has none.
//!
//! The child inherits the sockets, but they are the parent's conversation. It gets a new generation
//! number, by which every inherited object is recognised as foreign, and makes its own client when
//! it asks for devices. The daemon is not misled by the inherited sockets: it watches the process,
//! not only the connection.
//!
//! What peers have mapped of the parent comes back before it forks: then all its memory is private,
//! and the kernel gives the child copies of what either of them changes. Peers may ask anew.
// UNSAFETY: registers C callbacks with the C library.
#![expect(unsafe_code)]

use crate::region_extents_by_rkey;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static INSTALL: Once = Once::new();

/// The number of this process among those that were forked one from another since the first
/// client was made. What was made under another number is a parent's.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// `before`, `in_parent` and `in_child`: what the client has done around a fork, first and last of
/// all.
pub(crate) fn install(
    before: extern "C" fn(),
    in_parent: extern "C" fn(),
    in_child: extern "C" fn(),
) {
    INSTALL.call_once(|| {
        // SAFETY: the handler is a static function that only changes atomics.
        unsafe { libc::pthread_atfork(None, None, Some(begin_generation)) };
        // Before the application registers handlers that look at adopted memory.
        omniverb_adopt::install_fork_hooks();
        // Handlers that are registered later are called earlier before a fork.
        // SAFETY: static functions that stay as long as this library does.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    region_extents_by_rkey::let_pages_move_in_child();
}
