//! Extended completion queues: polled one completion at a time, field by field.

use core::ffi::c_int;

use omniverb_abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID,
    IBV_WC_EX_WITH_SRC_QP, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
};
use omniverb_device::Wc;
use omniverb_terms::Errno;

use super::cq::{CqShell, create};
use crate::errno::null;

/// Fields that completions of this device have.
const FIELDS: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// `ibv_create_cq_ex`.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the inline's arguments. `parent_domain` is beyond the struct of older headers and is
    // not read.
    unsafe {
        let (fields, mask) = ((*attr).wc_flags, (*attr).comp_mask);
        let has_flags = mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { (*attr).flags } else { 0 };
        let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
            || fields & !u64::from(FIELDS) != 0
            || flags & !known != 0
        {
            return null(Errno::EOPNOTSUPP);
        }
        if (*attr).comp_vector != 0 {
            return null(Errno::EINVAL);
        }
        let made = create(context, (*attr).cqe, (*attr).cq_context, (*attr).channel);
        if !made.is_null() {
            fill(&mut (*made).ex);
        }
        made.cast()
    }
}

fn fill(ex: &mut ibv_cq_ex) {
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_slid = Some(read_slid);
    ex.read_sl = Some(read_sl);
    ex.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// Takes the next completion into the shell.
///
/// # Safety
/// `ex` is a live CQ of ours and only this thread polls it now.
unsafe fn take(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise. No reference to the whole shell is held while its fields are
    // written.
    unsafe {
        let shell = ex.cast::<CqShell>();
        let mut wc = [Wc::default()];
        if (*shell).cq.poll(&mut wc) == 0 {
            return Errno::ENOENT.raw();
        }
        (*shell).current = wc[0];
        (*ex).status = wc[0].status;
        (*ex).wr_id = wc[0].wr_id;
    }
    0
}

/// Begins a poll. The lock is kept until its end: two threads may poll one queue in turn.
unsafe extern "C" fn start_poll(ex: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return Errno::EINVAL.raw();
        }
        libc::pthread_mutex_lock(&raw mut (*ex).cq.mutex);
        let result = take(ex);
        if result != 0 {
            libc::pthread_mutex_unlock(&raw mut (*ex).cq.mutex);
        }
        result
    }
}

unsafe extern "C" fn next_poll(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between start and end of a poll, by the verbs contract.
    unsafe { take(ex) }
}

unsafe extern "C" fn end_poll(ex: *mut ibv_cq_ex) {
    // SAFETY: as above; `start_poll` locked.
    unsafe { libc::pthread_mutex_unlock(&raw mut (*ex).cq.mutex) };
}

macro_rules! readers {
    ($($name:ident $field:ident -> $ty:ty),* $(,)?) => {$(
        unsafe extern "C" fn $name(ex: *mut ibv_cq_ex) -> $ty {
            // SAFETY: between start and end of a poll, by the verbs contract.
            unsafe { (*ex.cast::<CqShell>()).current.$field.into() }
        }
    )*};
}

readers! {
    read_opcode opcode -> u32,
    read_vendor_err vendor_err -> u32,
    read_byte_len byte_len -> u32,
    read_imm_data immediate -> u32,
    read_qp_num qp_num -> u32,
    read_src_qp src_qp -> u32,
    read_wc_flags flags -> u32,
    read_slid slid -> u32,
    read_sl sl -> u8,
    read_dlid_path_bits dlid_path_bits -> u8,
}
