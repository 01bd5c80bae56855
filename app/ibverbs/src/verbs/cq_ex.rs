//! Extended completion queues: polled one completion at a time, field by field.

use core::ffi::c_int;

use omniverb_abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr,
};
use omniverb_device::{CqOptions, Overrun, Wc};
use omniverb_terms::Errno;

use super::clocks::on_the_wall;
use super::context::ContextShell;
use super::cq::{CqShell, create};
use crate::errno::null;

/// Fields that completions of this device have.
const FIELDS: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | STAMPS;
/// Those that tell when a completion came.
const STAMPS: u32 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the inline's arguments. `parent_domain` is beyond the struct of older headers and is
    // read only if the mask names it.
    unsafe {
        let (fields, mask) = ((*attr).wc_flags, (*attr).comp_mask);
        let has_flags = mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { (*attr).flags } else { 0 };
        let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        let in_domain = mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
        if mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
            || fields & !u64::from(FIELDS) != 0
            || flags & !known != 0
        {
            return null(Errno::EOPNOTSUPP);
        }
        if (*attr).comp_vector != 0 {
            return null(Errno::EINVAL);
        }
        let domain = if in_domain { (*attr).parent_domain } else { core::ptr::null_mut() };
        if in_domain && domain.is_null() {
            return null(Errno::EINVAL);
        }
        let options = CqOptions {
            overrun: match flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN {
                0 => Overrun::Fails,
                _ => Overrun::LosesOldest,
            },
            is_stamped: fields & u64::from(STAMPS) != 0,
        };
        let made =
            create(context, (*attr).cqe, (*attr).cq_context, (*attr).channel, options, domain);
        if !made.is_null() {
            fill(&mut (*made).ex, options);
        }
        made.cast()
    }
}

fn fill(ex: &mut ibv_cq_ex, options: CqOptions) {
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
    if options.is_stamped {
        ex.start_poll = Some(start_poll_stamped);
        ex.next_poll = Some(next_poll_stamped);
        ex.read_completion_ts = Some(read_completion_ts);
        ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
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
        keep(ex, &wc[0]);
    }
    0
}

/// The same of a stamped queue.
///
/// # Safety
/// As [`take`].
unsafe fn take_stamped(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = ex.cast::<CqShell>();
        let Some((wc, stamp)) = (*shell).cq.poll_stamped() else { return Errno::ENOENT.raw() };
        (*shell).stamp = stamp;
        keep(ex, &wc);
    }
    0
}

/// A completion is the one at hand.
///
/// # Safety
/// As [`take`].
unsafe fn keep(ex: *mut ibv_cq_ex, wc: &Wc) {
    // SAFETY: the caller's promise.
    unsafe {
        (*ex.cast::<CqShell>()).current = *wc;
        (*ex).status = wc.status;
        (*ex).wr_id = wc.wr_id;
    }
}

unsafe extern "C" fn start_poll(ex: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe { begin(ex, attr, take) }
}

unsafe extern "C" fn start_poll_stamped(ex: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe { begin(ex, attr, take_stamped) }
}

/// Begins a poll. The lock is kept until its end: two threads may poll one queue in turn.
///
/// # Safety
/// `ex` is a live CQ of ours, `attr` null or valid.
#[inline(always)]
unsafe fn begin(
    ex: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
    take: unsafe fn(*mut ibv_cq_ex) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return Errno::EINVAL.raw();
        }
        libc::pthread_mutex_lock(&raw mut (*ex).cq.mutex);
        let cq = &(*ex.cast::<CqShell>()).cq;
        cq.begin_poll();
        let result = take(ex);
        if result != 0 {
            cq.end_poll();
            libc::pthread_mutex_unlock(&raw mut (*ex).cq.mutex);
        }
        result
    }
}

unsafe extern "C" fn next_poll(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between start and end of a poll, by the verbs contract.
    unsafe { take(ex) }
}

unsafe extern "C" fn next_poll_stamped(ex: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between start and end of a poll, by the verbs contract.
    unsafe { take_stamped(ex) }
}

unsafe extern "C" fn read_completion_ts(ex: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { (*ex.cast::<CqShell>()).stamp }
}

unsafe extern "C" fn read_completion_wallclock_ns(ex: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe {
        let now = ContextShell::of((*ex).cq.context).shared().host.now();
        on_the_wall((*ex.cast::<CqShell>()).stamp, now)
    }
}

unsafe extern "C" fn end_poll(ex: *mut ibv_cq_ex) {
    // SAFETY: as above; `start_poll` locked.
    unsafe {
        (*ex.cast::<CqShell>()).cq.end_poll();
        libc::pthread_mutex_unlock(&raw mut (*ex).cq.mutex);
    }
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
