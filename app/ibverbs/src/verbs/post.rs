//! Posting: C work requests to plain ones, field by field. Callers may have allocated only the
//! part of `ibv_send_wr` that their opcode needs, so nothing else is read.

use core::ffi::c_int;

use omniverb_abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};
use omniverb_device::limits::SGE_MAX;
use omniverb_device::{Data, PostFault, Qp, SendWork, Sge, opcode, send_flags};
use omniverb_ring::UserMemory;
use omniverb_terms::{Errno, Qkey, Qpn, Rkey, Service};

use super::address_handle::AhShell;
use super::memory_window::{bind_work, end_work, may_have};
use super::qp_handle::QpShell;
use crate::errno::{post_error, too_many};
use crate::refusal_log::not_posted;

/// A scatter/gather list as a slice; `None` if its length makes no sense.
///
/// # Safety
/// `list` has `count` entries, if that is positive.
#[inline(always)]
pub(super) unsafe fn entries<'a>(list: *mut ibv_sge, count: c_int) -> Option<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Some(&[]),
        Ok(count) if count <= SGE_MAX as usize && !list.is_null() => {
            // SAFETY: the caller's promise; `Sge` is `ibv_sge`, checked below.
            Some(unsafe { core::slice::from_raw_parts(list.cast::<Sge>(), count) })
        }
        _ => None,
    }
}

/// `ibv_post_send`: the slot that the inline calls.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        let shell = QpShell::of(qp);
        while !wr.is_null() {
            if let Err(errno) = post_one(&shell.qp, wr) {
                bad.write(wr);
                return errno.raw();
            }
            wr = (*wr).next;
        }
    }
    0
}

/// # Safety
/// `wr` is valid as far as its opcode needs.
#[inline(always)]
unsafe fn post_one(qp: &Qp, wr: *mut ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: the caller's promise; fields are read one by one through the pointer.
    unsafe {
        if matches!((*wr).opcode, opcode::BIND_MW | opcode::LOCAL_INV) {
            return post_local(qp, wr);
        }
        let list = entries((*wr).sg_list, (*wr).num_sge).ok_or_else(too_many)?;
        if (*wr).send_flags & send_flags::INLINE == 0 {
            return post_data(qp, wr, Data::Gather(list));
        }
        // Inline data may lie anywhere, and is copied before the post returns.
        if let [sge] = list {
            return post_data(qp, wr, Data::Inline(&[vouched(sge)]));
        }
        let mut parts = [UserMemory::EMPTY; SGE_MAX as usize];
        for (place, sge) in parts.iter_mut().zip(list) {
            *place = vouched(sge);
        }
        post_data(qp, wr, Data::Inline(&parts[..list.len()]))
    }
}

/// What concerns memory windows; it has no data.
///
/// # Safety
/// `wr` is valid as far as its opcode needs.
#[cold]
unsafe fn post_local(qp: &Qp, wr: *mut ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let (wr_id, flags) = ((*wr).wr_id, (*wr).send_flags);
        let work = if (*wr).opcode == opcode::BIND_MW {
            let bind = (*wr).tail.bind_mw;
            if bind.mw.is_null() || !may_have(bind.mw, bind.rkey) {
                return Err(Errno::EINVAL);
            }
            bind_work(wr_id, flags, bind.rkey, &bind.bind_info)
        } else {
            end_work(wr_id, flags, (*wr).imm_data)
        };
        qp.post_send(&work).map_err(post_error)
    }
}

/// # Safety
/// The application vouches for the bytes until the post returns (`IBV_SEND_INLINE`).
#[inline(always)]
unsafe fn vouched(sge: &Sge) -> UserMemory {
    // SAFETY: the caller's promise.
    unsafe { UserMemory::new(sge.address as usize, sge.length as usize) }
}

/// # Safety
/// `wr` is valid as far as its opcode needs.
#[inline(always)]
unsafe fn post_data(qp: &Qp, wr: *mut ibv_send_wr, data: Data<'_>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let code = (*wr).opcode;
        let plain = SendWork {
            wr_id: (*wr).wr_id,
            opcode: code,
            flags: (*wr).send_flags,
            immediate: (*wr).imm_data,
            address: 0,
            rkey: Rkey(0),
            compare_add: 0,
            swap: 0,
            // Some callers' structs end before it.
            srq: if qp.service == Service::XrcSend { (*wr).remote_srqn } else { 0 },
            to: None,
            data,
        };
        let work = match code {
            opcode::SEND | opcode::SEND_WITH_IMM if qp.service == Service::Ud => {
                let ud = (*wr).wr.ud;
                if ud.ah.is_null() {
                    return Err(not_posted(PostFault::Destination));
                }
                let ah = AhShell::of(ud.ah);
                SendWork {
                    to: Some(ah.leads_to(Qpn(ud.remote_qpn), Qkey(ud.remote_qkey))),
                    ..plain
                }
            }
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV => plain,
            opcode::RDMA_WRITE
            | opcode::RDMA_WRITE_WITH_IMM
            | opcode::RDMA_READ
            | opcode::ATOMIC_WRITE => {
                let rdma = (*wr).wr.rdma;
                SendWork { address: rdma.remote_addr, rkey: Rkey(rdma.rkey), ..plain }
            }
            opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => {
                let atomic = (*wr).wr.atomic;
                SendWork {
                    address: atomic.remote_addr,
                    rkey: Rkey(atomic.rkey),
                    compare_add: atomic.compare_add,
                    swap: atomic.swap,
                    ..plain
                }
            }
            // A FLUSH has no place here for its length and what it is to reach: `ibv_wr_flush` has.
            _ => return Err(not_posted(PostFault::Opcode)),
        };
        qp.post_send(&work).map_err(post_error)
    }
}

/// `ibv_post_recv`: the slot that the inline calls.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        let shell = QpShell::of(qp);
        while !wr.is_null() {
            let posted = match entries((*wr).sg_list, (*wr).num_sge) {
                Some(list) => shell.qp.post_recv((*wr).wr_id, list).map_err(post_error),
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

const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
