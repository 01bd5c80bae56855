//! Which devices there are. None yet.

use core::ffi::c_int;

use libc::EOPNOTSUPP;
use omniverb_abi::{ibv_context, ibv_device};

use crate::errno::{minus_one, null};

/// The devices of this process, as an array that ends with null.
///
/// # Safety
/// `count` is null or valid for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: calloc has no preconditions.
    let list = unsafe { libc::calloc(1, size_of::<*mut ibv_device>()) };
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { count.write(0) };
    }
    list.cast()
}

/// Frees the array; the devices in it stay.
///
/// # Safety
/// `list` came from [`ov_ibv_get_device_list`] and was not freed before, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}

/// What kind of GID a row of the table holds.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_query_gid_type(
    _context: *mut ibv_context,
    _port: u8,
    _index: u32,
    _kind: *mut u32,
) -> c_int {
    minus_one(EOPNOTSUPP)
}
