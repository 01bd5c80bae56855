//! Verbs whose answer does not depend on any state.

use core::ffi::{c_char, c_int, c_void};

use omniverb_abi::{ibv_device, ibv_qp};

/// The device's name.
///
/// # Safety
/// `device` came from `ibv_get_device_list`, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return core::ptr::null();
    }
    // SAFETY: not null, so one of our devices; its name is terminated.
    unsafe { (&raw const (*device).name).cast() }
}

/// The kernel's number of the device: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// Whether a poll may watch the bytes of a message arrive in order: it may not.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}

/// Registers a provider driver of the oldest kind, without effect.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_register_driver(_name: *const c_char, _init: *const c_void) {}
