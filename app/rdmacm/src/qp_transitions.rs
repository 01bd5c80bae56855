//! The queue pair of an identifier: to RTS when its connection is made, to ERR when it ends.

use omniverb_abi::*;
use omniverb_session::cm::EstablishCmId;
use omniverb_terms::Errno;

use crate::daemon_calls;
use crate::id_state::IdShell;
use crate::qp_attributes::{modify, of_state, query};

/// Takes a queue pair through INIT to RTR and RTS, if there is one that is ours to take.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn to_ready(id: *mut rdma_cm_id, depths: Option<(u8, u8)>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        let known = query(id)?;
        // What is known of the connection now may be more than when the queue pair was made.
        modify(qp, of_state(id, &known, IBV_QPS_INIT)?)?;
        let (mut receive, mask) = of_state(id, &known, IBV_QPS_RTR)?;
        let (mut send, send_mask) = of_state(id, &known, IBV_QPS_RTS)?;
        if let Some((responder_resources, initiator_depth)) = depths {
            receive.max_dest_rd_atomic = responder_resources;
            send.max_rd_atomic = initiator_depth;
        }
        modify(qp, (receive, mask))?;
        modify(qp, (send, send_mask))
    }
}

/// Takes the queue pair to ERR, if there is one.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn to_error(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        modify((*id).qp, (attr, IBV_QP_STATE))
    }
}

/// The peer has answered: gets the queue pair ready, and says so.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn establish(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let said = to_ready(id, None).and_then(|()| {
            let handle = IdShell::of(id).handle()?;
            daemon_calls::tell(&EstablishCmId { id: handle, reserved: 0 }.into())
        });
        said.inspect_err(|_| {
            let _ = to_error(id);
        })
    }
}
