//! Identifiers: made, moved to another channel, destroyed.

use core::ffi::{c_int, c_void};

use omniverb_abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_IPOIB, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel,
};
use omniverb_session::Message;
use omniverb_session::cm::{CreateCmId, DestroyCmId};
use omniverb_terms::Errno;

use crate::ack_cm_event::drop_own;
use crate::errno::outcome;
use crate::event_channel::{self, ChannelShell};
use crate::id_state::{IdShell, Kind, Operation, allocate, free};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{daemon_calls, device, id_registry, process_id_across_fork};

/// Makes an identifier.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    kind: &Kind,
) -> Result<*mut rdma_cm_id, Errno> {
    let question = CreateCmId { space: kind.space, qp_type: kind.qp_type };
    let handle = match daemon_calls::ask(&question.into())? {
        Message::CmIdCreated(created) => created.id,
        _ => return Err(Errno::EPROTO),
    };
    let destroy = |_: &Errno| {
        let _ = daemon_calls::tell(&DestroyCmId { id: handle, taken: 0 }.into());
    };
    let shell = allocate(channel, kind).inspect_err(destroy)?;
    // SAFETY: just made; it has no other owner.
    unsafe {
        let queue = ChannelShell::of((*shell).id.channel).queue.clone();
        (*shell).token = id_registry::add(&raw mut (*shell).id, handle, queue);
        Ok(&raw mut (*shell).id)
    }
}

/// The kind of queue pair that goes with a port space.
fn service_of(space: u32) -> u32 {
    if matches!(space, RDMA_PS_UDP | RDMA_PS_IPOIB) { IBV_QPT_UD } else { IBV_QPT_RC }
}

/// Gives up a request that cannot be told to the program.
pub(crate) fn forget(token: u64) {
    if let Some(id) = id_registry::remove(token).and_then(|removed| removed.handle) {
        let _ = daemon_calls::tell(&DestroyCmId { id, taken: 0 }.into());
    }
}

/// Makes an identifier, on a channel; without one, calls wait for what becomes of them.
///
/// # Safety
/// `channel` is null or live, `id` valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    let kind = Kind { context, space, qp_type: service_of(space) };
    static CALL: LoggedCall = LoggedCall::new("rdma_create_id", AttemptedStep::Create);
    let made = CALL.explain(device::check_present().and_then(|()| create(channel, &kind)));
    // SAFETY: the caller's promise.
    outcome(made.map(|made| unsafe { id.write(made) }))
}

/// Destroys an identifier, when all events of it are acknowledged.
///
/// # Safety
/// `id` is live, and not used any more but for acknowledging its events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    let shell = unsafe { IdShell::of(id) };
    let Some(removed) = id_registry::remove(shell.token) else {
        return outcome(Err(Errno::EINVAL));
    };
    // In a child of fork() it is the parent's.
    let ours = shell.process == process_id_across_fork::this();
    if let Some(id) = removed.handle
        && ours
    {
        // A daemon that does not answer forgets it with the process.
        let _ = daemon_calls::tell(&DestroyCmId { id, taken: removed.requests }.into());
    }
    // SAFETY: the caller's promise; an identifier's own event is acknowledged with it.
    unsafe {
        drop_own(id);
        if ours {
            shell.await_acknowledged(removed.reported);
        }
        free(id.cast());
    }
    0
}

/// Moves an identifier to another channel, or to one of its own.
///
/// # Safety
/// `id` is live, `channel` null or live.
pub(crate) unsafe fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let shell = unsafe { IdShell::of(id) };
    let before = shell.state().operation;
    let after = Operation::with(channel);
    if (before, after) == (Operation::Synchronous, Operation::Synchronous) {
        return Err(Errno::EINVAL);
    }
    let channel = if channel.is_null() { event_channel::create()? } else { channel };
    // SAFETY: live, or just made.
    let queue = unsafe { &ChannelShell::of(channel).queue };
    let reported = id_registry::migrate(shell.token, queue);
    // SAFETY: the caller's promise; the old channel is the identifier's own, and has nothing any
    // more.
    unsafe {
        if before == Operation::Synchronous {
            drop_own(id);
            event_channel::ov_rdma_destroy_event_channel((*id).channel);
        }
        (*id).channel = channel;
    }
    shell.state().operation = after;
    shell.await_acknowledged(reported);
    Ok(())
}

/// Moves an identifier to another channel; waits until the program has acknowledged its events.
///
/// # Safety
/// `id` is live, `channel` null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { migrate(id, channel) })
}

/// The port of our own address, in network order.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    crate::c_sockaddr::port(unsafe { &(*id).route.addr.src_storage })
}

/// The port of the peer's address, in network order.
///
/// # Safety
/// `id` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    crate::c_sockaddr::port(unsafe { &(*id).route.addr.dst_storage })
}
