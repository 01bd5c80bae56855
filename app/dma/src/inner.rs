//! What a node's lock is around: its connection, and what is under way.

use std::collections::VecDeque;
use std::sync::Arc;

use omniverb_abi::{ibv_send_wr_rdma, ibv_sge};
use omniverb_announce::{Known, Message};
use omniverb_terms::Errno;

use crate::errno::ESTALE;
use crate::id::Id;
use crate::limits::{LETTERS, TRANSFERS_MAX};
use crate::own::Own;
use crate::queues::{Queues, Request};
use crate::transfer::{Place, UnderWay};

/// A transfer that is to be started: checked, but for what the node says.
pub(crate) struct Wanted {
    pub(crate) place: Place,
    pub(crate) own: Arc<Own>,
    pub(crate) ours: ibv_sge,
    /// Of the node's buffer.
    pub(crate) serial: u64,
    pub(crate) theirs: ibv_send_wr_rdma,
    pub(crate) reads: bool,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) id: Option<Id>,
    pub(crate) queues: Option<Queues>,
    /// Both sides are connected, and we have said which buffers we have.
    pub(crate) open: bool,
    /// It has ended, and why.
    pub(crate) ended: Option<Errno>,
    pub(crate) known: Known,
    /// Messages to be sent, in their order.
    pub(crate) waiting: VecDeque<Message>,
    /// Places of messages that are free.
    pub(crate) letters: Vec<usize>,
    /// What the device has, by name, and names that are free.
    pub(crate) under_way: Vec<Option<UnderWay>>,
    pub(crate) free: Vec<usize>,
    pub(crate) reads: usize,
    pub(crate) calling: usize,
}

impl Inner {
    pub(crate) fn new() -> Self {
        Self {
            letters: (0..LETTERS).collect(),
            under_way: (0..TRANSFERS_MAX).map(|_| None).collect(),
            free: (0..TRANSFERS_MAX).collect(),
            ..Self::default()
        }
    }

    /// Gives a transfer a name.
    pub(crate) fn prepare(&mut self, wanted: &Wanted) -> Result<Request, Errno> {
        let name = *self.free.last().ok_or(Errno::EAGAIN)?;
        if !self.known.begin(wanted.serial) {
            return Err(ESTALE);
        }
        self.free.pop();
        let waits = !wanted.reads && self.reads > 0;
        self.reads += usize::from(wanted.reads);
        wanted.own.begin();
        let it = UnderWay {
            place: wanted.place,
            own: wanted.own.clone(),
            serial: wanted.serial,
            reads: wanted.reads,
            calls: wanted.place.calls(),
        };
        if let Some(slot) = self.under_way.get_mut(name) {
            *slot = Some(it);
        }
        let (ours, theirs, reads) = (wanted.ours, wanted.theirs, wanted.reads);
        Ok(Request { name: name as u64, ours, theirs, reads, waits })
    }

    /// Sends messages that wait, as many as there are places for.
    pub(crate) fn send_waiting(&mut self) -> Result<(), Errno> {
        let Some(queues) = &self.queues else { return Ok(()) };
        while let (Some(message), Some(&place)) = (self.waiting.front(), self.letters.last()) {
            queues.send(place, &message.encode())?;
            self.waiting.pop_front();
            self.letters.pop();
        }
        Ok(())
    }
}
