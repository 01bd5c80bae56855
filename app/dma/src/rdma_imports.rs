//! Declares the public functions of `libibverbs.so.1` and `librdmacm.so.1` that are used.

use core::ffi::{c_int, c_uint, c_void};

use libc::sockaddr;
use omniverb_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

unsafe extern "C" {
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        start: *mut c_void,
        bytes: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);

    pub(crate) fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    pub(crate) fn rdma_free_devices(list: *mut *mut ibv_context);
    pub(crate) fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub(crate) fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub(crate) fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;
    pub(crate) fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    pub(crate) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        space: c_uint,
    ) -> c_int;
    pub(crate) fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    pub(crate) fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int;
    pub(crate) fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    pub(crate) fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    pub(crate) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        from: *mut sockaddr,
        to: *mut sockaddr,
        milliseconds: c_int,
    ) -> c_int;
    pub(crate) fn rdma_resolve_route(id: *mut rdma_cm_id, milliseconds: c_int) -> c_int;
    pub(crate) fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(crate) fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub(crate) fn rdma_connect(id: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int;
    pub(crate) fn rdma_accept(id: *mut rdma_cm_id, with: *mut rdma_conn_param) -> c_int;
    pub(crate) fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, bytes: u8) -> c_int;
    pub(crate) fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
}
