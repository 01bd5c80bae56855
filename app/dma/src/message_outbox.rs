//! Messages to a node that wait for a place in the memory that the device sends from.
//!
//! In: messages, places that the device has done with. Out: messages to the device, in their order.

use std::collections::VecDeque;

use omniverb_dma_announce::Message;
use omniverb_terms::Errno;

use crate::limits::{LETTERS, WAITING_MAX};
use crate::node_queue_pair::Queues;

/// See the file's head.
pub(crate) struct MessageOutbox {
    waiting: VecDeque<Message>,
    /// Places that are free.
    places: Vec<usize>,
}

impl MessageOutbox {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::new(), places: (0..LETTERS).collect() }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// What a connection begins with: bounded by what there is of ours.
    pub(crate) fn begin(&mut self, all: impl Iterator<Item = Message>) {
        self.waiting.extend(all);
    }

    /// One more waits.
    ///
    /// # Errors
    /// `ETIMEDOUT`: so many do that the node does not listen.
    pub(crate) fn push(&mut self, message: Message) -> Result<(), Errno> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(Errno::ETIMEDOUT);
        }
        self.waiting.push_back(message);
        Ok(())
    }

    /// The device has sent what lay there.
    pub(crate) fn sent(&mut self, place: usize) {
        self.places.push(place);
    }

    /// Gives the device as many as there are places for.
    ///
    /// # Errors
    /// Why it does not take one: that waits still.
    pub(crate) fn send(&mut self, queues: &Queues) -> Result<(), Errno> {
        while let (Some(message), Some(&place)) = (self.waiting.front(), self.places.last()) {
            queues.send(place, &message.encode())?;
            self.waiting.pop_front();
            self.places.pop();
        }
        Ok(())
    }
}
