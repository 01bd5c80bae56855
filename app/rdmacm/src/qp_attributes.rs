//! Asks the daemon for the attributes that connect a queue pair, and gives them to verbs.

use core::ffi::c_int;

use omniverb_abi::*;
use omniverb_session::Message;
use omniverb_session::cm::{CM_KNOWN_INIT, CM_KNOWN_RTR, CM_KNOWN_RTS, CmIdQueried, QueryCmId};
use omniverb_terms::Errno;

use crate::errno::{outcome, verb};
use crate::id_state::IdShell;
use crate::{daemon_calls, device, ibverbs_imports};

/// Attributes, and which of them count.
pub(crate) type Attributes = (ibv_qp_attr, u32);

/// What the daemon knows of the connection.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn query(id: *mut rdma_cm_id) -> Result<CmIdQueried, Errno> {
    // SAFETY: the caller's promise.
    let handle = unsafe { IdShell::of(id) }.handle()?;
    match daemon_calls::ask(&QueryCmId { id: handle, reserved: 0 }.into())? {
        Message::CmIdQueried(known) => Ok(known),
        _ => Err(Errno::EPROTO),
    }
}

/// The attributes for a state.
///
/// # Safety
/// `id` is live and has a device.
pub(crate) unsafe fn of_state(
    id: *mut rdma_cm_id,
    known: &CmIdQueried,
    state: u32,
) -> Result<Attributes, Errno> {
    let wanted = match state {
        IBV_QPS_INIT => CM_KNOWN_INIT,
        IBV_QPS_RTR => CM_KNOWN_RTR,
        IBV_QPS_RTS => CM_KNOWN_RTS,
        _ => return Err(Errno::EINVAL),
    };
    // SAFETY: the caller's promise.
    let qp_type = unsafe { (*id).qp_type };
    // Datagrams need no peer to get ready.
    if known.known & wanted == 0 && (qp_type != IBV_QPT_UD || wanted == CM_KNOWN_INIT) {
        return Err(Errno::EINVAL);
    }
    let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    let mut mask = IBV_QP_STATE;
    match state {
        IBV_QPS_INIT => {
            attr.port_num = 1;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if qp_type == IBV_QPT_UD {
                attr.qkey = known.qkey.0;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = known.access;
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if qp_type != IBV_QPT_UD => {
            // SAFETY: the caller's promise.
            attr.ah_attr = unsafe { way(id, known)? };
            attr.path_mtu = known.path_mtu;
            attr.dest_qp_num = known.dest_qpn.0;
            attr.rq_psn = known.rq_psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            // The end of XRC that sends answers nothing.
            if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
                attr.max_dest_rd_atomic = known.max_dest_rd_atomic;
                attr.min_rnr_timer = known.min_rnr_timer;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            attr.sq_psn = known.sq_psn;
            mask |= IBV_QP_SQ_PSN;
            if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
                attr.timeout = known.timeout;
                mask |= IBV_QP_TIMEOUT;
            }
            // The end of XRC that receives asks for nothing.
            if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
                attr.retry_cnt = known.retry_count;
                attr.rnr_retry = known.rnr_retry;
                attr.max_rd_atomic = known.max_rd_atomic;
                mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        _ => {}
    }
    Ok((attr, mask))
}

/// # Safety
/// `id` is live and has a device.
unsafe fn way(id: *mut rdma_cm_id, known: &CmIdQueried) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: the caller's promise.
    let sgid_index = unsafe {
        if (*id).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        device::gid_index((*id).verbs, known.sgid, known.ifindex)?
    };
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: known.dgid.bytes() },
            flow_label: known.flow_label,
            sgid_index,
            hop_limit: known.hop_limit,
            traffic_class: known.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    })
}

/// Changes a queue pair.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn modify(qp: *mut ibv_qp, change: Attributes) -> Result<(), Errno> {
    let (mut attr, mask) = change;
    // SAFETY: the caller's promise.
    verb(unsafe { ibverbs_imports::ibv_modify_qp(qp, &mut attr, mask.cast_signed()) })
}

/// What a queue pair that was not made by `rdma_create_qp` needs to go to `attr.qp_state`.
/// `EINVAL`: the identifier has no device yet, or not what that state needs.
///
/// # Safety
/// `id` is live, `attr` and `mask` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe {
        // The daemon takes an address of loopback for a device's; here it may have none.
        let device = if (*id).verbs.is_null() { Err(Errno::EINVAL) } else { Ok(()) };
        let known = device.and_then(|()| query(id));
        known.and_then(|known| of_state(id, &known, (*attr).qp_state)).map(|(found, bits)| {
            attr.write(found);
            mask.write(bits.cast_signed());
        })
    })
}
