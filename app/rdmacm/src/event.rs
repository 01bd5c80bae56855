//! Events: taken from a channel, and named.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

use omniverb_abi::*;
use omniverb_session::cm::{CM_PRIVATE_BYTES, CmHappened, CmParameters};
use omniverb_terms::Errno;

use crate::ack_cm_event::{EventShell, drop_own};
use crate::cm_id;
use crate::errno::{ECONNREFUSED, outcome};
use crate::event_channel::ChannelShell;
use crate::event_queue::EventSource;
use crate::id_state::{ConnectAnswer, IdShell, Kind, Operation, allocate, attach};
use crate::qp_transitions::{establish, to_error};
use crate::route::{PathRecord, set_path};
use crate::{c_sockaddr, device, id_registry, multicast_membership, refusal_log};

fn fresh(of: *mut IdShell, event: u32, status: i32) -> Box<EventShell> {
    // SAFETY: pointers, numbers and a union of them: zero is valid for all.
    let mut shell: Box<EventShell> = unsafe { Box::new(core::mem::zeroed()) };
    shell.of = of;
    // SAFETY: the identifier is live while events of it are taken.
    shell.event.id = unsafe { &raw mut (*of).id };
    shell.event.event = event;
    shell.event.status = status;
    shell
}

/// The peer's options.
fn options(happened: &CmHappened) -> ibv_ece {
    let CmParameters { ece_vendor: vendor_id, ece_options: options, .. } = happened.parameters;
    ibv_ece { vendor_id, options, ..ibv_ece::default() }
}

/// Whether an identifier is for datagrams.
///
/// # Safety
/// `shell` is live.
unsafe fn is_datagram(shell: *mut IdShell) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*shell).id.qp_type == IBV_QPT_UD }
}

/// Fills in what came with an event.
///
/// # Safety
/// The identifier is live.
unsafe fn fill(event: &mut EventShell, happened: &CmHappened) {
    let CmParameters { private_length, .. } = happened.parameters;
    let length = usize::from(private_length).min(CM_PRIVATE_BYTES);
    event.private[..length].copy_from_slice(&happened.private[..length]);
    let data: *const c_void =
        if length == 0 { core::ptr::null() } else { event.private.as_ptr().cast() };
    // SAFETY: the caller's promise.
    if unsafe { is_datagram(event.of) } {
        // SAFETY: the caller's promise; zero is valid where there is no address.
        let ah_attr = unsafe { address_of(event.of, happened) };
        event.event.param.ud = rdma_ud_param {
            private_data: data,
            private_data_len: length as u8,
            ah_attr,
            qp_num: happened.qpn.0,
            qkey: happened.parameters.qkey.0,
        };
        return;
    }
    event.event.param.conn = rdma_conn_param {
        private_data: data,
        private_data_len: length as u8,
        responder_resources: happened.parameters.responder_resources,
        initiator_depth: happened.parameters.initiator_depth,
        flow_control: happened.parameters.flow_control,
        retry_count: happened.parameters.retry_count,
        rnr_retry_count: happened.parameters.rnr_retry,
        srq: happened.parameters.srq,
        qp_num: happened.qpn.0,
    };
}

/// The route to the peer that answered, for datagrams.
///
/// # Safety
/// `shell` is live.
unsafe fn address_of(shell: *mut IdShell, happened: &CmHappened) -> ibv_ah_attr {
    if happened.event != RDMA_CM_EVENT_ESTABLISHED {
        return ibv_ah_attr::default();
    }
    // SAFETY: the caller's promise; a connected identifier has a device.
    let index = unsafe { device::gid_index((*shell).id.verbs, happened.sgid, happened.ifindex) };
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: happened.dgid.bytes() },
            flow_label: happened.flow_label,
            sgid_index: index.unwrap_or(0),
            hop_limit: happened.hop_limit,
            traffic_class: happened.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

/// Makes the identifier that a request comes with.
///
/// # Safety
/// `listener` is live.
unsafe fn request(
    listener: *mut IdShell,
    happened: &CmHappened,
    token: u64,
) -> Result<Box<EventShell>, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut event = fresh(listener, happened.event, happened.status);
        fill(&mut event, happened);
        let of = &(*listener).id;
        let channel = match (*listener).state().operation {
            Operation::Synchronous => null_mut(),
            Operation::Asynchronous => of.channel,
        };
        let kind = Kind { context: of.context, space: of.ps, qp_type: of.qp_type };
        let shell = allocate(channel, &kind).inspect_err(|_| cm_id::forget(token))?;
        (*shell).token = token;
        let queue = ChannelShell::of((*shell).id.channel).queue.clone();
        id_registry::adopt(token, &raw mut (*shell).id, queue);
        event.event.listen_id = event.event.id;
        event.event.id = &raw mut (*shell).id;
        let shown = show(&raw mut (*shell).id, happened);
        if let Err(errno) = shown {
            cm_id::ov_rdma_destroy_id(&raw mut (*shell).id);
            return Err(errno);
        }
        let mut state = (*shell).state();
        state.is_bound = true;
        state.responder_resources = happened.parameters.responder_resources;
        state.initiator_depth = happened.parameters.initiator_depth;
        state.remote_ece = options(happened);
        Ok(event)
    }
}

