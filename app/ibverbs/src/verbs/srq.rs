//! Shared receive queues.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use omniverb_abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, ibv_context, ibv_pd, ibv_recv_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use omniverb_device::{Srq, limits};
use omniverb_terms::Errno;

use super::context::ContextShell;
use super::memory::PdShell;
use super::post::entries;
use super::wait::until_acknowledged;
use crate::errno::{null, post_error};

const TYPE_BASIC: u32 = 0;
const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 2;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqShell {
    srq: ibv_srq,
    pub(crate) inner: Arc<Srq>,
    asyncs_returned: AtomicU32,
}

impl SrqShell {
    /// # Safety
    /// `srq` is a live SRQ of ours.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a SrqShell {
        // SAFETY: the caller's promise.
        unsafe { &*srq.cast::<SrqShell>() }
    }

    /// An asynchronous event was handed out.
    pub(super) fn async_returned(&self) {
        self.asyncs_returned.fetch_add(1, Ordering::AcqRel);
    }
}

/// `ibv_create_srq`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    if pd.is_null() || init.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let attr = (*init).attr;
        if attr.max_wr == 0 || attr.max_wr > limits::WR_MAX || attr.max_sge > limits::SGE_MAX {
            return null(Errno::EINVAL);
        }
        let context = (*pd).context;
        let shell = ContextShell::of(context);
        if !shell.counts.srqs.one_more() {
            return null(Errno::ENOMEM);
        }
        let sges = attr.max_sge.max(1);
        let Some(inner) = Srq::new(shell.shared(), PdShell::of(pd).number(), attr.max_wr, sges)
        else {
            shell.counts.srqs.one_less();
            return null(Errno::ENOMEM);
        };
        (*init).attr.max_sge = sges;
        PdShell::of(pd).begin_use();
        let mut srq: ibv_srq = core::mem::zeroed();
        srq.context = context;
        srq.srq_context = (*init).srq_context;
        srq.pd = pd;
        let made =
            Box::into_raw(Box::new(SrqShell { srq, inner, asyncs_returned: AtomicU32::new(0) }));
        SrqShell::of(made.cast()).inner.cookie.store(made as usize, Ordering::Release);
        made.cast()
    }
}

/// `ibv_create_srq_ex`: basic SRQs only.
pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the inline's arguments.
    unsafe {
        let mask = (*init).comp_mask;
        if mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) != 0
            || (mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && (*init).srq_type != TYPE_BASIC)
        {
            return null(Errno::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return null(Errno::EINVAL);
        }
        ov_ibv_create_srq((*init).pd, init.cast())
    }
}

/// `ibv_modify_srq`: the limit, and how many receives it may hold.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    if mask & !(SRQ_MAX_WR | SRQ_LIMIT) != 0 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's promise.
    let (inner, attr) = unsafe { (&SrqShell::of(srq).inner, *attr) };
    let sane = attr.max_wr > 0 && attr.max_wr <= limits::WR_MAX;
    if mask & SRQ_MAX_WR != 0 && !(sane && inner.resize(attr.max_wr)) {
        return Errno::EINVAL.raw();
    }
    let set = mask & SRQ_LIMIT == 0 || inner.set_limit(attr.srq_limit);
    if set { 0 } else { Errno::EINVAL.raw() }
}

/// `ibv_query_srq`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (max_wr, max_sge, srq_limit) = SrqShell::of(srq).inner.query();
        attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit });
    }
    0
}

/// `ibv_destroy_srq`; `EBUSY` while QPs use it.
///
/// # Safety
/// `srq` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = SrqShell::of(srq);
        if shell.inner.is_busy() {
            return Errno::EBUSY.raw();
        }
        shell.inner.cookie.store(0, Ordering::Release);
        let context = ContextShell::of((*srq).context);
        context.events.retain(|(_, object)| *object != srq as usize);
        let returned = shell.asyncs_returned.load(Ordering::Acquire);
        let (mutex, cond) = (&raw mut (*srq).mutex, &raw mut (*srq).cond);
        until_acknowledged(mutex, cond, &raw const (*srq).events_completed, returned);
        PdShell::of((*srq).pd).end_use();
        context.counts.srqs.one_less();
        drop(Box::from_raw(srq.cast::<SrqShell>()));
    }
    0
}

/// `ibv_post_srq_recv`: the slot that the inline calls.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        let inner = &SrqShell::of(srq).inner;
        while !wr.is_null() {
            let posted = match entries((*wr).sg_list, (*wr).num_sge) {
                Some(list) => inner.post((*wr).wr_id, list).map_err(post_error),
                None => Err(Errno::EINVAL),
            };
            if let Err(errno) = posted {
                bad.write(wr);
                return errno.raw();
            }
            wr = (*wr).next;
        }
    }
    0
}
