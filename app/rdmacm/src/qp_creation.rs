//! Queue pairs, and what goes with them, made for an identifier.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;

use omniverb_abi::*;
use omniverb_terms::Errno;

use crate::errno::{made, outcome};
use crate::id_state::IdShell;
use crate::qp_attributes::{modify, of_state, query};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{device, ibverbs_imports};

/// The identifier's queue pair, or its SRQ for XRC, completes in its completion queues. (The queue
/// pair of one that receives for others completes nothing.)
///
/// # Safety
/// `id` is live.
unsafe fn are_used(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).qp_type == IBV_QPT_XRC_RECV { !(*id).srq.is_null() } else { !(*id).qp.is_null() }
    }
}

/// Destroys the completion queues and channels that were made for an identifier, but not those
/// that are still used: they stay until what uses them is destroyed.
///
/// # Safety
/// `id` is live.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; what is not null was made by `create_cqs`.
    unsafe {
        if are_used(id) {
            return;
        }
        for (cq, channel) in [
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ] {
            // `EBUSY`: what the program has made completes there, too.
            if !(*cq).is_null() && ibverbs_imports::ibv_destroy_cq(*cq) != 0 {
                continue;
            }
            cq.write(null_mut());
            if !(*channel).is_null() {
                ibverbs_imports::ibv_destroy_comp_channel(channel.replace(null_mut()));
            }
        }
    }
}

/// Makes completion queues with a channel each, for as many as are wanted.
///
/// # Safety
/// `id` is live and has a device.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, receive: u32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let make = |size: u32| -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
            let channel = made(ibverbs_imports::ibv_create_comp_channel((*id).verbs))?;
            let size = c_int::try_from(size).unwrap_or(c_int::MAX);
            let cq = made(ibverbs_imports::ibv_create_cq((*id).verbs, size, id.cast(), channel, 0));
            let cq = cq.inspect_err(|_| _ = ibverbs_imports::ibv_destroy_comp_channel(channel))?;
            Ok((channel, cq))
        };
        let both = || {
            if receive != 0 {
                ((*id).recv_cq_channel, (*id).recv_cq) = make(receive)?;
            }
            if send != 0 {
                ((*id).send_cq_channel, (*id).send_cq) = make(send)?;
            }
            Ok(())
        };
        both().inspect_err(|_| destroy_cqs(id))
    }
}

/// Gets a new queue pair ready to be connected, or, for datagrams, ready.
///
/// # Safety
/// `id` is live and has a device, `qp` is its new queue pair.
unsafe fn get_ready(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let known = query(id)?;
        modify(qp, of_state(id, &known, IBV_QPS_INIT)?)?;
        if (*id).qp_type == IBV_QPT_UD {
            modify(qp, of_state(id, &known, IBV_QPS_RTR)?)?;
            modify(qp, of_state(id, &known, IBV_QPS_RTS)?)?;
        }
        Ok(())
    }
}

/// # Safety
/// `id` is live, `attr` as long as its `comp_mask` says.
unsafe fn create_qp(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let verbs = (*id).verbs;
        if verbs.is_null() || !(*id).qp.is_null() {
            return Err(Errno::EINVAL);
        }
        if (*attr).comp_mask & IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
            (*attr).pd = (*id).pd;
        } else if (*(*attr).pd).context != verbs {
            return Err(Errno::EINVAL);
        }
        if (*id).qp_type == IBV_QPT_XRC_RECV
            && ((*attr).comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null())
        {
            (*attr).xrcd = device::domain()?;
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let differ = |ours: *mut ibv_cq, theirs: *mut ibv_cq| {
            !ours.is_null() && !theirs.is_null() && ours != theirs
        };
        if differ((*id).recv_cq, (*attr).recv_cq) || differ((*id).send_cq, (*attr).send_cq) {
            return Err(Errno::EINVAL);
        }
        let wanted = |has: *mut ibv_cq, given: *mut ibv_cq, size| {
            if has.is_null() && given.is_null() { size } else { 0 }
        };
        let send = wanted((*id).send_cq, (*attr).send_cq, (*attr).cap.max_send_wr);
        let receive = wanted((*id).recv_cq, (*attr).recv_cq, (*attr).cap.max_recv_wr);
        create_cqs(id, send, receive)?;
        if (*attr).send_cq.is_null() {
            (*attr).send_cq = (*id).send_cq;
        }
        if (*attr).recv_cq.is_null() {
            (*attr).recv_cq = (*id).recv_cq;
        }
        if (*attr).srq.is_null() {
            (*attr).srq = (*id).srq;
        }
        let create = device::table(verbs).create_qp_ex.ok_or(Errno::EOPNOTSUPP);
        let result = create.and_then(|create| made(create(verbs, attr))).and_then(|qp| {
            let ready = get_ready(id, qp);
            ready.inspect_err(|_| _ = ibverbs_imports::ibv_destroy_qp(qp)).map(|()| qp)
        });
        let qp = result.inspect_err(|_| destroy_cqs(id))?;
        // One that receives for others is in no protection domain.
        if !(*qp).pd.is_null() {
            (*id).pd = (*qp).pd;
        }
        (*id).qp = qp;
        // A device's options are its own to say, and ours has none, whatever was said before.
        IdShell::of(id).state().local_ece = ibv_ece::default();
        Ok(())
    }
}

