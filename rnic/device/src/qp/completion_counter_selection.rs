//! Decides which of a queue pair's operations go into which completion counter.
//!
//! Nothing is counted on the fast path, nor for plain messages: a queue pair with counters takes
//! neither. What peers do to our memory counts only if it comes by here, so a queue pair that
//! counts that grants no pages.

use super::Qp;
use super::attached_completion_counters::{
    AttachError, AttachedCounters, CountedPositions, SendCompletion,
};
use super::qp_attributes::State;
use crate::completion_counter::{CountedQueue, Counter};
use crate::verbs_constants::{Wc, counted, opcode, status};
use omniverb_link::Request;
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl AttachedCounters {
    /// Whether a counter is attached.
    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// A send request is complete, with this opcode, so many bytes, this position.
    #[inline]
    pub(super) fn sent(
        &mut self,
        qp: &Qp,
        (code, length, position): (u32, u64, u64),
        why: u32,
        completes: SendCompletion,
    ) {
        let Some(counters) = &mut self.0 else { return };
        counters.places.complete(position, completes, qp.sends_released());
        let kind = match code {
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV => counted::SEND,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => counted::RDMA_WRITE,
            opcode::RDMA_READ => counted::RDMA_READ,
            _ => 0,
        };
        counters.count(kind, (why == status::SUCCESS).then_some(length));
    }

    /// How many more sends fit, if what has no entry in the CQ is over when it has been counted:
    /// programs that read counters poll nothing. What has one takes room until it is polled, and so
    /// does what came after it.
    #[cold]
    pub(super) fn room(&self, qp: &Qp, posted: u64) -> u64 {
        let Some(counters) = &self.0 else { return 0 };
        let over = counters.places.over(qp.sends_released());
        u64::from(qp.caps.send_max).saturating_sub(posted - over)
    }

    /// The send queue begins anew.
    pub(super) fn forget(&mut self) {
        if let Some(counters) = &mut self.0 {
            counters.places = CountedPositions::default();
        }
    }

    /// A receive is complete.
    #[inline]
    pub(super) fn received(&self, wc: &Wc) {
        let Some(counters) = &self.0 else { return };
        let moved = (wc.status == status::SUCCESS).then_some(u64::from(wc.byte_len));
        counters.count(counted::RECV, moved);
    }

    /// A peer has written all it wanted to, or read.
    #[inline]
    pub(super) fn served(&self, kind: u32, length: u64) {
        let Some(counters) = &self.0 else { return };
        counters.count(kind, Some(length));
    }

    /// A peer's request is refused.
    #[cold]
    pub(super) fn refused(&self, request: &Request) {
        let Some(counters) = &self.0 else { return };
        let kind = match request {
            Request::WriteFirst { .. } | Request::WriteMore { .. } => counted::REMOTE_RDMA_WRITE,
            Request::Read { .. } => counted::REMOTE_RDMA_READ,
            _ => 0,
        };
        counters.count(kind, None);
    }

    /// Whether it counts what peers do to our memory.
    pub(super) fn counts_peers(&self) -> bool {
        self.0.as_ref().is_some_and(|counters| counters.counts_some(counted::REMOTE))
    }
}

impl Qp {
    /// Position of the last send whose entry in the CQ was polled.
    #[inline(always)]
    pub(super) fn sends_released(&self) -> u64 {
        self.shared.released(self.slot).sends.load(Ordering::Acquire)
    }

    /// Has completions of these operations, bits of [`counted`], counted by `counter` from now on,
    /// until the queue pair is destroyed.
    ///
    /// # Errors
    /// See [`AttachError`]; nothing was attached.
    pub fn attach_counter(
        &self,
        counter: &Arc<Counter>,
        operations: u32,
    ) -> Result<(), AttachError> {
        // What one receives in an XRC domain is complete for others: those that have the SRQs.
        if self.service == Service::XrcRecv || operations & !counted::ALL != 0 {
            return Err(AttachError::NotOffered);
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if operations == 0 || !matches!(inner.machine.state(), State::Reset | State::Init) {
            return Err(AttachError::Invalid);
        }
        if inner.counting.0.as_ref().is_some_and(|counters| counters.counts_some(operations)) {
            return Err(AttachError::Taken);
        }
        let counters = inner.counting.0.get_or_insert_default();
        counters.set(operations, counter);
        counter.attach(self.me.clone());
        inner.receives.be_counted();
        inner.path.choose(&inner.machine, self.service, &inner.counting);
        Ok(())
    }

    /// Nothing is counted any more.
    pub(super) fn detach_counters(&self) {
        let counters = self.inner.lock().counting.0.take();
        for counter in counters.iter().flat_map(|counters| counters.all()) {
            counter.detach(&self.me);
        }
    }
}

impl CountedQueue for Qp {
    fn look(&self) {
        if let Some(mut inner) = self.try_inner() {
            inner.pump_all(self);
            inner.insist(self);
        }
    }
}
