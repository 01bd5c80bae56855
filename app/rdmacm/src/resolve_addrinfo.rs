//! `rdma_resolve_addrinfo`, `rdma_query_addrinfo`: `rdma_getaddrinfo` whose end is an event.
//!
//! As with rdma-core, names are looked up within the call; what is asked of a subnet administrator
//! there, which would answer later, has no counterpart here.

use core::ffi::{c_char, c_int};

use omniverb_abi::{RAI_DNS, RAI_SA, RDMA_CM_EVENT_ADDRINFO_RESOLVED, rdma_addrinfo, rdma_cm_id};
use omniverb_terms::Errno;

use crate::addrinfo::{self, AddrinfoError};
use crate::errno::{last, outcome};
use crate::event_queue::EventSource;
use crate::id_state::{AddrinfoState, IdShell};
use crate::{event, id_registry};

/// The errno that says what a number of the C library's `getaddrinfo` does.
fn errno_of(number: c_int) -> Errno {
    match number {
        libc::EAI_SYSTEM => last(),
        libc::EAI_MEMORY => Errno::ENOMEM,
        libc::EAI_AGAIN => Errno::EAGAIN,
        libc::EAI_BADFLAGS | libc::EAI_FAMILY | libc::EAI_SOCKTYPE | libc::EAI_SERVICE => {
            Errno::EINVAL
        }
        _ => Errno::ENODATA,
    }
}

/// # Safety
/// As [`ov_rdma_resolve_addrinfo`], and `id` is not null.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (shell, flags) = unsafe { (IdShell::of(id), hints.as_ref().map_or(0, |h| h.ai_flags)) };
    {
        let mut state = shell.state();
        if !matches!(state.names, AddrinfoState::Nothing) {
            return Err(Errno::EBUSY);
        }
        state.names = AddrinfoState::UnderWay;
    }
    let fits = flags & RAI_SA == 0 || flags & RAI_DNS == 0 && node.is_null();
    let found = match fits {
        // SAFETY: the caller's promise.
        true => unsafe { addrinfo::found(node, service, hints) },
        false => Err(AddrinfoError::Errno(Errno::EOPNOTSUPP)),
    };
    let found = found.map_err(|failure| match failure {
        AddrinfoError::Errno(errno) => errno,
        AddrinfoError::Name(number) => errno_of(number),
    });
    match found {
        Ok(found) => shell.state().names = AddrinfoState::Found(found),
        Err(errno) => {
            shell.state().names = AddrinfoState::Nothing;
            return Err(errno);
        }
    }
    let what = EventSource::Own { event: RDMA_CM_EVENT_ADDRINFO_RESOLVED, status: 0 };
    id_registry::push(shell.token, what);
    // SAFETY: the caller's promise.
    unsafe { event::complete(id) }
}

/// Looks names up as `rdma_getaddrinfo` does; `ADDRINFO_RESOLVED` follows, and then
/// `rdma_query_addrinfo` has what was found.
///
/// # Safety
/// `id` is null or live, the names are terminated or null, `hints` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    if id.is_null() {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    outcome(unsafe { resolve(id, node, service, hints) })
}

/// What was looked up for an identifier, once: the program frees it.
///
/// # Safety
/// `id` is null or live, `out` null or valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    if id.is_null() || out.is_null() {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    let mut state = unsafe { IdShell::of(id) }.state();
    match core::mem::replace(&mut state.names, AddrinfoState::Nothing) {
        AddrinfoState::Found(found) => {
            // SAFETY: the caller's promise.
            unsafe { out.write(found.into_c()) };
            0
        }
        other => {
            state.names = other;
            outcome(Err(Errno::ENOENT))
        }
    }
}
