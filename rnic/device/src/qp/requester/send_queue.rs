//! The send queue: requests in the order of posting, and how far each has got.
//!
//! What stands at the front has *started*: it is on its way. The others wait for their turn, and
//! start in order. Of those that have started some are complete when an answer has come; answers
//! come in the order of asking. Only the oldest request is ever taken off.

use super::request_state::{CompletionCondition, SendEntry};
use std::collections::VecDeque;

/// The send queue of a QP.
#[derive(Default)]
pub(crate) struct SendQueue {
    entries: VecDeque<SendEntry>,
    /// Entries at the front that are on their way.
    started: usize,
    /// Of those, the ones that an answer completes (READs, atomics), oldest first, by their number.
    unanswered: VecDeque<u64>,
    /// Requests ever posted, those included that never came into the queue.
    posted: u64,
}

/// Where a request stands that was taken out for a moment.
#[must_use]
pub(super) struct EntryIndex(usize);

/// How far the queue has got; compares equal as long as nothing moves.
#[derive(PartialEq, Eq)]
pub(crate) struct QueueProgress(usize, usize, Option<u64>);

impl SendQueue {
    /// Counts a request that is posted; its number.
    #[inline(always)]
    pub(super) fn count(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Requests ever posted.
    #[inline(always)]
    pub(in crate::qp) fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether all requests are complete.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a request is on its way.
    #[inline(always)]
    pub(crate) fn has_started(&self) -> bool {
        self.started > 0
    }

    /// Whether a request is on its way, or a part of one.
    pub(crate) fn has_begun(&self) -> bool {
        self.started > 0 || self.entries.front().is_some_and(|entry| entry.order.has_begun)
    }

    /// Requests on their way that an answer completes.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> usize {
        self.unanswered.len()
    }

    /// How far it has got.
    pub(crate) fn mark(&self) -> QueueProgress {
        let done = self.entries.front().map(|entry| entry.order.done);
        QueueProgress(self.entries.len(), self.started, done)
    }

    /// The oldest request that is not complete.
    #[inline(always)]
    pub(super) fn oldest(&self) -> Option<&SendEntry> {
        self.entries.front()
    }

    /// The same, if it is on its way.
    #[inline(always)]
    pub(super) fn oldest_started(&self) -> Option<&SendEntry> {
        if self.started > 0 { self.entries.front() } else { None }
    }

