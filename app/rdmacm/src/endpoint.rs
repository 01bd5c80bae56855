//! Endpoints: identifiers whose calls wait, made from what `rdma_getaddrinfo` found.

use core::ffi::c_int;

use omniverb_abi::*;
use omniverb_terms::Errno;

use crate::errno::{ECONNREFUSED, outcome};
use crate::event_channel::ChannelShell;
use crate::id_state::{IdShell, Kind, Operation, QueuePairWanted};
use crate::qp_creation::{create_plain_qp, ov_rdma_destroy_qp, ov_rdma_destroy_srq};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{ack_cm_event, address_calls, cm_id, device, event};

/// # Safety
/// As [`ov_rdma_create_ep`]; `id` is live.
unsafe fn prepare(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let qp_type = found.ai_qp_type.cast_unsigned();
    // SAFETY: the caller's promise.
    unsafe {
        if found.ai_flags & RAI_PASSIVE != 0 {
            address_calls::bind(id, found.ai_src_addr)?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            let wanted = attr.as_ref();
            IdShell::of(id).state().queue_pair =
                wanted.map(|attr| QueuePairWanted(ibv_qp_init_attr { qp_type, ..*attr }));
            return Ok(());
        }
        address_calls::resolve_address(id, found.ai_src_addr, found.ai_dst_addr)?;
        address_calls::resolve_route(id)?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = qp_type;
            create_plain_qp(id, pd, attr)?;
        }
        if !found.ai_connect.is_null() {
            let data = found.ai_connect.cast::<u8>();
            let data = core::slice::from_raw_parts(data, found.ai_connect_len);
            IdShell::of(id).state().connect = data.to_vec();
        }
        Ok(())
    }
}

/// Makes an identifier whose calls wait, ready to connect or to listen; with a queue pair, if
/// there are attributes for one.
///
/// # Safety
/// `id` is valid for a pointer, `found` valid, `pd` and `attr` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    found: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let found = unsafe { &*found };
    let kind = Kind {
        context: core::ptr::null_mut(),
        space: found.ai_port_space.cast_unsigned(),
        qp_type: found.ai_qp_type.cast_unsigned(),
    };
    static CALL: LoggedCall = LoggedCall::new("rdma_create_ep", AttemptedStep::Create);
    let made = device::check_present().and_then(|()| cm_id::create(core::ptr::null_mut(), &kind));
    let made = CALL.explain(made);
    // SAFETY: the caller's promise; the identifier is live until it is destroyed here.
    outcome(made.and_then(|made| unsafe {
        static MADE: LoggedCall = LoggedCall::new("rdma_create_ep", AttemptedStep::Resolve);
        match MADE.explain(prepare(made, found, pd, attr)) {
            Ok(()) => {
                id.write(made);
                Ok(())
            }
            Err(errno) => {
                ov_rdma_destroy_ep(made);
                Err(errno)
            }
        }
    }))
}

/// Destroys an identifier, its queue pair and its shared receive queue.
///
/// # Safety
/// `id` is live, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).qp.is_null() {
            ov_rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            ov_rdma_destroy_srq(id);
        }
        cm_id::ov_rdma_destroy_id(id);
    }
}

/// # Safety
/// As [`ov_rdma_get_request`].
pub(crate) unsafe fn next_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(listener);
        let wanted = {
            let state = shell.state();
            if state.operation == Operation::Asynchronous {
                return Err(Errno::EINVAL);
            }
            state.queue_pair
        };
        ack_cm_event::drop_own(listener);
        let event = event::take_for_call(ChannelShell::of((*listener).channel))?;
        let judged = match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => Err(ECONNREFUSED),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => Ok((*event).id),
            (_, 0) => Err(Errno::EINVAL),
            (_, status) => Err(Errno(status.unsigned_abs())),
        };
        let ready = judged.and_then(|id| {
            if let Some(QueuePairWanted(mut attr)) = wanted {
                create_plain_qp(id, (*listener).pd, &mut attr)?;
            }
            Ok(id)
        });
        match ready {
            Ok(id) => (*id).event = event,
            Err(_) => (*listener).event = event,
        }
        ready
    }
}

/// The next request for a connection; waits for one.
///
/// # Safety
/// `listener` is live, `id` valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { next_request(listener).map(|request| id.write(request)) })
}
