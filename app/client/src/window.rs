//! Mappings as windows.
// UNSAFETY: vouches to the ring code that a mapping lives as long as its window.
#![expect(unsafe_code)]

use omniverb_ring::{UserMemory, Window};
use omniverb_sys::mapping::{Access, Mapping};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maps the first `length` bytes of a verified memfd, not to be inherited by forked children.
pub(crate) fn map(file: BorrowedFd<'_>, length: usize, access: Access) -> std::io::Result<Window> {
    let mapping = Arc::new(Mapping::shared(file, 0, length, access)?);
    let base = mapping.as_ptr();
    // SAFETY: the range is this fresh mapping; not inheriting it changes nothing in this process.
    // If it fails, a child merely keeps a mapping it must not use.
    let _ = unsafe {
        rustix::mm::madvise(base.as_ptr().cast(), length, rustix::mm::Advice::LinuxDontFork)
    };
    // SAFETY: mapped for `length` bytes as long as `mapping`, the owner, lives; page-aligned.
    // A read-only mapping is only handed to code that checked the grant's access flags.
    Ok(unsafe { Window::new(base, length, mapping) })
}

/// The application's memory behind a registration.
///
/// # Safety
/// The contract of `ibv_reg_mr`: the range stays mapped until `ibv_dereg_mr`.
pub(crate) unsafe fn registered(address: usize, length: usize) -> UserMemory {
    // SAFETY: the caller's promise.
    unsafe { UserMemory::new(address, length) }
}
