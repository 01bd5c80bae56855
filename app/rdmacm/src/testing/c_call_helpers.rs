//! Shortens C calls for tests.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard};

use libc::sockaddr_storage;
use omniverb_abi::*;
use omniverb_session::cm::{CmAddress, FAMILY_IPV4};
use omniverb_terms::Gid;

use crate::errno::last;
use crate::{ack_cm_event, c_sockaddr, cm_id, event, event_channel};

/// One test at a time: they have one process, one daemon, one registry.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

pub(crate) fn at(ip: [u8; 4], port: u16) -> sockaddr_storage {
    let ip = Gid::from(Ipv4Addr::from(ip));
    c_sockaddr::to_c(&CmAddress { family: FAMILY_IPV4, port, interface: 0, ip })
}

/// Our own address.
pub(crate) fn here(port: u16) -> sockaddr_storage {
    at([127, 0, 0, 1], port)
}

/// What a call returned: zero, or its errno.
pub(crate) fn said(result: c_int) -> Result<(), c_int> {
    match result {
        0 => Ok(()),
        -1 => Err(last().raw()),
        other => panic!("{other} is no result"),
    }
}

pub(crate) fn channel() -> *mut rdma_event_channel {
    let made = event_channel::ov_rdma_create_event_channel();
    assert!(!made.is_null());
    made
}

pub(crate) fn new_id(channel: *mut rdma_event_channel, space: u32) -> *mut rdma_cm_id {
    let mut made = null_mut();
    // SAFETY: a place for a pointer.
    said(unsafe { cm_id::ov_rdma_create_id(channel, &mut made, null_mut::<c_void>(), space) })
        .unwrap();
    made
}

/// The next event: its kind, status, identifier and private data; acknowledged.
pub(crate) struct SeenEvent {
    pub(crate) kind: u32,
    pub(crate) status: c_int,
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listener: *mut rdma_cm_id,
    pub(crate) private: Vec<u8>,
}

pub(crate) fn next(channel: *mut rdma_event_channel) -> SeenEvent {
    let event = taken(channel);
    // SAFETY: an event of a connection, not yet acknowledged.
    unsafe {
        let conn = (*event).param.conn;
        let private = if conn.private_data.is_null() {
            Vec::new()
        } else {
            let length = usize::from(conn.private_data_len);
            core::slice::from_raw_parts(conn.private_data.cast::<u8>(), length).to_vec()
        };
        let seen = SeenEvent {
            kind: (*event).event,
            status: (*event).status,
            id: (*event).id,
            listener: (*event).listen_id,
            private,
        };
        said(ack_cm_event::ov_rdma_ack_cm_event(event)).unwrap();
        seen
    }
}

/// The next event, not acknowledged.
pub(crate) fn taken(channel: *mut rdma_event_channel) -> *mut rdma_cm_event {
    let mut event = null_mut();
    // SAFETY: live; a place for a pointer.
    said(unsafe { event::ov_rdma_get_cm_event(channel, &mut event) }).unwrap();
    event
}

/// Whether there is something in a channel.
pub(crate) fn is_readable(channel: *mut rdma_event_channel) -> bool {
    // SAFETY: live.
    let mut file = libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut file, 1, 0) == 1 }
}

/// Parameters with private data.
pub(crate) fn parameters(private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: 0,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 0,
        qp_num: 0,
    }
}

pub(crate) fn queue_pair_attributes() -> ibv_qp_init_attr {
    // SAFETY: numbers and pointers: zero is valid.
    let mut attr: ibv_qp_init_attr = unsafe { core::mem::zeroed() };
    attr.qp_type = IBV_QPT_RC;
    (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
    attr
}
