//! Shared receive queues.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use omniverb_abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use omniverb_device::{ResizeError, Srq, SrqSpec, limits};
use omniverb_terms::Errno;

use super::context::ContextShell;
use super::cq::CqShell;
use super::event_wait::until_acknowledged;
use super::parent_domain_allocators::{Loans, Resource};
use super::post::entries;
use super::protection_domain::PdShell;
use super::xrc_domain::XrcdShell;
use crate::errno::{null, post_error, too_many};
use crate::refusal_log::refused;

const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 2;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqShell {
    srq: ibv_srq,
    pub(crate) inner: Arc<Srq>,
    /// XRC: its domain, or null.
    xrcd: *mut ibv_xrcd,
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
    unsafe { create(pd, init, None) }
}

/// # Safety
/// `pd` is live, `init` valid; so are the domain and the CQ of one for XRC.
unsafe fn create(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
    extended: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> *mut ibv_srq {
    // SAFETY: the caller's promise.
    unsafe {
        let attr = (*init).attr;
        if attr.max_wr == 0 || attr.max_wr > limits::WR_MAX || attr.max_sge > limits::SGE_MAX {
            let ibv_srq_attr { max_wr, max_sge, .. } = attr;
            let why =
                "ibv_create_srq: no receives, or more, or more entries of each, than there are";
            return null(refused!(
                Errno::EINVAL,
                "{why} (max_wr {max_wr}, max_sge {max_sge}, of {} and {})",
                limits::WR_MAX,
                limits::SGE_MAX
            ));
        }
        let context = (*pd).context;
        let shell = ContextShell::of(context);
        if let Err(errno) = shell.counts.srqs.one_more("ibv_create_srq") {
            return null(errno);
        }
        let sges = attr.max_sge.max(1);
        let loans = PdShell::loans(pd, Resource::Srq);
        let place = extended.and_then(|(xrcd, cq)| {
            let domain = XrcdShell::of(xrcd)?.area.domain.clone();
            Some((CqShell::of(cq).cq.clone(), domain))
        });
        let spec = SrqSpec {
            pd: PdShell::of(pd).number(),
            capacity: attr.max_wr,
            sge_max: sges,
            extended: place,
            lending: Loans::lending(&loans),
        };
        let Some(inner) = Srq::of(shell.shared(), spec) else {
            shell.counts.srqs.one_less();
            return null(match Loans::have_refused(&loans) {
                true => Errno::ENOMEM,
                false => {
                    refused!(Errno::ENOMEM, "ibv_create_srq: all queues of the process are in use")
                }
            });
        };
        (*init).attr.max_sge = sges;
        PdShell::of(pd).begin_use();
        let mut srq: ibv_srq = core::mem::zeroed();
        srq.context = context;
        srq.srq_context = (*init).srq_context;
        srq.pd = pd;
        let xrcd = extended.map_or(core::ptr::null_mut(), |(xrcd, _)| xrcd);
        if let Some(xrcd) = XrcdShell::of(xrcd) {
            xrcd.users.one_more();
            shell.client.expect_hand_overs(&xrcd.area.domain);
        }
        let asyncs_returned = AtomicU32::new(0);
        let made = Box::into_raw(Box::new(SrqShell { srq, inner, xrcd, asyncs_returned }));
        SrqShell::of(made.cast()).inner.cookie.store(made as usize, Ordering::Release);
        made.cast()
    }
}

/// `ibv_create_srq_ex`: basic ones, and those for XRC.
pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let known = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
    let extended = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    // SAFETY: the inline's arguments; fields behind `comp_mask` only if that names them.
    unsafe {
        let mask = (*init).comp_mask;
        let named = mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
        let kind = if named { (*init).srq_type } else { IBV_SRQT_BASIC };
        // What is of XRC means nothing to a basic one: drivers do not look at it.
        if mask & !(known | extended) != 0 || !matches!(kind, IBV_SRQT_BASIC | IBV_SRQT_XRC) {
            return null(Errno::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*init).pd.is_null() {
            return null(Errno::EINVAL);
        }
        if kind == IBV_SRQT_BASIC {
            return create((*init).pd, init.cast(), None);
        }
        if mask & extended != extended || (*init).xrcd.is_null() || (*init).cq.is_null() {
            return null(Errno::EINVAL);
        }
        create((*init).pd, init.cast(), Some(((*init).xrcd, (*init).cq)))
    }
}

/// `ibv_get_srq_num`: of SRQs for XRC; others have none, and get `EOPNOTSUPP`.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        match SrqShell::of(srq).inner.number() {
            Some(known) => number.write(known),
            None => return Errno::EOPNOTSUPP.raw(),
        }
    }
    0
}

/// `ibv_modify_srq`: the limit, and how many receives it may hold. As in the kernel, other bits of
/// the mask mean nothing. What is refused changes nothing.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (inner, attr) = unsafe { (&SrqShell::of(srq).inner, *attr) };
    let resizes = mask & SRQ_MAX_WR != 0;
    let (before, _, _) = inner.query();
    let capacity = if resizes { attr.max_wr } else { before };
    let is_limit = mask & SRQ_LIMIT == 0 || attr.srq_limit <= capacity;
    if resizes {
        let sane = attr.max_wr > 0 && attr.max_wr <= limits::WR_MAX && is_limit;
        match if sane { inner.resize(attr.max_wr) } else { Err(ResizeError::TooFew) } {
            Ok(()) => {}
            Err(ResizeError::TooFew) => return Errno::EINVAL.raw(),
            Err(ResizeError::NoMemory) => return Errno::ENOMEM.raw(),
        }
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
        shell.inner.retire();
        shell.inner.cookie.store(0, Ordering::Release);
        let context = ContextShell::of((*srq).context);
        context.events.retain(|(_, object)| *object != srq as usize);
        let returned = shell.asyncs_returned.load(Ordering::Acquire);
        let (mutex, cond) = (&raw mut (*srq).mutex, &raw mut (*srq).cond);
        until_acknowledged(mutex, cond, &raw const (*srq).events_completed, returned);
        // In a forked child a thread of the parent's may have the lock for ever.
        if context.client.is_ours() {
            shell.inner.give_up();
        }
        PdShell::end_use((*srq).pd);
        if let Some(xrcd) = XrcdShell::of(shell.xrcd) {
            xrcd.users.one_less();
        }
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
                None => Err(too_many()),
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
