//! Groups that an identifier is in.

use core::ffi::c_int;

use omniverb_abi::*;
use omniverb_session::cm::CmAddress;
use omniverb_terms::{Errno, Gid};

use crate::errno::verb;
use crate::id_state::{GroupRole, IdShell};
use crate::{device, ibverbs_imports};

/// What the kernel's manager says for RoCE v2.
const HOP_LIMIT: u8 = 64;
/// No queue pair is attached to a LID on RoCE.
pub(crate) const NO_LID: u16 = 0;

/// The group's GID.
pub(crate) fn gid(group: &CmAddress) -> ibv_gid {
    ibv_gid { raw: group.ip.bytes() }
}

/// A join has come to the program's notice: the queue pair is attached. What to tell it; nothing
/// of a group that it has left, perhaps while it was being attached.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn joined(
    id: *mut rdma_cm_id,
    number: u64,
    status: c_int,
) -> Option<(u32, c_int, rdma_ud_param)> {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = IdShell::of(id);
        let found = shell.state().groups.iter().find(|group| group.number == number).map(|group| {
            (group.address, core::ptr::with_exposed_provenance(group.context), group.part)
        });
        let (address, context, part) = found?;
        let mut ud: rdma_ud_param = core::mem::zeroed();
        ud.private_data = context;
        let mut left = false;
        let mut attach = || {
            if status != 0 {
                return Err(Errno(status.unsigned_abs()));
            }
            let sgid = Gid::new((*id).route.addr.ibaddr.sgid.raw);
            let sgid_index = device::gid_index((*id).verbs, sgid, 0)?;
            if !(*id).qp.is_null() && part != GroupRole::SendsOnly {
                verb(ibverbs_imports::ibv_attach_mcast((*id).qp, &gid(&address), NO_LID))?;
                let kept = keep(shell, number, &address);
                left = kept != AttachmentOwner::Own;
                if kept == AttachmentOwner::Nobodys {
                    verb(ibverbs_imports::ibv_detach_mcast((*id).qp, &gid(&address), NO_LID))?;
                }
            }
            Ok(sgid_index)
        };
        let attached = attach();
        if left {
            return None;
        }
        Some(match attached {
            Err(errno) => (RDMA_CM_EVENT_MULTICAST_ERROR, -errno.raw(), ud),
            Ok(sgid_index) => {
                let grh = ibv_global_route {
                    dgid: gid(&address),
                    sgid_index,
                    hop_limit: HOP_LIMIT,
                    ..ibv_global_route::default()
                };
                ud.ah_attr =
                    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
                ud.qp_num = 0x00ff_ffff;
                ud.qkey = RDMA_UDP_QKEY;
                (RDMA_CM_EVENT_MULTICAST_JOIN, 0, ud)
            }
        })
    }
}

/// Whose an attachment is.
#[derive(PartialEq, Eq)]
enum AttachmentOwner {
    /// This join has it, and detaches it when the group is left.
    Own,
    /// The group was left meanwhile, and joined anew.
    Others,
    /// The group was left meanwhile.
    Nobodys,
}

/// Notes that the queue pair is attached by this join.
fn keep(shell: &IdShell, number: u64, address: &CmAddress) -> AttachmentOwner {
    let mut state = shell.state();
    if let Some(group) = state.groups.iter_mut().find(|group| group.number == number) {
        group.part = GroupRole::Attached;
        return AttachmentOwner::Own;
    }
    match state
        .groups
        .iter()
        .any(|group| group.part == GroupRole::Attached && group.address == *address)
    {
        true => AttachmentOwner::Others,
        false => AttachmentOwner::Nobodys,
    }
}
