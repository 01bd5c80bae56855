//! Queue pairs in multicast groups.

use core::ffi::c_int;

use omniverb_abi::{ibv_gid, ibv_qp};
use omniverb_terms::{Errno, Gid, Service};

use super::context::ContextShell;
use super::qp_handle::QpShell;
use crate::errno::outcome;
use crate::refusal_log::{of_daemon, refused};

/// The group that a GID names, if it names one and a queue pair may be in one.
///
/// # Safety
/// Both are live.
unsafe fn group(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: the caller's promise.
    let (gid, service) = unsafe { (Gid::new((*gid).raw), QpShell::of(qp).qp.service) };
    match gid.is_multicast() && service == Service::Ud {
        true => Ok(gid),
        false => {
            let why = "no multicast GID, or a queue pair that is not UD";
            Err(refused!(Errno::EINVAL, "ibv_attach_mcast: {why}"))
        }
    }
}

/// Attaches a UD queue pair to a group. The LID means nothing on Ethernet.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let client = &ContextShell::of((*qp).context).client;
        let done = group(qp, gid).and_then(|group| {
            let attached = client.attach_group(&QpShell::of(qp).qp, group);
            attached.map_err(|errno| {
                let why = match errno {
                    Errno::EADDRNOTAVAIL => "no address of the group's kind leads to others",
                    Errno::EHOSTUNREACH => "the group cannot be joined",
                    errno => of_daemon(errno),
                };
                refused!(errno, "ibv_attach_mcast: {why}")
            })
        });
        outcome(done)
    }
}

/// Detaches it. Nothing that is sent to the group reaches it any more.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let client = &ContextShell::of((*qp).context).client;
        let gid = Gid::new((*gid).raw);
        outcome(client.detach_group(&QpShell::of(qp).qp, gid))
    }
}
