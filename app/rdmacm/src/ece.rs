//! Enhanced connection establishment: options of vendors for queue pairs of the program's own, and
//! events of the program's own.
//!
//! Our queue pairs have no options (`ibv_query_ece` is `EOPNOTSUPP`), so those made by
//! `rdma_create_qp` send none. What a program says of a queue pair that it brings itself goes to
//! the peer with the request and the answer, and it hears of the peer's.

use core::ffi::c_int;

use omniverb_abi::{RDMA_CM_EVENT_USER, ibv_ece, rdma_cm_id};
use omniverb_terms::Errno;

use crate::errno::outcome;
use crate::event_queue::EventSource;
use crate::id_registry;
use crate::id_state::IdShell;

/// Options of a queue pair that is the program's own, for the next request or answer.
///
/// # Safety
/// `id` is null or live, `ece` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_set_local_ece(id: *mut rdma_cm_id, ece: *const ibv_ece) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe {
        match (id.as_ref(), ece.as_ref()) {
            (Some(shown), Some(ece))
                if shown.qp.is_null() && ece.vendor_id != 0 && ece.comp_mask == 0 =>
            {
                IdShell::of(id).state().local_ece = *ece;
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    })
}

/// The peer's options, as its request or answer said; vendor 0: it has none.
///
/// # Safety
/// `id` is null or live, `ece` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe {
        match (id.as_ref(), ece.as_mut()) {
            (Some(shown), Some(ece)) if shown.qp.is_null() => {
                *ece = IdShell::of(id).state().remote_ece;
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    })
}

/// Puts an event of the program's own into an identifier's channel.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: u32,
    status: c_int,
    argument: u64,
) -> c_int {
    if event != RDMA_CM_EVENT_USER {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    id_registry::push(unsafe { IdShell::of(id) }.token, EventSource::User { status, argument });
    0
}
