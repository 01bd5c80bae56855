//! Makes [`UserMemory`] of registrations and of mapped windows, for the ring code.
// UNSAFETY: passes the application's promise about its memory on.
#![expect(unsafe_code)]

use omniverb_ring::{UserMemory, Window};

/// The application's memory behind a registration.
///
/// # Safety
/// The contract of `ibv_reg_mr`: the range stays mapped until `ibv_dereg_mr`.
pub(crate) unsafe fn registered(address: usize, length: usize) -> UserMemory {
    // SAFETY: the caller's promise.
    unsafe { UserMemory::new(address, length) }
}

/// Memory of another process that is mapped here, from an address on; its owner keeps the window
/// for as long. `None`: the window does not have so much.
pub(crate) fn mapped(window: &Window, address: usize, length: usize) -> Option<UserMemory> {
    let begin = address.checked_sub(window.address())?;
    begin.checked_add(length).filter(|end| *end <= window.len())?;
    // SAFETY: inside the window; that it is kept is the caller's promise, and its contents are for
    // the copies of the device, which bear that others change them.
    Some(unsafe { UserMemory::new(address, length) })
}
