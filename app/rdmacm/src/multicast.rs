//! Joins multicast groups with datagram queue pairs. The group of an IP address is the GID that it
//! is written as; no subnet administrator is asked.

use core::ffi::{c_int, c_void};

use libc::sockaddr;
use omniverb_abi::*;
use omniverb_terms::Errno;

use crate::errno::{EADDRNOTAVAIL, outcome, verb};
use crate::event_queue::EventSource;
use crate::id_state::{GroupRole, IdShell, JoinedGroup};
use crate::multicast_membership::{NO_LID, gid};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{c_sockaddr, event, ibverbs_imports, id_registry};

/// # Safety
/// `id` is live, `address` null or as long as its family says.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    part: GroupRole,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let address = c_sockaddr::from_c(address)?;
        // An identifier that joins has a device, by its address.
        if (*id).verbs.is_null() || (*id).qp_type != IBV_QPT_UD {
            return Err(Errno::EINVAL);
        }
        let shell = IdShell::of(id);
        let number = {
            let mut state = shell.state();
            state.joins += 1;
            let number = state.joins;
            let context = context.expose_provenance();
            state.groups.push(JoinedGroup { number, address, context, part });
            number
        };
        let status = if c_sockaddr::ip(&address).is_multicast() { 0 } else { -Errno::EINVAL.raw() };
        id_registry::push(shell.token, EventSource::Group { number, status });
        event::complete(id)
    }
}

/// Joins a group.
///
/// # Safety
/// `id` is live, `address` null or as long as its family says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    context: *mut c_void,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rdma_join_multicast", AttemptedStep::Join);
    // SAFETY: the caller's promise.
    outcome(CALL.explain(unsafe { join(id, address, GroupRole::Receives, context) }))
}

/// Joins a group, perhaps only to send to it.
///
/// # Safety
/// `id` is live, `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *const rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let attr = unsafe { &*attr };
    let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    outcome(if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        Err(Errno::EOPNOTSUPP)
    } else if attr.comp_mask != needed || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
        Err(Errno::EINVAL)
    } else {
        let part = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => GroupRole::SendsOnly,
            _ => GroupRole::Receives,
        };
        // SAFETY: the caller's promise.
        unsafe { join(id, attr.addr, part, context) }
    })
}

/// Leaves a group.
///
/// # Safety
/// `id` is live, `address` null or as long as its family says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe {
        c_sockaddr::from_c(address).and_then(|address| {
            let left = {
                let mut state = IdShell::of(id).state();
                let place = state.groups.iter().position(|group| group.address == address);
                place.map(|place| state.groups.remove(place)).ok_or(EADDRNOTAVAIL)?
            };
            if left.part == GroupRole::Attached && !(*id).qp.is_null() {
                verb(ibverbs_imports::ibv_detach_mcast((*id).qp, &gid(&left.address), NO_LID))?;
            }
            Ok(())
        })
    })
}
