//! Defines the handle that a program has of a buffer, its own or another node's.

use std::sync::Arc;

use omniverb_abi::{ibv_pd, ibv_send_wr_rdma, ibv_sge};
use omniverb_dma_announce::{AnnouncedBuffer, READABLE, WRITABLE};
use omniverb_terms::Errno;

use crate::limits::TRANSFER_BYTES_MAX;
use crate::local_buffer::LocalBuffer;
use crate::node::Node;
use crate::node_state::CheckedTransfer;
use crate::transfer::{TransferPlace, omv_dma_transfer};
use crate::wakes_and_callbacks::Shared;

/// `struct omv_dma_buffer`.
pub enum BufferHandle {
    /// One of ours.
    Own(Arc<LocalBuffer>),
    /// One that a node has announced: its memory is there.
    Remote(Arc<Node>, AnnouncedBuffer),
}

impl BufferHandle {
    /// As it is announced.
    pub(crate) fn what(&self) -> &AnnouncedBuffer {
        match self {
            Self::Own(own) => &own.what,
            Self::Remote(_, what) => what,
        }
    }

    /// Where a part of it is; `EINVAL` if it has no such part.
    fn part(&self, offset: u64, length: u64) -> Result<u64, Errno> {
        let what = self.what();
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        if end > what.length {
            return Err(Errno::EINVAL);
        }
        what.address.checked_add(offset).ok_or(Errno::EINVAL)
    }
}

/// The target and the buffers of a transfer. Both buffers are of the program with that domain, and
/// what its nodes share.
///
/// # Safety
/// `transfer` is live until it is done, its buffers are.
pub(crate) unsafe fn wanted(
    pd: *mut ibv_pd,
    shared: &Arc<Shared>,
    transfer: *mut omv_dma_transfer,
) -> Result<(Arc<Node>, CheckedTransfer), Errno> {
    // SAFETY: the caller's promise.
    let (it, to, from, place) = unsafe {
        let it = &*transfer;
        let to = it.to.cast::<BufferHandle>().as_ref().ok_or(Errno::EINVAL)?;
        let from = it.from.cast::<BufferHandle>().as_ref().ok_or(Errno::EINVAL)?;
        (it, to, from, TransferPlace::new(transfer))
    };
    if it.length == 0 || it.length > TRANSFER_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    let length = u32::try_from(it.length).map_err(|_| Errno::EINVAL)?;
    let (to_part, from_part) =
        (to.part(it.to_offset, it.length)?, from.part(it.from_offset, it.length)?);
    let (own, ours, node, what, theirs, reads) = match (to, from) {
        (BufferHandle::Own(own), BufferHandle::Remote(node, what)) => {
            (own, to_part, node, what, from_part, true)
        }
        (BufferHandle::Remote(node, what), BufferHandle::Own(own)) => {
            (own, from_part, node, what, to_part, false)
        }
        _ => return Err(Errno::EINVAL),
    };
    if !own.memory.is_of(pd) || !node.is_of(shared) {
        return Err(Errno::EINVAL);
    }
    if what.rights & if reads { READABLE } else { WRITABLE } == 0 {
        return Err(Errno::EACCES);
    }
    let wanted = CheckedTransfer {
        place,
        own: own.clone(),
        ours: ibv_sge { addr: ours, length, lkey: own.memory.lkey() },
        serial: what.serial,
        theirs: ibv_send_wr_rdma { remote_addr: theirs, rkey: what.rkey.0 },
        reads,
    };
    Ok((node.clone(), wanted))
}
