//! Memory that the library allocates, and registration by a list of attributes.
//!
//! A provider may have memory of its own for buffers. We have none that is better than others, and
//! give what rdma-core gives for every provider without: pages of the program's own memory.

use core::ffi::{c_int, c_void};
use core::ptr::addr_of;
use std::alloc::{Layout, alloc, dealloc};

use omniverb_abi::*;
use omniverb_terms::Errno;

use super::memory_region::register;
use crate::errno::{minus_one, null};

/// One buffer; `ibv_buf` for C.
struct RegisteredBuffer {
    pd: *mut ibv_pd,
    memory: *mut u8,
    layout: Layout,
    /// What was asked for.
    length: usize,
}

/// Allocates whole pages and a handle for them.
///
/// # Safety
/// `pd` is live, `buf` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_alloc_buf(
    pd: *mut ibv_pd,
    length: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: no pointers; the answer is a constant of the machine.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(4096);
    let Ok(layout) = Layout::from_size_align(length.max(1), page) else {
        return null(Errno::ENOMEM);
    };
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        return null(Errno::ENOMEM);
    }
    let buffer = Box::new(RegisteredBuffer { pd, memory, layout, length });
    // SAFETY: the caller's promise.
    unsafe { buf.write(Box::into_raw(buffer).cast()) };
    memory.cast()
}

/// Frees both. Regions in it must be deregistered before.
///
/// # Safety
/// `buf` is of [`ov_ibv_alloc_buf`] and freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_free_buf(buf: *mut ibv_buf) {
    // SAFETY: the caller's promise; the memory was allocated with this layout.
    unsafe {
        let buffer = Box::from_raw(buf.cast::<RegisteredBuffer>());
        dealloc(buffer.memory, buffer.layout);
    }
}

/// A descriptor of the memory as a DMA-buf: there is none, it is plain memory (`ENODATA`).
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    minus_one(Errno::ENODATA)
}

/// Registers a part of a buffer.
///
/// # Safety
/// `pd` and `buf` are live; the buffer is not freed before the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_inside(pd, buf, address, length) {
            return null(Errno::EINVAL);
        }
        register(pd, address, length, address as u64, access as u32)
    }
}

/// Whether a range is inside a buffer that was allocated for this PD.
///
/// # Safety
/// `buf` is live.
unsafe fn is_inside(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
) -> bool {
    // SAFETY: the caller's promise.
    let buffer = unsafe { &*buf.cast::<RegisteredBuffer>() };
    let from = (address as usize).checked_sub(buffer.memory as usize);
    let left = from.and_then(|from| buffer.length.checked_sub(from));
    pd == buffer.pd && left.is_some_and(|left| length <= left)
}

/// Registers what a list of attributes describes: memory of the program, or of a buffer. DMA-bufs
/// and DMA handles are not offered; what does not fit together is `EINVAL`.
///
/// # Safety
/// `pd` is live, `attributes` has the fields that its mask names, and they are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attributes: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    const BY_FD: u64 = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
    const KNOWN: u64 = IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | BY_FD | IBV_REG_MR_MASK_BUF;
    // SAFETY: these fields are in every release; the others are read if the mask names them, since
    // older callers have fewer.
    unsafe {
        let mask = addr_of!((*attributes).comp_mask).read();
        let length = addr_of!((*attributes).length).read();
        let access = addr_of!((*attributes).access).read();
        let has = |bits: u64| mask & bits != 0;
        let address = match has(IBV_REG_MR_MASK_ADDR) {
            true => addr_of!((*attributes).addr).read(),
            false => core::ptr::null_mut(),
        };
        if has(IBV_REG_MR_MASK_BUF) {
            let buf = addr_of!((*attributes).buf).read();
            if !has(IBV_REG_MR_MASK_ADDR) || has(BY_FD) || !is_inside(pd, buf, address, length) {
                return null(Errno::EINVAL);
            }
        }
        if has(!KNOWN) {
            return null(Errno::EOPNOTSUPP);
        }
        if has(IBV_REG_MR_MASK_FD) {
            let whole = has(IBV_REG_MR_MASK_FD_OFFSET) && has(IBV_REG_MR_MASK_IOVA);
            let fits = whole && !has(IBV_REG_MR_MASK_ADDR);
            return null(if fits { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        if !has(IBV_REG_MR_MASK_ADDR) || has(IBV_REG_MR_MASK_FD_OFFSET) {
            return null(Errno::EINVAL);
        }
        let iova = match has(IBV_REG_MR_MASK_IOVA) {
            true => addr_of!((*attributes).iova).read(),
            false => address as u64,
        };
        register(pd, address, length, iova, access as u32)
    }
}