    /// The oldest request that has not started.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<&SendEntry> {
        self.entries.get(self.started)
    }

    /// Whether a request goes elsewhere than the oldest one, behind which it waits.
    pub(super) fn holds_up_others(&self) -> bool {
        let to = |entry: &SendEntry| entry.order.to.map(|to| to.destination);
        let oldest = self.entries.front().and_then(to);
        self.entries.iter().any(|entry| to(entry) != oldest)
    }

    /// Adds a request, to wait for its turn.
    pub(super) fn push(&mut self, entry: SendEntry) {
        self.entries.push_back(entry);
    }

    /// Takes the oldest request that has not started out, to try it. It is to be [put
    /// back](Self::put_back).
    pub(super) fn take_next(&mut self) -> Option<(EntryIndex, SendEntry)> {
        let entry = std::mem::take(self.entries.get_mut(self.started)?);
        Some((EntryIndex(self.started), entry))
    }

    /// Takes the oldest request without an answer out, to give it what has come of that. It is to
    /// be [put back](Self::put_back).
    pub(super) fn take_asking(&mut self) -> Option<(EntryIndex, SendEntry)> {
        let oldest = self.entries.front()?.order.position;
        let at = usize::try_from(self.unanswered.front()?.checked_sub(oldest)?).ok()?;
        let entry = std::mem::take(self.entries.get_mut(at)?);
        Some((EntryIndex(at), entry))
    }

    /// Puts a request back to where it was taken from.
    pub(super) fn put_back(&mut self, EntryIndex(at): EntryIndex, entry: SendEntry) {
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
        }
    }

    /// The next request is on its way, and complete as `finish` says.
    pub(super) fn start_next(&mut self, finish: CompletionCondition) {
        let Some(entry) = self.entries.get_mut(self.started) else { return };
        entry.finish = finish;
        self.started += 1;
        if finish == CompletionCondition::Response {
            self.unanswered.push_back(entry.order.position);
        }
    }

    /// The oldest request without an answer has all of it.
    pub(super) fn answered(&mut self) {
        let Some(oldest) = self.entries.front().map(|entry| entry.order.position) else { return };
        let Some(position) = self.unanswered.pop_front() else { return };
        let at = position.wrapping_sub(oldest) as usize;
        if let Some(entry) = self.entries.get_mut(at) {
            entry.finish = CompletionCondition::Done;
        }
    }

    /// Nothing is waited for any more at the oldest request, which is on its way.
    pub(super) fn settle_oldest(&mut self) {
        if let Some(entry) = self.entries.front_mut() {
            entry.finish = CompletionCondition::Done;
        }
    }

    /// Takes the oldest request off, which is complete.
    #[inline(always)]
    pub(super) fn pop_started(&mut self) -> Option<SendEntry> {
        if self.started == 0 {
            return None;
        }
        self.started -= 1;
        self.entries.pop_front()
    }

    /// Takes all requests off, oldest first.
    pub(crate) fn take_all(&mut self) -> VecDeque<SendEntry> {
        self.started = 0;
        self.unanswered.clear();
        std::mem::take(&mut self.entries)
    }

    /// All requests are to be made from their beginnings.
    pub(crate) fn start_again(&mut self) {
        for entry in &mut self.entries {
            (entry.order.has_begun, entry.order.done) = (false, 0);
        }
        self.started = 0;
        self.unanswered.clear();
    }

    /// Forgets everything, also how many there were.
    pub(crate) fn reset(&mut self) {
        *self = SendQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::requester::request_state::RequestHeader;

    fn entry(position: u64) -> SendEntry {
        SendEntry {
            order: RequestHeader { position, ..RequestHeader::default() },
            ..SendEntry::default()
        }
    }

    fn queue(requests: u64) -> SendQueue {
        let mut queue = SendQueue::default();
        for _ in 0..requests {
            let position = queue.count();
            queue.push(entry(position));
        }
        queue
    }

    #[test]
    fn requests_start_and_end_in_order() {
        let mut queue = queue(3);
        assert!(!queue.has_begun() && queue.oldest_started().is_none());
        assert!(queue.pop_started().is_none(), "nothing has started");
        queue.start_next(CompletionCondition::Done);
        queue.start_next(CompletionCondition::Done);
        assert_eq!(queue.next().map(|entry| entry.order.position), Some(3));
        let ended = [queue.pop_started(), queue.pop_started(), queue.pop_started()];
        assert_eq!(ended.map(|entry| entry.map(|e| e.order.position)), [Some(1), Some(2), None]);
        assert_eq!((queue.is_empty(), queue.posted()), (false, 3));
    }

    #[test]
    fn answers_belong_to_the_oldest_that_asks() {
        let mut queue = queue(4);
        for finish in [
            CompletionCondition::Done,
            CompletionCondition::Response,
            CompletionCondition::Done,
            CompletionCondition::Response,
        ] {
            queue.start_next(finish);
        }
        assert_eq!(queue.outstanding(), 2);
        let (place, asking) = queue.take_asking().unwrap();
        assert_eq!(asking.order.position, 2);
        queue.put_back(place, asking);
        queue.answered();
        let (place, asking) = queue.take_asking().unwrap();
        assert_eq!(asking.order.position, 4, "also while older ones are there still");
        queue.put_back(place, asking);
        assert_eq!(queue.oldest().map(|entry| entry.order.position), Some(1));
        queue.answered();
        assert!(queue.take_asking().is_none());
        assert_eq!(queue.take_all().len(), 4);
    }

    #[test]
    fn a_restart_forgets_all_questions() {
        let mut queue = queue(2);
        queue.start_next(CompletionCondition::Response);
        let before = queue.mark();
        queue.start_again();
        assert!(queue.mark() != before && queue.outstanding() == 0 && !queue.has_started());
        queue.reset();
        assert_eq!((queue.is_empty(), queue.posted()), (true, 0));
    }
}
