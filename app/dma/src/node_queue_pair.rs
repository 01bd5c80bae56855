//! A connection's queue pair and completion queues, and the memory that messages lie in.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use omniverb_abi::{
    IBV_QPT_RC, IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_SEND, ibv_context_ops, ibv_cq, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_send_wr_rdma, ibv_send_wr_target, ibv_sge, ibv_wc, rdma_cm_id,
};
use omniverb_dma_announce::MESSAGE_BYTES;
use omniverb_terms::Errno;

use crate::device::Device;
use crate::errno::{call, made, verb};
use crate::limits::{LETTERS, LIST_MAX, RECEIVES, TRANSFERS_MAX};
use crate::rdma_imports;
use crate::registered_memory::Memory;

/// In a request's name: it is a message, not a transfer.
pub(crate) const LETTER: u64 = 1 << 32;

/// Room for a message; messages do not share cache lines.
const PLACE: usize = 64;
const _: () = assert!(MESSAGE_BYTES <= PLACE);

/// What is posted for a transfer.
#[derive(Clone, Copy)]
pub(crate) struct TransferRequest {
    /// Comes back with the completion.
    pub(crate) name: u64,
    pub(crate) ours: ibv_sge,
    pub(crate) theirs: ibv_send_wr_rdma,
    pub(crate) reads: bool,
    /// It begins when the READs that were posted earlier are complete.
    pub(crate) is_fenced: bool,
}

/// See the file's head. All goes with it, but for the identifier.
pub(crate) struct Queues {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    send_cq: Cq,
    receive_cq: Cq,
    memory: Memory,
}

// SAFETY: verbs are for any thread.
unsafe impl Send for Queues {}

/// A completion queue that goes when this does. Its news come by the device's channel.
struct Cq(*mut ibv_cq);

