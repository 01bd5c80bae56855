//! Keeps receives that wait for a message, what they promise, and the completions of those that got
//! one.

use crate::cq::completion_entry::Entry;
use crate::receive_ring::{Receive, ReceiveQueue};
use crate::scatter_gather::Sge;
use omniverb_terms::Lkey;

/// Whether messages may take the way of most, on which nothing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainMessages {
    Allowed,
    Barred,
}

/// The receives of a QP. One with an SRQ has an empty queue, and completions all the same.
pub(crate) struct Receives {
    queue: ReceiveQueue,
    /// The least capacity among the receives ever posted.
    floor: u32,
    /// Messages may take the way of most.
    is_plain: bool,
    /// Receives that completed in the batch being served; they reach the CQ together.
    fresh: Vec<Entry>,
}

impl Receives {
    /// Those that wait are to be in this queue, which is empty.
    pub(crate) fn new(queue: ReceiveQueue, plain: PlainMessages) -> Receives {
        let is_plain = plain == PlainMessages::Allowed;
        Receives { queue, floor: u32::MAX, is_plain, fresh: Vec::new() }
    }

    /// Whether messages may take the way of most, on which nothing is counted.
    #[inline(always)]
    pub(crate) fn are_plain(&self) -> bool {
        self.is_plain
    }

    /// Each completion is counted from now on.
    pub(crate) fn be_counted(&mut self) {
        self.is_plain = false;
    }

    /// Whether a receive may have so many entries.
    #[inline(always)]
    pub(crate) fn takes(&self, entries: usize) -> bool {
        entries <= self.queue.sge_max() as usize
    }

    /// Posts a receive, as [`ReceiveQueue::post`].
    #[inline(always)]
    pub(crate) fn post(&mut self, wr_id: u64, list: &[Sge], released: u64) -> Option<u64> {
        self.queue.post(wr_id, list, released)
    }

    /// The receive that was posted last takes so many bytes; what all of them take.
    #[inline(always)]
    pub(crate) fn promise(&mut self, capacity: u64) -> u32 {
        self.floor = self.floor.min(capacity.min(u64::from(u32::MAX)) as u32);
        self.floor
    }

    /// Says no longer what receives take, if one that waits names this key. Says whether so.
    pub(crate) fn doubt(&mut self, lkey: Lkey) -> bool {
        let doubtful = self.floor > 0 && self.queue.names(lkey);
        if doubtful {
            self.floor = 0;
        }
        doubtful
    }

    /// Keys that receives which wait name.
    pub(crate) fn lkeys(&self) -> impl Iterator<Item = Lkey> {
        self.queue.lkeys()
    }

    /// How many wait for a message, and what all that were ever posted take.
    pub(crate) fn promised(&self) -> (u32, u32) {
        (self.queue.waiting() as u32, self.floor)
    }

    /// The oldest, which stays: its number and its entries.
    #[inline(always)]
    pub(super) fn oldest(&self) -> Option<(u64, &[Sge])> {
        self.queue.oldest()
    }

    /// Done with the oldest.
    #[inline(always)]
    pub(super) fn pass(&mut self) {
        self.queue.pass();
    }

    /// Takes the oldest.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Receive> {
        self.queue.take()
    }

    /// Puts the receive that was taken last back to the front.
    pub(crate) fn put_back(&mut self) {
        self.queue.put_back();
    }

    /// The application has the completions of `count` receives, which were in no CQ.
    #[inline(always)]
    pub(crate) fn release(&mut self, count: u64) {
        self.queue.release(count);
    }

    /// Forgets those that wait. Completions are the CQ's to forget.
    pub(crate) fn reset(&mut self) {
        self.queue.clear();
        self.floor = u32::MAX;
    }

    /// Forgets those that wait, and gives up the queue: there is none any more.
    pub(crate) fn end(&mut self) -> ReceiveQueue {
        self.reset();
        std::mem::replace(&mut self.queue, ReceiveQueue::none())
    }

    /// A receive got its message, or failed.
    #[inline(always)]
    pub(crate) fn complete(&mut self, entry: Entry) {
        self.fresh.push(entry);
    }

    /// How many have completed in this batch.
    #[inline(always)]
    pub(crate) fn completed(&self) -> usize {
        self.fresh.len()
    }

    /// Has those that completed put into their CQ, if there are any. False: that has lost
    /// completions.
    #[inline(always)]
    #[must_use]
    pub(crate) fn hand_over(&mut self, push: impl FnOnce(&mut Vec<Entry>) -> bool) -> bool {
        self.fresh.is_empty() || push(&mut self.fresh)
    }

    /// Takes those that completed, oldest first.
    #[inline(always)]
    pub(crate) fn take_completed(&mut self) -> impl Iterator<Item = Entry> {
        self.fresh.drain(..)
    }
}
