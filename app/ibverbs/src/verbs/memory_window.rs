//! Memory windows.

use core::ffi::c_int;

use omniverb_abi::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp,
};
use omniverb_device::{SendWork, WindowType, opcode};
use omniverb_terms::{Errno, Rkey};

use super::context::ContextShell;
use super::protection_domain::PdShell;
use super::qp_handle::QpShell;
use crate::errno::{null, outcome, post_error};
use crate::refusal_log::refused;

/// Which of its 256 keys a window has.
const CHOSEN: u32 = 0xff;

/// `ibv_alloc_mw`.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    let of = match kind {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return null(Errno::EINVAL),
    };
    // SAFETY: the inline's argument.
    unsafe {
        let context = (*pd).context;
        let client = &ContextShell::of(context).client;
        let rkey = match client.add_window(of, PdShell::of(pd).number()) {
            Ok(rkey) => rkey.0,
            Err(errno) => {
                let why = "ibv_alloc_mw: the process has as many windows as it may";
                return null(refused!(errno, "{why}"));
            }
        };
        PdShell::of(pd).begin_use();
        Box::into_raw(Box::new(ibv_mw { context, pd, rkey, handle: rkey, r#type: kind }))
    }
}

/// `ibv_dealloc_mw`: when this returns, no peer reaches anything by it any more.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the inline's argument is live, and not used any more.
    unsafe {
        let mw = Box::from_raw(mw);
        ContextShell::of(mw.context).client.remove_window(Rkey(mw.rkey));
        PdShell::end_use(mw.pd);
    }
    0
}

/// The request to bind a window to a key of its own; a region of null is none.
///
/// # Safety
/// The region is null or live.
pub(super) unsafe fn bind_work(
    wr_id: u64,
    flags: u32,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> SendWork<'static> {
    // SAFETY: the caller's promise.
    let lkey = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
    SendWork {
        immediate: lkey,
        address: info.addr,
        rkey: Rkey(rkey),
        compare_add: u64::from(info.mw_access_flags),
        swap: if info.mr.is_null() { 0 } else { info.length },
        ..SendWork::new(wr_id, opcode::BIND_MW, flags)
    }
}

/// The request to end a key.
pub(super) fn end_work(wr_id: u64, flags: u32, rkey: u32) -> SendWork<'static> {
    SendWork { immediate: rkey, ..SendWork::new(wr_id, opcode::LOCAL_INV, flags) }
}

/// Whether a key is one that a window may be bound to by a work request.
///
/// # Safety
/// `mw` is live.
pub(super) unsafe fn may_have(mw: *const ibv_mw, rkey: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*mw).r#type == IBV_MW_TYPE_2 && ((*mw).rkey ^ rkey) & !CHOSEN == 0 }
}

/// `ibv_bind_mw`: a window of the first type, to its next key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        if (*mw).r#type != IBV_MW_TYPE_1 {
            return Errno::EINVAL.raw();
        }
        let rkey = (*mw).rkey & !CHOSEN | (*mw).rkey.wrapping_add(1) & CHOSEN;
        let work = bind_work((*bind).wr_id, (*bind).send_flags, rkey, &(*bind).bind_info);
        let posted = QpShell::of(qp).qp.post_send(&work).map_err(post_error);
        if posted.is_ok() {
            (*mw).rkey = rkey;
        }
        outcome(posted)
    }
}
