//! Maps memory files that the broker has given.

use core::ffi::c_void;
use core::ptr;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Maps a memory file that can be neither cut short nor grown.
pub(crate) fn map(file: &OwnedFd, bytes: usize, protection: ProtFlags) -> Option<*mut c_void> {
    map_at(ptr::null_mut(), file, bytes, protection)
}

/// The same, in the place of what there is, if that is not null.
pub(super) fn map_at(
    at: *mut c_void,
    file: &OwnedFd,
    bytes: usize,
    protection: ProtFlags,
) -> Option<*mut c_void> {
    let seals = fcntl_get_seals(file).ok()?;
    let is_fixed = seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let is_long = fstat(file).is_ok_and(|status| status.st_size == bytes as i64);
    let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
    // SAFETY: new memory, wherever the kernel likes, or in the place of what the caller has; the
    // file keeps its size.
    (is_fixed && is_long)
        .then(|| unsafe { mmap(at, bytes, protection, MapFlags::SHARED | fixed, file, 0).ok() })
        .flatten()
}
