//! Completion queues.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use omniverb_abi::{
    IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr,
    ibv_pd, ibv_wc,
};
use omniverb_client::{Channel, Doorbell};
use omniverb_device::{CompletionEvents, Cq, CqOptions, Notify, Wc, limits::CQE_MAX};
use omniverb_ring::NoMemory;
use omniverb_terms::Errno;

use super::completion_channel::{ChannelShell, count_users};
use super::context::ContextShell;
use super::event_wait::{acknowledge, take_event, until_acknowledged};
use super::parent_domain_allocators::{Loans, Resource};
use super::protection_domain::PdShell;
use crate::errno::null;
use crate::refusal_log::refused;

/// A completion queue; every one is an extended one, so that `ibv_cq_ex_to_cq` can be a cast.
#[repr(C)]
pub(crate) struct CqShell {
    pub(super) ex: ibv_cq_ex,
    pub(crate) cq: Arc<Cq>,
    /// The completion that an extended poll is at.
    pub(super) current: Wc,
    /// When it came, by the device's clock; of a stamped queue.
    pub(super) stamp: u64,
    /// The domain that it was made in, if it was.
    domain: *mut ibv_pd,
    completions_returned: AtomicU32,
    asyncs_returned: AtomicU32,
}

impl CqShell {
    /// # Safety
    /// `cq` is a live CQ of ours.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a CqShell {
        // SAFETY: the caller's promise.
        unsafe { &*cq.cast::<CqShell>() }
    }

    /// An event about a completion was handed out.
    fn completion_returned(&self) {
        self.completions_returned.fetch_add(1, Ordering::AcqRel);
    }

    /// An asynchronous event was handed out.
    pub(super) fn async_returned(&self) {
        self.asyncs_returned.fetch_add(1, Ordering::AcqRel);
    }
}

/// Makes a completion queue. The caller checked `comp_vector`.
///
/// # Safety
/// `context` is open, `channel` and `domain` are null or live.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    options: CqOptions,
    domain: *mut ibv_pd,
) -> *mut CqShell {
    if cqe == 0 || cqe > CQE_MAX {
        let why = "ibv_create_cq: no entries, or more than";
        return null(refused!(Errno::EINVAL, "{why} {CQE_MAX}"));
    }
    // SAFETY: the caller's promise.
    let shell = unsafe { ContextShell::of(context) };
    if let Err(errno) = shell.counts.cqs.one_more("ibv_create_cq") {
        return null(errno);
    }
    let events = (!channel.is_null()).then(|| {
        // SAFETY: the caller's promise.
        let notifier = unsafe { &ChannelShell::of(channel).notifier };
        Arc::new(Channel::of(notifier)) as Arc<dyn CompletionEvents>
    });
    // SAFETY: the caller's promise; the queue is counted as made in its domain below.
    let loans = (!domain.is_null()).then(|| unsafe { PdShell::loans(domain, Resource::Cq) });
    let lending = Loans::lending(&loans.flatten());
    let Ok(cq) = Cq::in_memory(shell.shared(), cqe, events, options, lending) else {
        shell.counts.cqs.one_less();
        return null(Errno::ENOMEM);
    };
    // SAFETY: the caller's promise.
    unsafe {
        if !channel.is_null() {
            count_users(channel, 1);
        }
        if !domain.is_null() {
            PdShell::of(domain).begin_use();
        }
    }
    // SAFETY: pointers, optional functions, numbers, a mutex and a condition: zero is valid.
    let mut ex: ibv_cq_ex = unsafe { core::mem::zeroed() };
    ex.cq.context = context;
    ex.cq.channel = channel;
    ex.cq.cq_context = cq_context;
    ex.cq.cqe = cqe as c_int;
    let made = Box::into_raw(Box::new(CqShell {
        ex,
        cq,
        current: Wc::default(),
        stamp: 0,
        domain,
        completions_returned: AtomicU32::new(0),
        asyncs_returned: AtomicU32::new(0),
    }));
    // SAFETY: fresh.
    unsafe { CqShell::of(made.cast()).cq.cookie.store(made as usize, Ordering::Release) };
    made
}

/// `ibv_create_cq`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let Ok(cqe) = u32::try_from(cqe) else { return null(Errno::EINVAL) };
    if comp_vector != 0 {
        return null(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let (options, domain) = (CqOptions::default(), core::ptr::null_mut());
        create(context, cqe, cq_context, channel, options, domain).cast()
    }
}

