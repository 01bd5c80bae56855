//! Declares what `libibverbs.so.1` exports to this library: verbs, and the private node of
//! Omniverb's own libraries.
//!
//! `cargo xtask dist` links with it. The tests of this crate have verbs and a daemon of their own
//! in place of this file (`testing/fake_ibverbs.rs`).

use core::ffi::{c_int, c_uint, c_void};

use omniverb_abi::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_srq,
};

use crate::private_abi::{PrivateAnswer, PrivateClient};

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int;
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        out: *mut ibv_gid_entry,
        most: usize,
        flags: u32,
        size: usize,
    ) -> isize;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        start: *mut c_void,
        bytes: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
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
    pub(crate) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

    pub(crate) fn omniverb_private_open(
        version: u32,
        context: *mut ibv_context,
        opened: *mut *mut PrivateClient,
    ) -> c_int;
    pub(crate) fn omniverb_private_leave(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn omniverb_private_call(
        opened: *mut PrivateClient,
        question: *const c_void,
        bytes: usize,
        answer: *mut PrivateAnswer,
    ) -> c_int;
    pub(crate) fn omniverb_private_listen(
        opened: *mut PrivateClient,
        hear: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize)>,
        cookie: *mut c_void,
    ) -> c_int;
}
