//! A connection's identifier, and what is asked of it.

use core::ffi::c_void;
use core::ptr::null_mut;

use libc::{sockaddr, sockaddr_storage};
use omniverb_abi::{
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP, ibv_context, rdma_cm_id, rdma_conn_param,
    rdma_event_channel,
};
use omniverb_dma_announce::HELLO;
use omniverb_terms::Errno;

use crate::device::Device;
use crate::errno::call;
use crate::limits::{BACKLOG, RESOLVE_MS};
use crate::node_queue_pair::Queues;
use crate::rdma_imports;

/// Owns an `rdma_cm_id`.
pub(crate) struct CmId(*mut rdma_cm_id);

// SAFETY: the calls of rdma_cma.h are for any thread.
unsafe impl Send for CmId {}

impl CmId {
    /// A new one; its events name `node`.
    pub(crate) fn new(channel: *mut rdma_event_channel, node: u32) -> Result<Self, Errno> {
        let mut id = null_mut();
        let name = node as usize as *mut c_void;
        // SAFETY: an open channel, and a place for a pointer.
        call(unsafe { rdma_imports::rdma_create_id(channel, &mut id, name, RDMA_PS_TCP) })?;
        Ok(Self(id))
    }

    /// That of a peer that wants to connect.
    ///
    /// # Safety
    /// `id` came with a request, and has no other owner.
    pub(crate) unsafe fn of_request(id: *mut rdma_cm_id) -> Self {
        Self(id)
    }

    /// From now on its events name `node`.
    pub(crate) fn name(&self, node: u32) {
        // SAFETY: live; nothing of it was told yet.
        unsafe { (*self.0).context = node as usize as *mut c_void };
    }

    /// Its device; null while it has none.
    pub(crate) fn device(&self) -> *mut ibv_context {
        // SAFETY: live.
        unsafe { (*self.0).verbs }
    }

    pub(crate) fn bind(&self, address: &mut sockaddr_storage) -> Result<(), Errno> {
        let address = (&raw mut *address).cast::<sockaddr>();
        // SAFETY: live, and an address.
        call(unsafe { rdma_imports::rdma_bind_addr(self.0, address) })
    }

    /// Listens; the port.
    pub(crate) fn listen(&self) -> Result<u16, Errno> {
        // SAFETY: live, and bound.
        unsafe {
            call(rdma_imports::rdma_listen(self.0, BACKLOG))?;
            Ok(u16::from_be(rdma_imports::rdma_get_src_port(self.0)))
        }
    }

    /// Looks for an address, from another or from any.
    pub(crate) fn resolve(
        &self,
        mut from: Option<sockaddr_storage>,
        mut to: sockaddr_storage,
    ) -> Result<(), Errno> {
        let from = from.as_mut().map_or(null_mut(), |from| (&raw mut *from).cast());
        let to = (&raw mut to).cast();
        // SAFETY: live, and addresses.
        call(unsafe { rdma_imports::rdma_resolve_addr(self.0, from, to, RESOLVE_MS) })
    }

    /// Looks for a route to the address.
    pub(crate) fn resolve_route(&self) -> Result<(), Errno> {
        // SAFETY: live.
        call(unsafe { rdma_imports::rdma_resolve_route(self.0, RESOLVE_MS) })
    }

    /// Makes its queues.
    pub(crate) fn queues(&self, device: &Device, node: u32) -> Result<Queues, Errno> {
        // SAFETY: live; a node's queues go before its identifier.
        unsafe { Queues::new(device, self.0, node) }
    }

    pub(crate) fn connect(&self) -> Result<(), Errno> {
        // SAFETY: live, and parameters.
        call(unsafe { rdma_imports::rdma_connect(self.0, &mut parameters()) })
    }

    pub(crate) fn accept(&self) -> Result<(), Errno> {
        // SAFETY: live, and parameters.
        call(unsafe { rdma_imports::rdma_accept(self.0, &mut parameters()) })
    }

    pub(crate) fn reject(&self) {
        // SAFETY: live. A peer that hears nothing of it waits until it is told by the identifier's
        // end.
        unsafe { rdma_imports::rdma_reject(self.0, core::ptr::null(), 0) };
    }

    /// Ends the connection, if there is one.
    pub(crate) fn disconnect(&self) {
        // SAFETY: live. It may have ended already.
        unsafe { rdma_imports::rdma_disconnect(self.0) };
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: live, and not used any more. Waits until the library's thread has acknowledged
        // what it was told of it, which that does at once.
        unsafe { rdma_imports::rdma_destroy_id(self.0) };
    }
}

/// As many READs as the devices have, and retries for peers that are not ready.
fn parameters() -> rdma_conn_param {
    rdma_conn_param {
        private_data: HELLO.as_ptr().cast(),
        private_data_len: HELLO.len() as u8,
        responder_resources: RDMA_MAX_RESP_RES as u8,
        initiator_depth: RDMA_MAX_INIT_DEPTH as u8,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}