/// `ibv_resize_cq`; `EINVAL` if more completions wait than would fit, `ENOMEM` if the allocators of
/// its parent domain have no memory of that size.
///
/// # Safety
/// `cq` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    match u32::try_from(cqe) {
        Ok(count) if (1..=CQE_MAX).contains(&count) => {
            // SAFETY: the caller's promise.
            unsafe {
                match CqShell::of(cq).cq.resize(count) {
                    Ok(true) => (*cq).cqe = cqe,
                    Ok(false) => return Errno::EINVAL.raw(),
                    Err(NoMemory) => return Errno::ENOMEM.raw(),
                }
            }
            0
        }
        _ => Errno::EINVAL.raw(),
    }
}

/// `ibv_destroy_cq`; `EBUSY` while QPs use it.
///
/// # Safety
/// `cq` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = CqShell::of(cq);
        if shell.cq.is_busy() {
            return Errno::EBUSY.raw();
        }
        shell.cq.cookie.store(0, Ordering::Release);
        let channel = (*cq).channel;
        if !channel.is_null() {
            ChannelShell::of(channel).notifier.retain(|address| *address != cq as usize);
        }
        let context = ContextShell::of((*cq).context);
        context.events.retain(|(_, object)| *object != cq as usize);
        let returned = shell.completions_returned.load(Ordering::Acquire);
        let (mutex, cond) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
        until_acknowledged(mutex, cond, &raw const (*cq).comp_events_completed, returned);
        let returned = shell.asyncs_returned.load(Ordering::Acquire);
        until_acknowledged(mutex, cond, &raw const (*cq).async_events_completed, returned);
        if !channel.is_null() {
            count_users(channel, -1);
        }
        // In a forked child a thread of the parent's may have the lock for ever.
        if context.client.is_ours() {
            shell.cq.give_up();
        }
        if !shell.domain.is_null() {
            PdShell::end_use(shell.domain);
        }
        context.counts.cqs.one_less();
        drop(Box::from_raw(cq.cast::<CqShell>()));
    }
    0
}

/// `ibv_modify_cq`: moderation is a wish, and here events come as soon as without it.
pub(super) unsafe extern "C" fn modify_cq(
    _cq: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: the inline's argument.
    let mask = unsafe { (*attr).attr_mask };
    if mask & !IBV_CQ_ATTR_MODERATE != 0 { Errno::EINVAL.raw() } else { 0 }
}

/// `ibv_get_cq_event`, without the waiting; see `cancellable_event_waits.c`.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omniverb_take_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    bell: *mut *const Doorbell,
) -> c_int {
    // SAFETY: the caller's promise; a CQ removes its entries from the queue before it goes away.
    unsafe {
        take_event(&ChannelShell::of(channel).notifier, bell, |address| {
            let found = address as *mut ibv_cq;
            CqShell::of(found).completion_returned();
            cq.write(found);
            cq_context.write((*found).cq_context);
        })
    }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mutex, cond) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
        acknowledge(mutex, cond, &raw mut (*cq).comp_events_completed, count);
    }
}

/// `ibv_poll_cq`: the slot that the inline calls.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(count) = usize::try_from(count) else { return -Errno::EINVAL.raw() };
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller has `count` entries; `Wc` is `ibv_wc`, checked below, and any bytes are
    // valid ones.
    unsafe {
        let out = core::slice::from_raw_parts_mut(wc.cast::<Wc>(), count);
        CqShell::of(cq).cq.poll(out) as c_int
    }
}

/// `ibv_req_notify_cq`: the slot that the inline calls.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let wish = if solicited_only != 0 { Notify::Solicited } else { Notify::Any };
    // SAFETY: the inline's argument.
    unsafe { CqShell::of(cq) }.cq.arm(wish);
    0
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Wc>() == size_of::<ibv_wc>());
    assert!(offset_of!(Wc, immediate) == offset_of!(ibv_wc, imm_data));
    assert!(offset_of!(Wc, flags) == offset_of!(ibv_wc, wc_flags));
    assert!(offset_of!(Wc, dlid_path_bits) == offset_of!(ibv_wc, dlid_path_bits));
};
