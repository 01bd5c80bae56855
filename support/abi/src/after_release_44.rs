//! Defines types of releases after 44, which Debian 12's header does not have.

use core::ffi::{c_int, c_void};

use crate::context::ibv_context;

/// Opaque buffer handle of `ibv_alloc_buf` (release 64).
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

/// A handle of DMA hints (release 59).
#[repr(C)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}

/// What `ibv_alloc_dmah` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}

/// What `ibv_reg_mr_ex` takes (release 59). Callers of releases before 64 have no `buf`, so it is
/// read through a pointer: fields past `comp_mask` only if their bit of it is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}

/// Bits of [`ibv_mr_init_attr::comp_mask`].
pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const IBV_REG_MR_MASK_DMAH: u64 = 1 << 4;
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// A completion counter (release 65).
#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// What `ibv_create_comp_cntr` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: u32,
    pub flags: u32,
}

/// What a counter counts: [`ibv_comp_cntr_init_attr::type`](struct@ibv_comp_cntr_init_attr).
pub const IBV_COMP_CNTR_TYPE_WRS: u32 = 0;
pub const IBV_COMP_CNTR_TYPE_BYTES: u32 = 1;

/// What `ibv_qp_attach_comp_cntr` takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

/// What `ibv_query_comp_cntr_caps` tells.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
