//! Defines types of verbs that this device does not offer.
//!
//! They are needed to type the function slots and to answer with the right size; opaque where no
//! program reads the fields.

use core::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t, timespec};

use crate::context::ibv_context;
use crate::memory::ibv_pd;
use crate::queue::ibv_cq;
use crate::work_requests::{ibv_recv_wr, ibv_sge};

/// A work queue outside a queue pair.
#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: u32,
    pub wq_type: u32,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}

/// What `create_wq` takes.
#[repr(C)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}

/// What `modify_wq` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: u32,
    pub curr_wq_state: u32,
    pub flags: u32,
    pub flags_mask: u32,
}

/// A table that spreads received packets over work queues.
#[repr(C)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: c_int,
    pub ind_tbl_num: c_int,
    pub comp_mask: u32,
}

/// What `create_rwq_ind_table` takes.
#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}

/// An XRC domain.
#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

/// What `open_xrcd` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

/// A thread domain.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// What `alloc_td` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

/// What `alloc_parent_domain` takes.
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub pd_context: *mut c_void,
}

/// A set of flow counters.
#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}

/// What `create_counters` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}

/// What `attach_counters_point_flow` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: u32,
    pub index: u32,
    pub comp_mask: u32,
}

/// What `query_rt_values` fills.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}

/// A steering rule.
#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// Head of a steering rule's description; specifications follow it in memory.
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: u32,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}

/// A steering action.
#[repr(C)]
pub struct ibv_flow_action {
    pub context: *mut ibv_context,
}

/// Attributes of an IPsec steering action; never read.
#[repr(C)]
pub struct ibv_flow_action_esp_attr {
    _opaque: [u8; 0],
}

/// The tag matching part of an [`ibv_ops_wr`].
#[repr(C)]
pub struct ibv_ops_wr_tm_add {
    pub recv_wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}

/// A tag matching request.
#[repr(C)]
pub struct ibv_ops_wr {
    pub wr_id: u64,
    pub next: *mut ibv_ops_wr,
    pub opcode: u32,
    pub flags: c_int,
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub add: ibv_ops_wr_tm_add,
}
