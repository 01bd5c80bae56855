//! Connections: asked for, accepted, refused, ended.

use core::ffi::{c_int, c_void};

use omniverb_abi::*;
use omniverb_session::Message;
use omniverb_session::cm::{
    AcceptCmId, CM_PRIVATE_BYTES, CmParameters, ConnectCmId, DisconnectCmId, EstablishCmId,
    RejectCmId,
};
use omniverb_terms::{Errno, Qkey, Qpn};

use crate::ack_cm_event::drop_own;
use crate::errno::outcome;
use crate::event_queue::EventSource;
use crate::id_state::{ConnectAnswer, IdShell, Operation, ResolutionState};
use crate::qp_transitions::{establish, to_error, to_ready};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{daemon_calls, device, event, ibverbs_imports, id_registry};

/// "As many as the device can", of depths.
const MOST: u8 = RDMA_MAX_RESP_RES as u8;
/// Retries of a program that names no number.
const RETRIES: u8 = 7;
/// `CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`.
const VENDOR_OPTION: u16 = 35;

/// The peer has answered, and the program's own queue pair is ready.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { if (*id).qp.is_null() { establish(id) } else { Err(Errno::EINVAL) } })
}

/// What a program may ask for.
///
/// # Safety
/// `id` is live, `param` null or valid.
unsafe fn check(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        if (*id).ps != RDMA_PS_TCP {
            return Ok(());
        }
        let limits = device::at_most()?;
        match param.as_ref() {
            None if (*id).qp.is_null() => Err(Errno::EINVAL),
            None => Ok(()),
            Some(param) => {
                let fits = |asked: u8, most: u8| asked == MOST || asked <= most;
                let all = fits(param.responder_resources, limits.responder_resources)
                    && fits(param.initiator_depth, limits.initiator_depth);
                if all { Ok(()) } else { Err(Errno::EINVAL) }
            }
        }
    }
}

/// What goes to the peer with a request or an answer.
struct CmMessageParts {
    qpn: Qpn,
    parameters: CmParameters,
    private: [u8; CM_PRIVATE_BYTES],
}

/// `is_answer`: its options are said to be of the vendor that the request named.
///
/// # Safety
/// `id` is live, `param` null or valid.
unsafe fn say(
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
    is_answer: bool,
) -> Result<CmMessageParts, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let param = param.as_ref();
        let state = IdShell::of(id).state();
        let mut private = state.connect.clone();
        if let Some(param) = param
            && !param.private_data.is_null()
        {
            let length = usize::from(param.private_data_len);
            private.extend(core::slice::from_raw_parts(param.private_data.cast::<u8>(), length));
        }
        let mut bytes = [0; CM_PRIVATE_BYTES];
        bytes.get_mut(..private.len()).ok_or(Errno::EINVAL)?.copy_from_slice(&private);
        let own = (*id).qp.as_ref();
        let qpn = own.map_or_else(|| param.map_or(0, |param| param.qp_num), |qp| qp.qp_num);
        let srq = own.map_or_else(|| param.map_or(0, |p| p.srq), |qp| u8::from(!qp.srq.is_null()));
        let qkey = if (*id).qp_type == IBV_QPT_UD { Qkey(RDMA_UDP_QKEY) } else { Qkey(0) };
        let vendor = if is_answer { state.remote_ece } else { state.local_ece }.vendor_id;
        let parameters = CmParameters {
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: param.map_or(0, |param| param.flow_control),
            retry_count: param.map_or(RETRIES, |param| param.retry_count),
            rnr_retry: param.map_or(RETRIES, |param| param.rnr_retry_count),
            srq,
            private_length: private.len() as u8,
            ack_timeout: state.options.ack_timeout,
            tos: state.options.tos,
            reserved: [0; 3],
            qkey,
            ece_vendor: vendor,
            ece_options: state.local_ece.options,
        };
        Ok(CmMessageParts { qpn: Qpn(qpn), parameters, private: bytes })
    }
}

/// Asks the daemon for something that ends with an event.
///
/// # Safety
/// `id` is live.
unsafe fn ask(id: *mut rdma_cm_id, question: impl Fn(u32) -> Message) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let shell = unsafe { IdShell::of(id) };
    let handle = shell.handle()?;
    id_registry::expect(shell.token);
    daemon_calls::tell(&question(handle)).inspect_err(|_| id_registry::expect_nothing(shell.token))
}

/// # Safety
/// As [`ov_rdma_connect`].
pub(crate) unsafe fn connect(
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        check(id, param)?;
        let limits = device::at_most()?;
        let shell = IdShell::of(id);
        {
            let mut state = shell.state();
            if !matches!(state.resolved, ResolutionState::Route) {
                return Err(Errno::EINVAL);
            }
            let chosen = |asked: Option<u8>, most| asked.filter(|&n| n != MOST).unwrap_or(most);
            let param = param.as_ref();
            state.initiator_depth =
                chosen(param.map(|param| param.initiator_depth), limits.initiator_depth);
            state.responder_resources =
                chosen(param.map(|param| param.responder_resources), limits.responder_resources);
        }
        let CmMessageParts { qpn, parameters, private } = say(id, param, false)?;
        ask(id, |id| ConnectCmId { id, qpn, parameters, private }.into())?;
        shell.state().connect.clear();
        event::complete(id)
    }
}

