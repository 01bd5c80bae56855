//! Maps memory of the kernel's for tables, and for lists of one call too long for the stack.

use core::ffi::c_void;

pub(super) use omniverb_connection::light::budgets::{CHANNELS, SLOTS};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// So many entries are on the stack.
const FEW: usize = 64;

/// Calls with a list of so many, unless there is no memory for it.
pub(crate) fn with_list(count: usize, act: impl FnOnce(&mut [libc::pollfd])) {
    let empty = libc::pollfd { fd: -1, events: 0, revents: 0 };
    if count <= FEW {
        return act(&mut [empty; FEW][..count]);
    }
    let Some(bytes) = count.checked_mul(size_of::<libc::pollfd>()) else { return };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, wherever the kernel likes.
    let new = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
    let Ok(new) = new else { return };
    // SAFETY: so many, all zeros, of which nobody else knows. A call that is left in the middle, by
    // `longjmp` or cancellation, leaves them there.
    act(unsafe { core::slice::from_raw_parts_mut(new.cast(), count) });
    // SAFETY: as above.
    _ = unsafe { munmap(new, bytes) };
}

/// So many of what may be all zeros, of which the kernel gives memory when they are touched.
pub(super) fn zeros<T>(count: usize) -> Option<&'static mut [T]> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, wherever the kernel likes.
    let new = unsafe {
        mmap_anonymous(core::ptr::null_mut(), count * size_of::<T>(), access, flags).ok()?
    };
    // SAFETY: so many bytes, all zeros, which slots, blocks and numbers may be; nobody else's.
    Some(unsafe { core::slice::from_raw_parts_mut(new.cast::<T>(), count) })
}

/// Gives such memory back.
///
/// # Safety
/// Nobody uses it any more.
pub(super) unsafe fn reclaim_abandoned(base: *mut c_void, bytes: usize) {
    // SAFETY: as the caller says.
    _ = unsafe { munmap(base, bytes) };
}
