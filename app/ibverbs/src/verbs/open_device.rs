//! Opening and closing the device: the context's table of operations.

use core::ffi::c_int;
use std::sync::Arc;

use omniverb_abi::{ibv_context, ibv_device, verbs_context};
use omniverb_client::{Client, Notifier};
use omniverb_terms::Errno;
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd};

use super::context::ContextShell;
use super::contexts_of_one_cmd_fd::SharedCommandFile;
use super::device_list::the_device;
use super::{
    advise_mr, async_event, clocks, cq, cq_ex, device_memory, memory_window, null_mr, post,
    qp_create, query_device, srq, thread_and_parent_domains, xrc_domain,
};
use crate::errno::{minus_one, null};
use crate::refusal_log::{explained, forgiven, refused, request_failed, strict_is_wanted};

/// Opens the device.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if device.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { open(device, SharedCommandFile::new) }
}

/// A context of a family. Its command file is made last: what fails leaves a program's alone.
///
/// # Safety
/// `device` is the device.
unsafe fn open(
    device: *mut ibv_device,
    family: impl FnOnce(&Arc<Client>) -> Result<(Arc<SharedCommandFile>, OwnedFd), Errno>,
) -> *mut ibv_context {
    omniverb_client::on_async_event(async_event::deliver);
    omniverb_client::on_failure(request_failed, explained);
    if strict_is_wanted() {
        omniverb_client::be_strict(forgiven);
    }
    let client = match Client::get() {
        Ok(client) => client,
        Err(why) => {
            let why = why.to_string();
            let why = why.trim_start_matches("omniverb: ");
            return null(refused!(Errno::ENODEV, "ibv_open_device: {why}"));
        }
    };
    let Ok(events) = Notifier::new() else { return null(Errno::EMFILE) };
    let family = match family(&client) {
        Ok(family) => family,
        Err(errno) => return null(errno),
    };
    let mut shell = Box::new(ContextShell::new(client, events, family, device));
    fill(shell.verbs());
    shell.into_c()
}

/// A context of the family that a duplicate of a `cmd_fd` leads to, of this process or another. The
/// descriptor is the new context's, which closes it. `EINVAL`: it is no such descriptor;
/// `EOPNOTSUPP`: of another vNIC, or of a context that is closed.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    if cmd_fd < 0 {
        return null(Errno::EINVAL);
    }
    let family = |client: &Arc<Client>| {
        // SAFETY: the program names a descriptor of its own, used for this call only.
        let family = SharedCommandFile::of(client, unsafe { BorrowedFd::borrow_raw(cmd_fd) });
        let family = family.map_err(|errno| {
            let why = "no cmd_fd of a context that a process has open on this vNIC";
            refused!(errno, "ibv_import_device: {why}")
        })?;
        // SAFETY: the descriptor is the program's to give.
        Ok((family, unsafe { OwnedFd::from_raw_fd(cmd_fd) }))
    };
    // SAFETY: the device.
    unsafe { open(the_device(), family) }
}

fn fill(verbs: &mut verbs_context) {
    let ops = &mut verbs.context.ops;
    ops._compat_query_device = Some(query_device::ov_ibv_query_device);
    ops._compat_query_port = Some(query_device::query_port_compatible);
    ops.alloc_mw = Some(memory_window::alloc_mw);
    ops.bind_mw = Some(memory_window::bind_mw);
    ops.dealloc_mw = Some(memory_window::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    verbs.query_port = Some(query_device::query_port);
    verbs.query_device_ex = Some(query_device::query_device_ex);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp_create::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.advise_mr = Some(advise_mr::advise_mr);
    verbs.alloc_null_mr = Some(null_mr::alloc_null_mr);
    verbs.query_rt_values = Some(clocks::query_rt_values);
    verbs.alloc_td = Some(thread_and_parent_domains::alloc_td);
    verbs.dealloc_td = Some(thread_and_parent_domains::dealloc_td);
    verbs.alloc_parent_domain = Some(thread_and_parent_domains::alloc_parent_domain);
    verbs.alloc_dm = Some(device_memory::alloc_dm);
    verbs.free_dm = Some(device_memory::free_dm);
    verbs.reg_dm_mr = Some(device_memory::reg_dm_mr);
    verbs.open_xrcd = Some(xrc_domain::open_xrcd);
    verbs.close_xrcd = Some(xrc_domain::close_xrcd);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.open_qp = Some(qp_create::open_qp);
}

/// Closes the device. Objects made from it must be gone.
///
/// # Safety
/// `context` is open and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return minus_one(Errno::EINVAL);
    }
    // SAFETY: came from `ov_ibv_open_device`, by the caller's promise for the last time.
    drop(unsafe { ContextShell::from_c(context) });
    0
}
