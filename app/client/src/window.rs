//! The application's memory as the ring code sees it.
// UNSAFETY: passes the application's promise about its memory on.
#![expect(unsafe_code)]

use omniverb_ring::UserMemory;

/// The application's memory behind a registration.
///
/// # Safety
/// The contract of `ibv_reg_mr`: the range stays mapped until `ibv_dereg_mr`.
pub(crate) unsafe fn registered(address: usize, length: usize) -> UserMemory {
    // SAFETY: the caller's promise.
    unsafe { UserMemory::new(address, length) }
}
