//! Lists the devices: one, if a daemon answers.

use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

use omniverb_abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use omniverb_client::{Client, lock};
use omniverb_terms::Errno;

use crate::errno::null;

/// What clients see as the device's name.
const NAME: &[u8] = b"omv0";
/// The name of the device node that clients such as UCX look for.
const NODE: &[u8] = b"uverbs0";

/// The C struct and what lies behind it.
#[repr(C)]
struct DeviceShell {
    device: ibv_device,
    /// rdma-core's providers compare the word behind the public struct with their own tables.
    spare: [u64; 16],
}

struct SharedDevice(*mut DeviceShell);

// SAFETY: made once, never freed, and never written after it was made.
unsafe impl Send for SharedDevice {}
// SAFETY: as above.
unsafe impl Sync for SharedDevice {}

/// The one device. Its address never changes: opened contexts keep pointing at it.
pub(super) fn the_device() -> *mut ibv_device {
    static DEVICE: OnceLock<SharedDevice> = OnceLock::new();
    let shared = DEVICE.get_or_init(|| {
        // SAFETY: all fields are pointers, numbers and arrays of them; zero is a valid value.
        let mut shell: Box<DeviceShell> = unsafe { Box::new(core::mem::zeroed()) };
        shell.device.node_type = IBV_NODE_CA;
        shell.device.transport_type = IBV_TRANSPORT_IB;
        set(&mut shell.device.name, NAME);
        set(&mut shell.device.dev_name, NODE);
        set(&mut shell.device.dev_path, b"/sys/class/infiniband_verbs/uverbs0");
        set(&mut shell.device.ibdev_path, b"/sys/class/infiniband/omv0");
        SharedDevice(Box::into_raw(shell))
    });
    shared.0.cast()
}

fn set(field: &mut [c_char], text: &[u8]) {
    for (place, byte) in field.iter_mut().zip(text) {
        *place = *byte as c_char;
    }
}

/// Tells on stderr, once for each cause, why there is no device: an empty list alone leaves the
/// user guessing.
fn complain(why: &omniverb_client::NoDevice) {
    static SAID: Mutex<String> = Mutex::new(String::new());
    let text = format!("{why}\n");
    let mut said = lock(&SAID);
    if *said != text {
        let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        *said = text;
    }
}

/// The devices of this process, as an array that ends with null.
///
/// # Safety
/// `count` is null or valid for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let found = Client::get().inspect_err(complain).is_ok();
    // SAFETY: calloc has no preconditions.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        return null(Errno::ENOMEM);
    }
    // SAFETY: room for two pointers; `count` is the caller's promise.
    unsafe {
        list.write(if found { the_device() } else { null_mut() });
        if !count.is_null() {
            count.write(c_int::from(found));
        }
    }
    list
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

/// The node GUID, in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    Client::get().map_or(0, |client| u64::from_ne_bytes(client.nic().node_guid))
}
