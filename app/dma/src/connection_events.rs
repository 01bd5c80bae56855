//! Handles what happens to connections.
//!
//! In: events of rdma_cm, in the library's thread. Out: nodes that are connected, or ended. An
//! event is acknowledged before anything is done for it: a thread that destroys an identifier waits
//! for that.

use core::ptr::null_mut;
use std::sync::Arc;

use omniverb_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event,
};
use omniverb_dma_announce::is_hello;
use omniverb_terms::Errno;

use crate::cm_id::CmId;
use crate::dma_context::Program;
use crate::errno::{ECONNREFUSED, status};
use crate::node::{ConnectionOrigin, Node};
use crate::rdma_imports;

/// What is kept of an event.
struct Event {
    what: u32,
    status: i32,
    /// Whose; 0: the listener's.
    node: u32,
    /// The peer that wants to connect.
    request: Option<CmId>,
    /// Its private data are those of a node.
    greets: bool,
}

/// Takes all events there are.
pub(crate) fn take_all(program: &Program) {
    while let Some(event) = next(program) {
        happened(program, event);
    }
}

fn next(program: &Program) -> Option<Event> {
    let mut event: *mut rdma_cm_event = null_mut();
    // SAFETY: an open channel, and a place for a pointer. What the event has is read before it is
    // given back; the identifier of a request is ours from then on.
    unsafe {
        if rdma_imports::rdma_get_cm_event(program.events.0, &mut event) != 0 {
            return None;
        }
        let it = &*event;
        let is_request = it.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        let found = Event {
            what: it.event,
            status: it.status,
            node: if is_request { 0 } else { (*it.id).context as usize as u32 },
            request: is_request.then(|| CmId::of_request(it.id)),
            greets: {
                let (data, bytes) = (it.param.conn.private_data, it.param.conn.private_data_len);
                !data.is_null()
                    && is_hello(core::slice::from_raw_parts(data.cast(), usize::from(bytes)))
            },
        };
        rdma_imports::rdma_ack_cm_event(event);
        Some(found)
    }
}

fn happened(program: &Program, event: Event) {
    if let Some(id) = event.request {
        return requested(program, id, event.greets);
    }
    if event.node == 0 && event.what == RDMA_CM_EVENT_DEVICE_REMOVAL {
        return program.stop_listening();
    }
    let Some(node) = program.node(event.node) else { return };
    match event.what {
        RDMA_CM_EVENT_ADDR_RESOLVED => node.with(|id| {
            if id.device() == program.device.context {
                id.resolve_route()
            } else {
                Err(Errno::ENODEV)
            }
        }),
        RDMA_CM_EVENT_ROUTE_RESOLVED => node.get_ready(&program.device, CmId::connect),
        RDMA_CM_EVENT_ESTABLISHED => established(program, &node, event.greets),
        RDMA_CM_EVENT_REJECTED => node.end(ECONNREFUSED),
        RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => {
            node.end(status(event.status, Errno::EHOSTUNREACH));
        }
        RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR => {
            node.end(status(event.status, Errno::ETIMEDOUT));
        }
        RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL => node.end(Errno::ECONNRESET),
        _ => {}
    }
}

/// A peer wants to connect.
fn requested(program: &Program, id: CmId, greets: bool) {
    let welcome = greets && id.device() == program.device.context;
    let node =
        if welcome { program.add_node(ConnectionOrigin::Incoming) } else { Err(Errno::EPROTO) };
    let Ok(node) = node else { return id.reject() };
    id.name(node.number);
    node.set_connection(id);
    node.get_ready(&program.device, CmId::accept);
}

fn established(program: &Program, node: &Arc<Node>, greets: bool) {
    // A peer that connected to us has said which node it is.
    if node.is_incoming() || greets { program.open(node) } else { node.end(ECONNREFUSED) }
}