/// # Safety
/// `id` is live.
unsafe fn show(id: *mut rdma_cm_id, happened: &CmHappened) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        attach(id)?;
        let addresses = &mut (*id).route.addr;
        addresses.src_storage = c_sockaddr::to_c(&happened.local);
        addresses.dst_storage = c_sockaddr::to_c(&happened.remote);
        addresses.ibaddr.sgid = ibv_gid { raw: happened.sgid.bytes() };
        addresses.ibaddr.dgid = ibv_gid { raw: happened.dgid.bytes() };
        let path = PathRecord {
            sgid: happened.sgid,
            dgid: happened.dgid,
            mtu: happened.path_mtu,
            flow_label: happened.flow_label,
            hop_limit: happened.hop_limit,
            traffic_class: happened.traffic_class,
        };
        set_path(id, &path)
    }
}

/// What the program is to see of something that the daemon told, and what is to be done for it.
/// `None`: nothing.
///
/// # Safety
/// `shell` is live.
unsafe fn seen_of(shell: *mut IdShell, happened: &CmHappened) -> Option<Box<EventShell>> {
    // SAFETY: the caller's promise.
    unsafe {
        let id = &raw mut (*shell).id;
        let mut event = fresh(shell, happened.event, happened.status);
        fill(&mut event, happened);
        let after_error = (*shell).state().answer == ConnectAnswer::Useless;
        match happened.event {
            RDMA_CM_EVENT_CONNECT_RESPONSE => {
                {
                    let mut state = (*shell).state();
                    (state.answer, state.remote_ece) = (ConnectAnswer::Came, options(happened));
                }
                if (*id).qp.is_null() {
                    return Some(event);
                }
                event.event.event = RDMA_CM_EVENT_ESTABLISHED;
                if let Err(errno) = establish(id) {
                    event.event.event = RDMA_CM_EVENT_CONNECT_ERROR;
                    event.event.status = -errno.raw();
                    (*shell).state().answer = ConnectAnswer::Useless;
                }
            }
            RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if after_error => return None,
            RDMA_CM_EVENT_REJECTED => {
                let _ = to_error(id);
            }
            RDMA_CM_EVENT_DISCONNECTED => (*shell).state().is_left_by_peer = true,
            _ => {}
        }
        Some(event)
    }
}

/// Takes the oldest event of a channel.
///
/// # Safety
/// The channel's identifiers are live.
unsafe fn take(channel: &ChannelShell) -> Result<Box<EventShell>, Errno> {
    let queue = channel.queue.clone();
    loop {
        queue.wait()?;
        let Some((pending, id)) = id_registry::take(&queue) else { continue };
        let shell: *mut IdShell = id.cast();
        // SAFETY: the registry has it, so it is live.
        let event = unsafe {
            match pending.what {
                EventSource::Request(happened, token) => request(shell, &happened, token).ok(),
                EventSource::Happened(happened) => seen_of(shell, &happened),
                EventSource::Own { event, status } => Some(fresh(shell, event, status)),
                EventSource::User { status, argument } => {
                    let mut event = fresh(shell, RDMA_CM_EVENT_USER, status);
                    event.event.param.arg = argument;
                    Some(event)
                }
                EventSource::Group { number, status } => {
                    let joined = multicast_membership::joined(&raw mut (*shell).id, number, status);
                    joined.map(|(kind, status, ud)| {
                        let mut event = fresh(shell, kind, status);
                        event.event.param.ud = ud;
                        event
                    })
                }
            }
        };
        match event {
            Some(event) => {
                // SAFETY: the identifier of an event is live while it is not acknowledged.
                unsafe {
                    refusal_log::failed(event.event.id, event.event.event, event.event.status)
                };
                return Ok(event);
            }
            // SAFETY: as above. An event that the program does not see is acknowledged only here.
            None => unsafe { (*shell).event_completed() },
        }
    }
}

/// The oldest event of a channel; waits for one, if the program did not set `O_NONBLOCK`.
///
/// # Safety
/// `channel` is live, and so are its identifiers; `event` is null or valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    outcome(unsafe { take_for_call(ChannelShell::of(channel)).map(|taken| event.write(taken)) })
}

/// The same, within a call that waits.
///
/// # Safety
/// The channel's identifiers are live.
pub(crate) unsafe fn take_for_call(channel: &ChannelShell) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the caller's promise.
    unsafe { take(channel) }.map(|taken| Box::into_raw(taken).cast())
}

/// Waits for what becomes of a call, where the identifier has no channel of the program's.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if IdShell::of(id).state().operation == Operation::Asynchronous {
            return Ok(());
        }
        drop_own(id);
        (*id).event = take_for_call(ChannelShell::of((*id).channel))?;
        match ((*(*id).event).event, (*(*id).event).status) {
            (_, 0) => Ok(()),
            (RDMA_CM_EVENT_REJECTED, _) => Err(ECONNREFUSED),
            (_, status) => Err(Errno(status.unsigned_abs())),
        }
    }
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rdma_event_str(event: u32) -> *const c_char {
    const NAMES: [&CStr; 18] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    ];
    NAMES.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
