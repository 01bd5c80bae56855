//! Events that a program was given, until it acknowledges them.

use core::ffi::c_int;
use core::ptr::null_mut;

use omniverb_abi::{rdma_cm_event, rdma_cm_id};
use omniverb_session::cm::CM_PRIVATE_BYTES;
use omniverb_terms::Errno;

use crate::errno::outcome;
use crate::id_state::IdShell;

/// The C struct, and what lies behind it until it is acknowledged.
#[repr(C)]
pub(crate) struct EventShell {
    pub(crate) event: rdma_cm_event,
    pub(crate) private: [u8; CM_PRIVATE_BYTES],
    /// Whose acknowledgement it is: of a request the listener's.
    pub(crate) of: *mut IdShell,
}

/// Frees an event.
///
/// # Safety
/// `event` came from [`ov_rdma_get_cm_event`] and is not used any more, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise; an identifier waits for its events.
    unsafe {
        let event = Box::from_raw(event.cast::<EventShell>());
        let of = event.of;
        drop(event);
        (*of).event_completed();
    }
    0
}

/// Acknowledges the event that an identifier keeps for calls that wait.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn drop_own(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        let event = core::mem::replace(&mut (*id).event, null_mut());
        if !event.is_null() {
            ov_rdma_ack_cm_event(event);
        }
    }
}
