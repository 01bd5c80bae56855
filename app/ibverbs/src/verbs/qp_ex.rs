//! The work request builder: `ibv_wr_start`, an operation, its setters, `ibv_wr_complete`.
//!
//! Requests are collected by a `Builder`. The QP's C mutex is held from start to end: two threads
//! may build on one QP in turn.

use core::ffi::{c_int, c_void};

use omniverb_abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex,
    ibv_sge,
};
use omniverb_device::{SendWork, Sge, limits, opcode};
use omniverb_terms::{Errno, Lkey, Placement, Qkey, Qpn, Rkey, Selectivity};

use super::address_handle::AhShell;
use super::memory_window::{bind_work, end_work, may_have};
use super::qp_handle::QpShell;
use super::work_request_builder::{Builder, RequestInProgress};

/// Fills the operations that were asked for.
pub(super) fn fill(ex: &mut ibv_qp_ex, operations: u64) {
    macro_rules! offer {
        ($($flag:ident $slot:ident),* $(,)?) => {
            $(if operations & $flag != 0 { ex.$slot = Some($slot); })*
        };
    }
    offer!(
        IBV_QP_EX_WITH_SEND wr_send,
        IBV_QP_EX_WITH_SEND_WITH_IMM wr_send_imm,
        IBV_QP_EX_WITH_SEND_WITH_INV wr_send_inv,
        IBV_QP_EX_WITH_RDMA_WRITE wr_rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM wr_rdma_write_imm,
        IBV_QP_EX_WITH_RDMA_READ wr_rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD wr_atomic_fetch_add,
        IBV_QP_EX_WITH_BIND_MW wr_bind_mw,
        IBV_QP_EX_WITH_LOCAL_INV wr_local_inv,
        IBV_QP_EX_WITH_ATOMIC_WRITE wr_atomic_write,
        IBV_QP_EX_WITH_FLUSH wr_flush,
    );
    ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_abort = Some(wr_abort);
}

/// `ibv_qp_to_qp_ex`: only QPs made for it have a builder.
///
/// # Safety
/// `qp` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_qp_to_qp_ex(qp: *mut omniverb_abi::ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    if unsafe { QpShell::of(qp) }.builder.is_some() { qp.cast() } else { core::ptr::null_mut() }
}

/// The builder, between start and end.
///
/// # Safety
/// `ex` is a live QP with a builder, and this thread holds its mutex.
unsafe fn builder<'a>(ex: *mut ibv_qp_ex) -> Option<&'a mut Builder> {
    // SAFETY: the mutex makes this the only reference to the builder; `qp` is not aliased
    // mutably.
    unsafe {
        let place = &raw mut (*ex.cast::<QpShell>()).builder;
        (*place).as_deref_mut()
    }
}

unsafe extern "C" fn wr_start(ex: *mut ibv_qp_ex) {
    // SAFETY: the inline's argument.
    unsafe {
        libc::pthread_mutex_lock(&raw mut (*ex).qp_base.mutex);
        if let Some(builder) = builder(ex) {
            builder.start();
        }
    }
}

unsafe extern "C" fn wr_abort(ex: *mut ibv_qp_ex) {
    // SAFETY: after `wr_start`, by the verbs contract.
    unsafe { libc::pthread_mutex_unlock(&raw mut (*ex).qp_base.mutex) };
}

unsafe extern "C" fn wr_complete(ex: *mut ibv_qp_ex) -> c_int {
    // SAFETY: after `wr_start`, by the verbs contract.
    unsafe {
        let result = match builder(ex) {
            None => Errno::EINVAL.raw(),
            Some(builder) => builder.complete(&(*ex.cast::<QpShell>()).qp),
        };
        libc::pthread_mutex_unlock(&raw mut (*ex).qp_base.mutex);
        result
    }
}

/// Begins a request; `wr_id` and `wr_flags` count as they are now.
///
/// # Safety
/// Between start and end.
unsafe fn begin(ex: *mut ibv_qp_ex, code: u32, set: impl FnOnce(&mut SendWork<'static>)) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut work = SendWork::new((*ex).wr_id, code, (*ex).wr_flags);
        set(&mut work);
        if let Some(builder) = builder(ex) {
            builder.begin(work);
        }
    }
}

/// As [`Builder::change`].
///
/// # Safety
/// Between start and end.
unsafe fn change(ex: *mut ibv_qp_ex, change: impl FnOnce(&mut RequestInProgress) -> Option<()>) {
    // SAFETY: the caller's promise.
    if let Some(builder) = unsafe { builder(ex) } {
        builder.change(change);
    }
}

unsafe extern "C" fn wr_send(ex: *mut ibv_qp_ex) {
    // SAFETY: between start and end, by the verbs contract; so for all below.
    unsafe { begin(ex, opcode::SEND, |_| {}) }
}