/// Makes a queue pair for an identifier; the completion queues, too, that are not given.
///
/// # Safety
/// `id` is live, `attr` as long as its `comp_mask` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_create_qp_ex", AttemptedStep::QueuePair);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { create_qp(id, attr) }))
}

/// The bytes that the plain attributes have in common with the extended ones.
const PLAIN: usize = offset_of!(ibv_qp_init_attr_ex, comp_mask);

/// # Safety
/// `id` is live, `pd` null or live, `attr` valid.
pub(crate) unsafe fn create_plain_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; pointers and numbers: zero is valid for all. The plain struct
    // is the beginning of the extended one.
    unsafe {
        let mut extended: ibv_qp_init_attr_ex = core::mem::zeroed();
        let head = (&raw mut extended).cast::<u8>();
        core::ptr::copy_nonoverlapping(attr.cast::<u8>(), head, PLAIN);
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = if pd.is_null() { (*id).pd } else { pd };
        let result = create_qp(id, &mut extended);
        let head = (&raw const extended).cast::<u8>();
        core::ptr::copy_nonoverlapping(head, attr.cast::<u8>(), PLAIN);
        result
    }
}

/// Makes a queue pair for an identifier, in the device's default protection domain if none is
/// given.
///
/// # Safety
/// `id` is live, `pd` null or live, `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_create_qp", AttemptedStep::QueuePair);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { create_plain_qp(id, pd, attr) }))
}

/// Destroys the queue pair of an identifier, and the completion queues that were made for it.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).qp.is_null() {
            ibverbs_imports::ibv_destroy_qp((*id).qp);
            (*id).qp = null_mut();
        }
        destroy_cqs(id);
    }
}

/// Where an SRQ for XRC is, and where it completes, unless the program says it: in the domain that
/// such identifiers have in common, and in the identifier's own completion queue. Whether that was
/// made for it. `EINVAL`: it is too short and used.
///
/// # Safety
/// `id` is live and has a device, `attr` as long as its `comp_mask` says.
unsafe fn place_for_xrc(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<bool, Errno> {
    let mut is_new = false;
    // SAFETY: the caller's promise.
    unsafe {
        if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null() {
            (*attr).xrcd = device::domain()?;
        }
        if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || (*attr).cq.is_null() {
            let size = (*attr).attr.max_wr;
            // What was made with the queue pair may be too short.
            let fits = |cq: &ibv_cq| u32::try_from(cq.cqe).is_ok_and(|cqe| cqe >= size);
            if !(*id).recv_cq.as_ref().is_some_and(fits) {
                destroy_cqs(id);
                if !(*id).recv_cq.is_null() || are_used(id) {
                    return Err(Errno::EINVAL);
                }
                create_cqs(id, 0, size)?;
                is_new = true;
            }
            (*attr).cq = (*id).recv_cq;
        }
        (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    Ok(is_new)
}

/// # Safety
/// `id` is live, `attr` as long as its `comp_mask` says.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*id).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            (*attr).pd = (*id).pd;
        }
        let verbs = (*id).verbs;
        let create = device::table(verbs).create_srq_ex.ok_or(Errno::EOPNOTSUPP)?;
        let with_cq = (*attr).srq_type == IBV_SRQT_XRC && place_for_xrc(id, attr)?;
        let srq = made(create(verbs, attr)).inspect_err(|_| {
            if with_cq {
                destroy_cqs(id);
                (*attr).cq = null_mut();
            }
        })?;
        if (*id).pd.is_null() {
            (*id).pd = (*attr).pd;
        }
        (*id).srq = srq;
        Ok(())
    }
}

/// Makes a shared receive queue for an identifier.
///
/// # Safety
/// `id` is live, `attr` as long as its `comp_mask` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { create_srq(id, attr) })
}

/// Makes a shared receive queue for an identifier.
///
/// # Safety
/// `id` is live, `pd` null or live, `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's promise; pointers and numbers: zero is valid for all.
    outcome(unsafe {
        let mut extended: ibv_srq_init_attr_ex = core::mem::zeroed();
        extended.srq_context = (*attr).srq_context;
        extended.attr = (*attr).attr;
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        let xrc = (*id).qp_type == IBV_QPT_XRC_RECV;
        extended.srq_type = if xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
        extended.pd = pd;
        let result = create_srq(id, &mut extended);
        (*attr).attr = extended.attr;
        result
    })
}

/// Destroys the shared receive queue of an identifier.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).srq.is_null() {
            ibverbs_imports::ibv_destroy_srq((*id).srq);
            (*id).srq = null_mut();
        }
        destroy_cqs(id);
    }
}
