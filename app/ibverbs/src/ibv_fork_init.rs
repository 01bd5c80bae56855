//! Implements `ibv_fork_init` and its relatives, which have nothing to do here.
//!
//! On hardware a fork can move pages away from under the device, unless the library marks them.
//! Here the device is the process itself: after a fork the parent still reaches its own pages, and
//! pages that peers have mapped are looked after where they are adopted. So nothing is needed.

use core::ffi::{c_int, c_void};

use omniverb_abi::IBV_FORK_UNNEEDED;

/// Prepares for forks; nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_fork_init() -> c_int {
    0
}

/// Whether forks are prepared for.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

/// Marks a range as not to be inherited; not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Takes the mark back.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