impl Cq {
    fn new(device: &Device, entries: usize, node: u32) -> Result<Self, Errno> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let name = node as usize as *mut c_void;
        // SAFETY: open, and a channel of it.
        made(unsafe {
            rdma_imports::ibv_create_cq(device.context, entries, name, device.channel, 0)
        })
        .map(Cq)
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: live, and so is its device.
        unsafe { &(*(*self.0).context).ops }
    }

    fn poll(&self, into: &mut [ibv_wc]) -> usize {
        let Some(poll) = self.ops().poll_cq else { return 0 };
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: live; room for so many.
        let count = unsafe { poll(self.0, room, into.as_mut_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    fn notify(&self) {
        if let Some(notify) = self.ops().req_notify_cq {
            // SAFETY: live.
            unsafe { notify(self.0, 0) };
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: live; its queue pair is gone. Waits until the library's thread has acknowledged
        // what it was told of it, which that does at once.
        unsafe { rdma_imports::ibv_destroy_cq(self.0) };
    }
}

impl Queues {
    /// Makes them for an identifier that has a device, and posts all receives.
    ///
    /// # Safety
    /// `id` is live, and lives longer.
    pub(crate) unsafe fn new(
        device: &Device,
        id: *mut rdma_cm_id,
        node: u32,
    ) -> Result<Self, Errno> {
        let memory = Memory::new(device.pd, (LETTERS + RECEIVES) * PLACE, 0)?;
        let send_cq = Cq::new(device, TRANSFERS_MAX + LETTERS, node)?;
        let receive_cq = Cq::new(device, RECEIVES, node)?;
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.0,
            recv_cq: receive_cq.0,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: (TRANSFERS_MAX + LETTERS) as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the caller's promise.
        let qp = unsafe {
            call(rdma_imports::rdma_create_qp(id, device.pd, &mut attr))?;
            (*id).qp
        };
        let queues = Self { id, qp, send_cq, receive_cq, memory };
        (0..RECEIVES).try_for_each(|place| queues.post_receive(place))?;
        queues.receive_cq.notify();
        Ok(queues)
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: live, and so is its device.
        unsafe { &(*(*self.qp).context).ops }
    }

    /// The place of a message: those that leave, then those that come.
    fn place(&self, number: usize) -> ibv_sge {
        let addr = self.memory.address() + (number * PLACE) as u64;
        ibv_sge { addr, length: PLACE as u32, lkey: self.memory.lkey() }
    }

    /// Has the next message that comes put into a place.
    pub(crate) fn post_receive(&self, place: usize) -> Result<(), Errno> {
        let mut ours = self.place(LETTERS + place);
        let mut request =
            ibv_recv_wr { wr_id: place as u64, next: null_mut(), sg_list: &mut ours, num_sge: 1 };
        let (post, mut bad) = (self.ops().post_recv.ok_or(Errno::EOPNOTSUPP)?, null_mut());
        // SAFETY: a queue pair of ours; the places are in memory that outlives it.
        verb(unsafe { post(self.qp, &mut request, &mut bad) })
    }

    /// What has come into a place: a copy, of as many bytes as there were.
    pub(crate) fn received(&self, place: usize, bytes: u32) -> Vec<u8> {
        let bytes = (bytes as usize).min(PLACE);
        let from = self.place(LETTERS + place.min(RECEIVES - 1)).addr as *const u8;
        // SAFETY: within the memory; the device is done with that place.
        unsafe { core::slice::from_raw_parts(from, bytes) }.to_vec()
    }

    /// Sends a message from a place that is free.
    pub(crate) fn send(&self, place: usize, message: &[u8; MESSAGE_BYTES]) -> Result<(), Errno> {
        let mut ours = self.place(place.min(LETTERS - 1));
        ours.length = MESSAGE_BYTES as u32;
        // SAFETY: within the memory; nothing is under way from that place.
        unsafe { (ours.addr as *mut [u8; MESSAGE_BYTES]).write(*message) };
        let mut request = empty();
        request.wr_id = LETTER | place as u64;
        request.sg_list = &mut ours;
        request.opcode = IBV_WR_SEND;
        self.give(&mut request).map_err(|(errno, _)| errno)
    }

    /// Posts transfers, at most [`LIST_MAX`]; how many of them, and why not the next.
    pub(crate) fn post(&self, requests: &[TransferRequest]) -> (usize, Result<(), Errno>) {
        let mut ours = [ibv_sge::default(); LIST_MAX];
        let mut list = [const { empty() }; LIST_MAX];
        let count = requests.len().min(LIST_MAX);
        // Each names the next, the last none.
        for at in (0..count).rev() {
            let request = &requests[at];
            ours[at] = request.ours;
            let next = if at + 1 < count { &raw mut list[at + 1] } else { null_mut() };
            let it = &mut list[at];
            it.wr_id = request.name;
            it.next = next;
            it.sg_list = &raw mut ours[at];
            it.opcode = if request.reads { IBV_WR_RDMA_READ } else { IBV_WR_RDMA_WRITE };
            it.send_flags |= if request.is_fenced { IBV_SEND_FENCE } else { 0 };
            it.wr = ibv_send_wr_target { rdma: request.theirs };
        }
        let Some(first) = list[..count].first_mut() else { return (0, Ok(())) };
        match self.give(first) {
            Ok(()) => (count, Ok(())),
            Err((errno, name)) => {
                let posted = requests.iter().position(|request| request.name == name);
                (posted.unwrap_or(0), Err(errno))
            }
        }
    }

    /// Gives a list to the device; if it takes less, why, and the name of the first that it did
    /// not take.
    fn give(&self, first: *mut ibv_send_wr) -> Result<(), (Errno, u64)> {
        let Some(post) = self.ops().post_send else { return Err((Errno::EOPNOTSUPP, 0)) };
        let mut bad = null_mut();
        // SAFETY: a queue pair of ours, and a list whose parts are live for the call; memory that
        // is named stays until it has completed.
        unsafe {
            verb(post(self.qp, first, &mut bad)).map_err(|errno| {
                let name = if bad.is_null() { (*first).wr_id } else { (*bad).wr_id };
                (errno, name)
            })
        }
    }

    /// What has been sent, or transferred.
    pub(crate) fn poll_sends(&self, into: &mut [ibv_wc]) -> usize {
        self.send_cq.poll(into)
    }

    /// Messages that have come: at most as many as there is room for; how many.
    pub(crate) fn poll_receives(&self, into: &mut [ibv_wc]) -> usize {
        self.receive_cq.poll(into)
    }

    /// The next completion of a send is told in the channel.
    pub(crate) fn notify_sends(&self) {
        self.send_cq.notify();
    }

    /// The next message is told in the channel.
    pub(crate) fn notify_receives(&self) {
        self.receive_cq.notify();
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`. The rest goes after this, and nothing uses it any more.
        unsafe { rdma_imports::rdma_destroy_qp(self.id) };
    }
}

/// A request that is signalled and has one piece.
const fn empty() -> ibv_send_wr {
    // SAFETY: pointers and numbers: zero is valid for all.
    let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
    request.num_sge = 1;
    request.send_flags = IBV_SEND_SIGNALED;
    request
}

/// What a failed completion means for the program.
pub(crate) fn reason(status: u32) -> Errno {
    match status {
        IBV_WC_REM_ACCESS_ERR => Errno::EACCES,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => Errno::ETIMEDOUT,
        IBV_WC_WR_FLUSH_ERR => Errno::ECONNRESET,
        _ => Errno::EIO,
    }
}
