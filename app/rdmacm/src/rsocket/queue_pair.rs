//! A queue pair with one completion queue and a completion channel, as each socket has them: made,
//! posted to, polled, armed.

use core::ffi::c_int;
use core::ptr::null_mut;

use omniverb_abi::*;
use omniverb_terms::Errno;

use super::wire_format::RemoteBuffer;
use crate::errno::{made, verb};
use crate::ibverbs_imports;
use crate::qp_creation::{create_plain_qp, ov_rdma_destroy_qp};

/// Where the payload of a WRITE is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Anywhere: it is copied when the request is posted.
    Inline,
    /// In registered memory, until it completes.
    Registered,
}

/// The queues of a socket. The identifier is not theirs.
pub(crate) struct Queues {
    id: *mut rdma_cm_id,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    /// Bytes that go within a request.
    pub(crate) inline: u32,
}

// SAFETY: libibverbs's objects are for any thread.
unsafe impl Send for Queues {}

/// What is asked for.
pub(crate) struct QpDemands {
    pub(crate) service: u32,
    pub(crate) send: u16,
    pub(crate) receive: u16,
    pub(crate) inline: u32,
}

impl Queues {
    /// For an identifier.
    ///
    /// # Safety
    /// `id` is live, has a device and no queue pair, and outlives this.
    pub(crate) unsafe fn new(id: *mut rdma_cm_id, wanted: &QpDemands) -> Result<Queues, Errno> {
        let mut queues = Queues { id, channel: null_mut(), cq: null_mut(), inline: wanted.inline };
        let entries = c_int::from(wanted.send) + c_int::from(wanted.receive);
        // SAFETY: the caller's promise; numbers and pointers: zero is valid.
        unsafe {
            let verbs = (*id).verbs;
            queues.channel = made(ibverbs_imports::ibv_create_comp_channel(verbs))?;
            queues.cq = made(ibverbs_imports::ibv_create_cq(
                verbs,
                entries,
                null_mut(),
                queues.channel,
                0,
            ))?;
            let mut attr: ibv_qp_init_attr = core::mem::zeroed();
            (attr.send_cq, attr.recv_cq) = (queues.cq, queues.cq);
            attr.qp_type = wanted.service;
            attr.sq_sig_all = 1;
            attr.cap.max_send_wr = u32::from(wanted.send);
            attr.cap.max_recv_wr = u32::from(wanted.receive);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 2);
            attr.cap.max_inline_data = wanted.inline;
            create_plain_qp(id, null_mut(), &mut attr)?;
            queues.inline = attr.cap.max_inline_data;
        }
        Ok(queues)
    }

    fn qp(&self) -> *mut ibv_qp {
        // SAFETY: live for as long as this.
        unsafe { (*self.id).qp }
    }

    /// Posts a request.
    ///
    /// # Safety
    /// The list of `request` is valid, and so are inline data.
    pub(crate) unsafe fn send(&self, request: &mut ibv_send_wr) -> Result<(), Errno> {
        let (qp, mut bad) = (self.qp(), null_mut());
        // SAFETY: live; every context has the verb.
        let post = unsafe { (*(*qp).context).ops.post_send }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the caller's promise.
        verb(unsafe { post(qp, request, &mut bad) })
    }

    /// Posts a WRITE of what `list` names; with an immediate, if there is one.
    ///
    /// # Safety
    /// As [`Self::send`]: `list` names memory that is not registered only if the data are inline.
    pub(crate) unsafe fn write(
        &self,
        number: u64,
        list: &mut [ibv_sge],
        payload: Payload,
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<(), Errno> {
        // SAFETY: numbers, pointers and unions of them: zero is valid.
        let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
        request.wr_id = number;
        request.sg_list = list.as_mut_ptr();
        request.num_sge = list.len() as c_int;
        request.send_flags = if payload == Payload::Inline { IBV_SEND_INLINE } else { 0 };
        request.opcode = IBV_WR_RDMA_WRITE;
        if let Some(immediate) = immediate {
            request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            request.imm_data = immediate.to_be();
        }
        request.wr.rdma = ibv_send_wr_rdma { remote_addr: to.address, rkey: to.key };
        // SAFETY: the caller's promise.
        unsafe { self.send(&mut request) }
    }

    /// Posts a receive into what `list` names.
    pub(crate) fn receive(&self, number: u64, list: &mut [ibv_sge]) -> Result<(), Errno> {
        let (sg_list, num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        let mut request = ibv_recv_wr { wr_id: number, next: null_mut(), sg_list, num_sge };
        let (qp, mut bad) = (self.qp(), null_mut());
        // SAFETY: live; every context has the verb; a valid list.
        unsafe {
            let post = (*(*qp).context).ops.post_recv.ok_or(Errno::EOPNOTSUPP)?;
            verb(post(qp, &mut request, &mut bad))
        }
    }

    /// Takes the oldest completion, if there is one.
    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        let mut completion = ibv_wc::default();
        // SAFETY: live; room for one.
        let count = unsafe {
            (*(*self.cq).context).ops.poll_cq.map_or(0, |poll| poll(self.cq, 1, &mut completion))
        };
        (count > 0).then_some(completion)
    }

    /// Has the next completion be told by the channel.
    pub(crate) fn arm(&self) -> Result<(), Errno> {
        // SAFETY: live.
        unsafe {
            let arm = (*(*self.cq).context).ops.req_notify_cq.ok_or(Errno::EOPNOTSUPP)?;
            verb(arm(self.cq, 0))
        }
    }

    /// The channel's descriptor.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: live.
        unsafe { (*self.channel).fd }
    }

    /// Takes what is in the channel. Waits if there is nothing.
    pub(crate) fn take_event(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: live; places for pointers.
        unsafe {
            if ibverbs_imports::ibv_get_cq_event(self.channel, &mut cq, &mut context) == 0 {
                ibverbs_imports::ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe {
            ov_rdma_destroy_qp(self.id);
            if !self.cq.is_null() {
                ibverbs_imports::ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ibverbs_imports::ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}