unsafe extern "C" fn wr_send_imm(ex: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: as above.
    unsafe { begin(ex, opcode::SEND_WITH_IMM, |work| work.immediate = immediate) }
}

unsafe extern "C" fn wr_send_inv(ex: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(ex, opcode::SEND_WITH_INV, |work| work.immediate = rkey) }
}

unsafe extern "C" fn wr_bind_mw(
    ex: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as above.
    unsafe {
        let work = bind_work((*ex).wr_id, (*ex).wr_flags, rkey, &*info);
        let allowed = may_have(mw, rkey);
        if let Some(builder) = builder(ex) {
            builder.begin(work);
            if !allowed {
                builder.change(|_| None);
            }
        }
    }
}

unsafe extern "C" fn wr_local_inv(ex: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe {
        let work = end_work((*ex).wr_id, (*ex).wr_flags, rkey);
        if let Some(builder) = builder(ex) {
            builder.begin(work);
        }
    }
}

unsafe extern "C" fn wr_rdma_write(ex: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::RDMA_WRITE, |work| (work.rkey, work.address) = (Rkey(rkey), address))
    }
}

unsafe extern "C" fn wr_rdma_write_imm(ex: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::RDMA_WRITE_WITH_IMM, |work| {
            (work.rkey, work.address, work.immediate) = (Rkey(rkey), address, imm);
        });
    }
}

unsafe extern "C" fn wr_rdma_read(ex: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::RDMA_READ, |work| (work.rkey, work.address) = (Rkey(rkey), address))
    }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    ex: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::ATOMIC_CMP_AND_SWP, |work| {
            (work.rkey, work.address, work.compare_add, work.swap) =
                (Rkey(rkey), address, compare, swap);
        });
    }
}

unsafe extern "C" fn wr_atomic_fetch_add(ex: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::ATOMIC_FETCH_AND_ADD, |work| {
            (work.rkey, work.address, work.compare_add) = (Rkey(rkey), address, add);
        });
    }
}

unsafe extern "C" fn wr_atomic_write(
    ex: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    value: *const c_void,
) {
    // SAFETY: as above; `value` has eight bytes, which are copied now.
    unsafe {
        let value = value.cast::<[u8; 8]>().read_unaligned();
        begin(ex, opcode::ATOMIC_WRITE, |work| {
            (work.rkey, work.address) = (Rkey(rkey), address);
        });
        change(ex, |request| {
            request.inline = Some(value.to_vec());
            Some(())
        });
    }
}

unsafe extern "C" fn wr_flush(
    ex: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    let how = Placement::from_bits(placement).zip(Selectivity::from_code(level));
    let length = match how {
        // The whole region: the length counts for nothing.
        Some((_, Selectivity::Region)) => Some(0),
        _ => u32::try_from(length).ok(),
    };
    // SAFETY: as above.
    unsafe {
        begin(ex, opcode::FLUSH, |work| {
            (work.rkey, work.address) = (Rkey(rkey), address);
        });
        change(ex, |request| {
            let (placement, selectivity) = how?;
            request.work.flush(length?, placement, selectivity);
            Some(())
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(ex: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as above; `ah` is null or live.
    unsafe {
        change(ex, |request| {
            if ah.is_null() {
                return None;
            }
            request.work.to = Some(AhShell::of(ah).leads_to(Qpn(qpn), Qkey(qkey)));
            Some(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(ex: *mut ibv_qp_ex, number: u32) {
    // SAFETY: as above.
    unsafe {
        change(ex, |request| {
            request.work.srq = number;
            Some(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(ex: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    // SAFETY: as above.
    unsafe {
        change(ex, |request| {
            request.sges = vec![Sge { address, length, lkey: Lkey(lkey) }];
            Some(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(ex: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above; `list` has `count` entries.
    unsafe {
        change(ex, |request| {
            if count > limits::SGE_MAX as usize || (count > 0 && list.is_null()) {
                return None;
            }
            let entries = (0..count).map(|at| list.add(at).read());
            request.sges = entries
                .map(|sge| Sge { address: sge.addr, length: sge.length, lkey: Lkey(sge.lkey) })
                .collect();
            Some(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(ex: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr: address, length };
    // SAFETY: as above.
    unsafe { wr_set_inline_data_list(ex, 1, &raw const one) }
}

unsafe extern "C" fn wr_set_inline_data_list(
    ex: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as above; `list` has `count` entries, each naming readable bytes.
    unsafe {
        change(ex, |request| {
            let mut bytes = Vec::new();
            for at in 0..count {
                let part = list.add(at).read();
                if part.length > limits::INLINE_MAX as usize - bytes.len() {
                    return None;
                }
                if part.length > 0 {
                    let part = core::slice::from_raw_parts(part.addr.cast::<u8>(), part.length);
                    bytes.extend_from_slice(part);
                }
            }
            request.inline = Some(bytes);
            Some(())
        });
    }
}
