//! Holds what a node's lock protects: its connection, and what is under way.

use std::sync::Arc;

use omniverb_abi::{ibv_send_wr_rdma, ibv_sge};
use omniverb_dma_announce::PeerBuffers;
use omniverb_terms::Errno;

use crate::cm_id::CmId;
use crate::errno::ESTALE;
use crate::limits::TRANSFERS_MAX;
use crate::local_buffer::LocalBuffer;
use crate::message_outbox::MessageOutbox;
use crate::node_queue_pair::{Queues, TransferRequest};
use crate::transfer::{TransferPlace, UnderWay};
use crate::transfer_slots::Slots;

/// A transfer that is to be started: checked, but for what the node says.
pub(crate) struct CheckedTransfer {
    pub(crate) place: TransferPlace,
    pub(crate) own: Arc<LocalBuffer>,
    pub(crate) ours: ibv_sge,
    /// Of the node's buffer.
    pub(crate) serial: u64,
    pub(crate) theirs: ibv_send_wr_rdma,
    pub(crate) reads: bool,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is being made.
    Connecting,
    /// Both sides are connected, and we have said which buffers we have.
    Open,
    /// It has ended, and why.
    Ended(Errno),
}

impl Phase {
    /// Whether it has ended.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// See the file's head.
pub(crate) struct Inner {
    pub(crate) id: Option<CmId>,
    pub(crate) queues: Option<Queues>,
    pub(crate) phase: Phase,
    pub(crate) known: PeerBuffers,
    pub(crate) outbox: MessageOutbox,
    pub(crate) slots: Slots<UnderWay>,
}

impl Inner {
    pub(crate) fn new() -> Self {
        Self {
            id: None,
            queues: None,
            phase: Phase::Connecting,
            known: PeerBuffers::default(),
            outbox: MessageOutbox::new(),
            slots: Slots::new(TRANSFERS_MAX),
        }
    }

    /// Whether both sides have said which buffers they have.
    pub(crate) fn is_greeted(&self) -> bool {
        self.phase == Phase::Open && self.known.has_all()
    }

    /// Gives a transfer a name.
    pub(crate) fn prepare(&mut self, wanted: &CheckedTransfer) -> Result<TransferRequest, Errno> {
        if self.slots.room() == 0 {
            return Err(Errno::EAGAIN);
        }
        if !self.known.begin(wanted.serial) {
            return Err(ESTALE);
        }
        let is_fenced = !wanted.reads && self.slots.any_reads();
        wanted.own.begin();
        let it = UnderWay {
            place: wanted.place,
            own: wanted.own.clone(),
            serial: wanted.serial,
            reads: wanted.reads,
            calls: wanted.place.calls(),
        };
        let name = self.slots.begin(it).ok_or(Errno::EAGAIN)? as u64;
        let (ours, theirs, reads) = (wanted.ours, wanted.theirs, wanted.reads);
        Ok(TransferRequest { name, ours, theirs, reads, is_fenced })
    }

    /// Sends messages that wait, as many as there are places for.
    pub(crate) fn send_waiting(&mut self) -> Result<(), Errno> {
        match &self.queues {
            Some(queues) => self.outbox.send(queues),
            None => Ok(()),
        }
    }
}