/// Asks for a connection with the resolved address, or for the receiver of datagrams there.
///
/// # Safety
/// `id` is live, `param` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_connect(
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_connect", AttemptedStep::Connect);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { connect(id, param) }))
}

/// # Safety
/// As [`ov_rdma_accept`].
pub(crate) unsafe fn accept(
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(id);
        if shell.state().answer != ConnectAnswer::None && param.is_null() {
            return establish(id);
        }
        check(id, param)?;
        let limits = device::at_most()?;
        let depths = {
            let mut state = shell.state();
            let chosen = |asked: Option<u8>, offered: u8, most: u8| {
                asked.filter(|&n| n != MOST).unwrap_or(offered.min(most))
            };
            let param = param.as_ref();
            state.initiator_depth = chosen(
                param.map(|param| param.initiator_depth),
                state.initiator_depth,
                limits.initiator_depth,
            );
            state.responder_resources = chosen(
                param.map(|param| param.responder_resources),
                state.responder_resources,
                limits.responder_resources,
            );
            (state.responder_resources, state.initiator_depth)
        };
        let datagrams = (*id).qp_type == IBV_QPT_UD;
        if !datagrams {
            to_ready(id, Some(depths))?;
        }
        let CmMessageParts { qpn, parameters, private } = say(id, param, true)?;
        let asked = ask(id, |id| AcceptCmId { id, qpn, parameters, private }.into());
        asked.inspect_err(|_| {
            let _ = to_error(id);
        })?;
        if datagrams {
            id_registry::expect_nothing(shell.token);
            if shell.state().operation == Operation::Synchronous {
                drop_own(id);
            }
            return Ok(());
        }
        event::complete(id)
    }
}

/// Accepts a request.
///
/// # Safety
/// `id` is live, `param` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_accept(
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_accept", AttemptedStep::Accept);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { accept(id, param) }))
}

/// # Safety
/// `id` is live, `private` has so many bytes, or is null.
unsafe fn reject(
    id: *mut rdma_cm_id,
    private: *const c_void,
    length: u8,
    reason: u16,
) -> Result<(), Errno> {
    let mut bytes = [0; CM_PRIVATE_BYTES];
    let mut private_length = 0;
    if !private.is_null() {
        // SAFETY: the caller's promise.
        let given =
            unsafe { core::slice::from_raw_parts(private.cast::<u8>(), usize::from(length)) };
        bytes.get_mut(..given.len()).ok_or(Errno::EINVAL)?.copy_from_slice(given);
        private_length = u16::from(length);
    }
    // SAFETY: the caller's promise.
    let id = unsafe { IdShell::of(id) }.handle()?;
    daemon_calls::tell(&RejectCmId { id, reason, private_length, private: bytes }.into())
}

/// Refuses a request, or an answer.
///
/// # Safety
/// `id` is live, `private` has so many bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_reject(
    id: *mut rdma_cm_id,
    private: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { reject(id, private, length, 0) })
}

/// Refuses a request for the options that it came with.
///
/// # Safety
/// `id` is live, `private` has so many bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_reject_ece(
    id: *mut rdma_cm_id,
    private: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { reject(id, private, length, VENDOR_OPTION) })
}

/// Tells of an event of the program's queue pair: that something has arrived on it establishes a
/// connection whose peer is not heard to say so.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    if event != IBV_EVENT_COMM_EST {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    let handle = unsafe { IdShell::of(id) }.handle();
    outcome(handle.and_then(|id| daemon_calls::tell(&EstablishCmId { id, reserved: 0 }.into())))
}

/// # Safety
/// `id` is live.
pub(crate) unsafe fn disconnect(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        let shell = IdShell::of(id);
        // A NIC begins what is posted within a microsecond, so programs send their last message
        // and disconnect.
        if !(*id).qp.is_null() && !shell.state().is_left_by_peer {
            ibverbs_imports::omniverb_private_leave((*id).qp);
        }
        to_error(id)?;
        match shell.handle() {
            Ok(handle) => daemon_calls::tell(&DisconnectCmId { id: handle, reserved: 0 }.into())?,
            // There is no daemon any more that could tell the peer, or tell us of the end.
            Err(_) => {
                let what = EventSource::Own { event: RDMA_CM_EVENT_DISCONNECTED, status: 0 };
                id_registry::push(shell.token, what);
            }
        }
        event::complete(id)
    }
}

/// Ends a connection.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { disconnect(id) })
}
