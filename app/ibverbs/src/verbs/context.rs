//! Opening the device: the context and its table of operations.

use core::ffi::c_int;
use core::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use omniverb_abi::{
    VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_context, ibv_device, verbs_context,
};
use omniverb_client::{Client, Notifier};
use omniverb_device::{AsyncEvent, Shared};
use omniverb_terms::Errno;
use rustix::fd::{IntoRawFd, OwnedFd};

use super::{cq, cq_ex, event, memory, post, qp, query, srq};
use crate::errno::null;

/// An opened device.
#[repr(C)]
pub(crate) struct ContextShell {
    verbs: verbs_context,
    /// The process's session and device.
    pub(crate) client: Arc<Client>,
    /// Asynchronous events not yet fetched: kind, and the object's address.
    pub(crate) events: Notifier<(AsyncEvent, usize)>,
    pub(crate) gids: Mutex<Vec<omniverb_client::GidEntry>>,
    pub(crate) counts: Counts,
    command_file: Option<OwnedFd>,
}

/// Objects of a context, against its limits.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) pds: AtomicU32,
    pub(crate) cqs: AtomicU32,
    pub(crate) srqs: AtomicU32,
    pub(crate) ahs: AtomicU32,
}

/// Counts one more object; false if there are `most` already.
pub(crate) fn one_more(count: &AtomicU32, most: u32) -> bool {
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < most).then_some(n + 1)).is_ok()
}

/// Counts one object less.
pub(crate) fn one_less(count: &AtomicU32) {
    count.fetch_sub(1, Ordering::AcqRel);
}

const CONTEXT_OFFSET: usize = offset_of!(ContextShell, verbs) + offset_of!(verbs_context, context);

impl ContextShell {
    /// # Safety
    /// `context` is an open context of ours.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a ContextShell {
        // SAFETY: ours, so it lies at this offset in a live shell.
        unsafe { &*context.byte_sub(CONTEXT_OFFSET).cast::<ContextShell>() }
    }

    /// The process's device.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.client.shared
    }
}

/// Opens the device.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if device.is_null() {
        return null(Errno::EINVAL);
    }
    omniverb_client::on_async_event(event::deliver);
    let Ok(client) = Client::get() else { return null(Errno::ENODEV) };
    let (Ok(events), Ok(command)) = (Notifier::new(), command_file()) else {
        return null(Errno::EMFILE);
    };
    let gids = Mutex::new(client.gids().unwrap_or_default());
    let shell = Box::new(ContextShell {
        // SAFETY: pointers, optional functions, numbers and a mutex: zero is valid for all.
        verbs: unsafe { core::mem::zeroed() },
        client,
        events,
        gids,
        counts: Counts::default(),
        command_file: Some(command),
    });
    let shell = Box::into_raw(shell);
    // SAFETY: fresh and ours alone.
    unsafe { fill(&mut *shell, device) };
    shell.wrapping_byte_add(CONTEXT_OFFSET).cast()
}

fn fill(shell: &mut ContextShell, device: *mut ibv_device) {
    let context = &mut shell.verbs.context;
    context.device = device;
    context.async_fd = shell.events.raw_fd();
    context.cmd_fd = shell.command_file.as_ref().map_or(-1, rustix::fd::AsRawFd::as_raw_fd);
    context.num_comp_vectors = 1;
    context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
    let ops = &mut context.ops;
    ops._compat_query_device = Some(query::ov_ibv_query_device);
    ops._compat_query_port = Some(query::query_port_compatible);
    ops.bind_mw = Some(memory::bind_mw);
    ops.dealloc_mw = Some(memory::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    let verbs = &mut shell.verbs;
    verbs.sz = size_of::<verbs_context>();
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.close_xrcd = Some(close_xrcd);
}

/// XRC is not offered, but inlines call this slot without looking.
unsafe extern "C" fn close_xrcd(_xrcd: *mut omniverb_abi::ibv_xrcd) -> c_int {
    Errno::EOPNOTSUPP.raw()
}

/// `cmd_fd` must be a descriptor that programs can `dup`; nothing travels on it.
fn command_file() -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Closes the device. Objects made from it must be gone.
///
/// # Safety
/// `context` is open and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return crate::errno::minus_one(Errno::EINVAL);
    }
    // SAFETY: came from `ov_ibv_open_device`, by the caller's promise for the last time.
    drop(unsafe { Box::from_raw(context.byte_sub(CONTEXT_OFFSET).cast::<ContextShell>()) });
    0
}

/// Fetches an asynchronous event, waiting for one if the descriptor is blocking.
///
/// # Safety
/// Both pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's promise.
    let shell = unsafe { ContextShell::of(context) };
    match shell.events.take() {
        Ok((kind, object)) => {
            // SAFETY: the caller's promise; the object is alive until its events are acknowledged.
            unsafe { event::describe(kind, object, event) };
            0
        }
        Err(errno) => crate::errno::minus_one(errno),
    }
}

impl Drop for ContextShell {
    fn drop(&mut self) {
        if let Some(file) = self.command_file.take()
            && !self.client.is_ours()
        {
            // A forked child: the number may be in use for something else by now.
            let _ = file.into_raw_fd();
        }
    }
}
