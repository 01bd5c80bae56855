//! The sending half of a QP: the send queue, its order, and its completions.
//!
//! A work request is tried at once, from the caller's own structures; only if it cannot finish
//! there does it become an entry of the queue. Entries at the front are *started* (on their way),
//! the rest wait their turn; completions come strictly in order.
//!
//! When does a request complete?
//! * SEND into a promised receive (credit, and long enough), but for one with invalidate: when it
//!   is in the ring.
//! * Mapped WRITE, READ, atomic: when the bytes are copied; FLUSH of what is mapped: at once.
//! * UC, UD: when it is in the ring.
//! * everything else: when the peer consumed it, or answered.
//!
//! RC: none of them once the peer's process has ended, and that could be seen (decision 0040).

mod code_path_selection;
mod deadlines;
mod fast_path;
mod local_operations;
mod mapped_operations;
mod operation_trace;
pub(super) mod payload_source;
mod received_responses;
mod request_state;
mod send_queue;
mod stalled_peer_detection;
mod strict_checks;
mod trace_psns;
mod transmit;
mod ud_send;
mod unresolved_datagrams;
mod wait_reason;
mod wake_peer;

pub(super) use code_path_selection::{AttributeRules, PathSelection};
use request_state::{
    ATOMIC_BYTES, CompletionCondition, KeptData, RequestHeader, SendEntry, TimeoutOutcome,
    TryOutcome, WaitReason, keep, local_access,
};
pub(super) use send_queue::SendQueue;
pub(super) use stalled_peer_detection::PeerPolling;
pub(super) use unresolved_datagrams::UnresolvedDatagrams;
pub(super) use wait_reason::WaitState;

use crate::cq::{Entry, SlotRelease, SolicitedEvent};
use crate::limits::{MESSAGE_MAX, SGE_MAX};
use crate::qp::attached_completion_counters::{AttachedCounters, SendCompletion};
use crate::qp::qp_attributes::State;
use crate::qp::state_machine::StateMachine;
use crate::qp::statistics::Meter;
use crate::qp::{Inner, Qp, Signaling};
use crate::receive_ring::SgeList;
use crate::scatter_gather::{Sge, resolve, total};
use crate::send_work_request::{Data, PostError, PostFault, SendWork, flushes};
use crate::verbs_constants::{Wc, opcode, send_flags, status, wc_opcode};
use omniverb_link::Broken;
use omniverb_ring::UserMemory;
use omniverb_terms::Service;

/// Which opcodes a transport has.
#[inline(always)]
fn opcode_is_valid(service: Service, code: u32) -> bool {
    use opcode::*;
    match service {
        Service::Rc => code <= SEND_WITH_INV || matches!(code, FLUSH | ATOMIC_WRITE),
        // No windows are bound to either end of XRC, so there are no keys to void.
        Service::XrcSend => code < LOCAL_INV,
        Service::XrcRecv => false,
        Service::Uc => code <= SEND_WITH_IMM || (LOCAL_INV..=SEND_WITH_INV).contains(&code),
        _ => matches!(code, SEND | SEND_WITH_IMM),
    }
}

/// Whether a FLUSH says what it is to do. It has no data.
#[cold]
fn is_flush(work: &SendWork<'_>) -> bool {
    flushes(work.swap).is_some() && matches!(work.data, Data::Gather([]))
}

impl StateMachine {
    /// Checks what can be checked before a request is queued; returns its length.
    #[inline(always)]
    pub(crate) fn check_post(&self, qp: &Qp, work: &SendWork<'_>) -> Result<u64, PostError> {
        if !matches!(self.state(), State::Rts | State::Sqd | State::Sqe | State::Err)
            || !opcode_is_valid(qp.service, work.opcode)
            || (qp.service == Service::Ud) != work.to.is_some()
            || (work.opcode == opcode::FLUSH && !is_flush(work))
        {
            return Err(PostError::Invalid(self.fault(qp, work)));
        }
        match work.data {
            Data::Gather(list) if list.len() <= qp.caps.send_sge_max as usize => Ok(total(list)),
            Data::Inline(parts) => {
                let length: usize = parts.iter().map(UserMemory::len).sum();
                // What an answer brings cannot go where inline data comes from.
                let sends = work.opcode <= opcode::SEND_WITH_IMM
                    || matches!(work.opcode, opcode::SEND_WITH_INV | opcode::ATOMIC_WRITE);
                // What an atomic writes is part of the request, however little is inline else.
                let most = match work.opcode {
                    opcode::ATOMIC_WRITE => qp.caps.inline_max.max(8),
                    _ => qp.caps.inline_max,
                };
                if length > most as usize || !sends {
                    return Err(PostError::Invalid(PostFault::Inline));
                }
                Ok(length as u64)
            }
            Data::Gather(_) => Err(PostError::Invalid(PostFault::Entries)),
        }
    }

    /// What is wrong with a request that [`Self::check_post`] refused before it looked at the data.
    #[cold]
    fn fault(&self, qp: &Qp, work: &SendWork<'_>) -> PostFault {
        match self.state() {
            State::Rts | State::Sqd | State::Sqe | State::Err => {}
            _ => return PostFault::State,
        }
        if !opcode_is_valid(qp.service, work.opcode) {
            PostFault::Opcode
        } else if (qp.service == Service::Ud) != work.to.is_some() {
            PostFault::Destination
        } else {
            PostFault::Flags
        }
    }
}

impl SendQueue {
    /// How many more sends fit.
    #[inline(always)]
    pub(crate) fn room(&self, qp: &Qp) -> u64 {
        u64::from(qp.caps.send_max).saturating_sub(self.posted() - qp.sends_released())
    }

    /// Whether a request waits for others: fencing, and the bound on outstanding READs and atomics.
    fn holds_up(&self, order: &RequestHeader, max_rd_atomic: u8) -> bool {
        let outstanding = self.outstanding();
        (order.flags & send_flags::FENCE != 0 && outstanding > 0)
            // What is under way may use the key still.
            || (order.opcode == opcode::LOCAL_INV && self.has_started())
            || (order.needs_answer() && outstanding >= usize::from(max_rd_atomic.max(1)))
    }
}

impl Inner {
    /// Checks a work request and starts it, or queues it.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, qp: &Qp, work: &SendWork<'_>) -> Result<(), PostError> {
        let length = self.machine.check_post(qp, work)?;
        if self.sends.room(qp) == 0 && self.counting.room(qp, self.sends.posted()) == 0 {
            return Err(PostError::Full);
        }
        let position = self.sends.count();
        if self.sends.is_empty()
            && self.path.is_fast()
            && self.fast_path().try_post(qp, work, length)
        {
            let flags = work.flags;
            succeed(&mut self.meter, qp, work.wr_id, work.opcode, flags, length, position);
            return Ok(());
        }
        // A copy, so that on the way of most requests the original need not be in memory at all.
        self.post_slowly(qp, &work.clone(), length)
    }

    /// A request that cannot be done on the spot, or perhaps not at all.
    #[inline(never)]
    fn post_slowly(&mut self, qp: &Qp, work: &SendWork<'_>, length: u64) -> Result<(), PostError> {
        let mut order = RequestHeader {
            wr_id: work.wr_id,
            opcode: work.opcode,
            flags: work.flags,
            immediate: work.immediate,
            address: work.address,
            rkey: work.rkey,
            compare_add: work.compare_add,
            swap: work.swap,
            srq: work.srq,
            to: work.to,
            length,
            done: 0,
            has_begun: false,
            is_promised: false,
            position: self.sends.posted(),
            traced: None,
            has_traced_wait: false,
        };
        // Beyond the eight bytes of what it finds an atomic touches nothing of its list.
        if order.is_atomic() {
            order.length = length.min(ATOMIC_BYTES);
        }
        if self.sends.is_empty() && self.machine.state() == State::Rts {
            match self.attempt(qp, &mut order, &work.data) {
                Ok(TryOutcome::Started(CompletionCondition::Done)) => {
                    order.complete((&mut self.counting, &mut self.meter), qp, status::SUCCESS);
                    return Ok(());
                }
                Ok(TryOutcome::Started(finish)) => {
                    self.sends.push(SendEntry { order, data: keep(&work.data, &order), finish });
                    self.sends.start_next(finish);
                    if self.settle(qp) {
                        self.advance(qp);
                    }
                    return Ok(());
                }
                Ok(TryOutcome::Wait(_)) => {}
                Ok(TryOutcome::Fail(why)) => {
                    self.sends.push(SendEntry {
                        order,
                        data: KeptData::Gather(SgeList::default()),
                        finish: CompletionCondition::Done,
                    });
                    self.enter_error(qp, Some(why));
                    return Ok(());
                }
                Err(Broken) => {
                    self.broken(qp, 0);
                }
            }
        }
        let data = keep(&work.data, &order);
        self.enqueue(qp, SendEntry { order, data, finish: CompletionCondition::Done });
        Ok(())
    }

    #[inline(never)]
    fn enqueue(&mut self, qp: &Qp, entry: SendEntry) {
        match self.machine.state() {
            State::Err | State::Sqe => {
                let counts = (&mut self.counting, &mut self.meter);
                entry.order.complete(counts, qp, status::WR_FLUSH_ERR);
            }
            _ => {
                self.sends.push(entry);
                self.advance(qp);
            }
        }
    }

    /// Tries a request that has no unstarted request before it.
    #[inline(always)]
    fn attempt(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        data: &Data<'_>,
    ) -> Result<TryOutcome, Broken> {
        if order.length > MESSAGE_MAX || (order.is_eight_long() && order.length != ATOMIC_BYTES) {
            return Ok(TryOutcome::Fail(status::LOC_LEN_ERR));
        }
        if order.is_local() {
            return Ok(order.do_locally(qp, &mut self.has_bound));
        }
        // Nothing may ever be outstanding, so it could never go.
        if order.needs_answer() && self.machine.attributes().max_rd_atomic == 0 {
            return Ok(TryOutcome::Fail(status::LOC_QP_OP_ERR));
        }
        match data {
            Data::Inline(parts) => self.transmit(qp, order, parts),
            Data::Gather([]) => self.transmit(qp, order, &[]),
            Data::Gather([sge]) => {
                let (needed, sge) = (local_access(order), sge.touched(0, order.length as usize));
                let regions = &qp.shared.regions;
                match resolve(regions, &mut self.send_cache, qp.pd, &sge, needed) {
                    Some(part) => self.transmit(qp, order, &[part]),
                    None => Ok(TryOutcome::Fail(status::LOC_PROT_ERR)),
                }
            }
            Data::Gather(list) => self.attempt_list(qp, order, list),
        }
    }

    #[inline(never)]
    fn attempt_list(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        list: &[Sge],
    ) -> Result<TryOutcome, Broken> {
        let mut parts = [UserMemory::EMPTY; SGE_MAX as usize];
        let mut left = order.length as usize;
        for (part, sge) in parts.iter_mut().zip(list) {
            let (needed, sge) = (local_access(order), sge.touched(0, left));
            left -= sge.length as usize;
            match resolve(&qp.shared.regions, &mut self.send_cache, qp.pd, &sge, needed) {
                Some(memory) => *part = memory,
                None => return Ok(TryOutcome::Fail(status::LOC_PROT_ERR)),
            }
        }
        self.transmit(qp, order, &parts[..list.len().min(SGE_MAX as usize)])
    }

    fn attempt_kept(&mut self, qp: &Qp, entry: &mut SendEntry) -> Result<TryOutcome, Broken> {
        let SendEntry { order, data, .. } = entry;
        match data {
            KeptData::Gather(list) => self.attempt(qp, order, &Data::Gather(list.as_slice())),
            KeptData::Bytes(bytes) => {
                UserMemory::lend(bytes, |part| self.attempt(qp, order, &Data::Inline(&[part])))
            }
        }
    }

    /// Completes what is complete, starts what can start, and notes what waits.
    pub(crate) fn advance(&mut self, qp: &Qp) {
        if self.sends.is_empty() || !matches!(self.machine.state(), State::Rts | State::Sqd) {
            return;
        }
        loop {
            match self.try_advance(qp) {
                // Once more at most: the peer tells from then on.
                Ok(()) if self.settle(qp) => {}
                Ok(()) => break,
                Err((index, Broken)) => break self.broken(qp, index),
            }
        }
    }

    fn try_advance(&mut self, qp: &Qp) -> Result<(), (usize, Broken)> {
        self.reap(qp)?;
        while let Some(next) = self.sends.next() {
            // SQD starts nothing, but what has begun goes on to its end.
            if self.machine.state() != State::Rts && !next.order.has_begun {
                break;
            }
            let Some((place, mut entry)) = self.sends.take_next() else { break };
            let step = if self.sends.holds_up(&entry.order, self.machine.attributes().max_rd_atomic)
            {
                Ok(TryOutcome::Wait(WaitReason::Order))
            } else {
                self.attempt_kept(qp, &mut entry)
            };
            self.sends.put_back(place, entry);
            let is_oldest = !self.sends.has_started();
            let verdict = match step.map_err(|broken| (0, broken))? {
                TryOutcome::Started(finish) => {
                    self.sends.start_next(finish);
                    if is_oldest {
                        self.reap(qp)?;
                    }
                    continue;
                }
                // Completions come in order: whatever waits or fails behind others that are on
                // their way is judged when it is the oldest.
                _ if !is_oldest => break,
                TryOutcome::Fail(why) => Some(TimeoutOutcome::Fail(why)),
                TryOutcome::Wait(why) => self.oldest_wait().note(qp, why),
            };
            match verdict {
                None => break,
                Some(TimeoutOutcome::Drop) => {
                    self.sends.start_next(CompletionCondition::Done);
                    self.reap(qp)?;
                }
                Some(TimeoutOutcome::Fail(why)) => {
                    self.enter_error(qp, Some(why));
                    return Ok(());
                }
            }
        }
        self.reap(qp)?;
        self.check_flight(qp)
    }

    /// Between taking messages and completing their receives: what the peer had consumed before it
    /// sent them is complete first. Programs that share a completion channel rely on it.
    #[inline(always)]
    pub(crate) fn finish_sends(&mut self, qp: &Qp) {
        if self.sends.has_started()
            && let Err((index, Broken)) = self.reap(qp)
        {
            self.broken(qp, index);
        }
    }

    /// Completes finished requests at the front, in order.
    fn reap(&mut self, qp: &Qp) -> Result<(), (usize, Broken)> {
        if let Some(link) = self.links.first_mut() {
            link.fill_if_wanted();
        }
        while let Some(entry) = self.sends.oldest_started() {
            match entry.finish {
                CompletionCondition::Done => {}
                CompletionCondition::Response => break,
                CompletionCondition::Consumed(index, position) => {
                    let Some(link) = self.links.get_mut(index) else { break };
                    match link.endpoint.request_consumed(position) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(broken) => return Err((index, broken)),
                    }
                }
            }
            if let Some(entry) = self.sends.pop_started() {
                if let Some(numbers) = entry.order.traced {
                    self.traces().acknowledged(qp, numbers);
                }
                let counts = (&mut self.counting, &mut self.meter);
                entry.order.complete(counts, qp, status::SUCCESS);
            }
        }
        self.machine.check_drained(qp, &self.sends);
        Ok(())
    }
}

impl RequestHeader {
    /// Produces the completion: of signalled requests, and of every one that fails.
    pub(crate) fn complete(
        &self,
        (counting, meter): (&mut AttachedCounters, &mut Meter),
        qp: &Qp,
        why: u32,
    ) {
        let RequestHeader { wr_id, opcode, flags, length, position, .. } = *self;
        let completes = match why != status::SUCCESS || is_signalled(qp, flags) {
            true => SendCompletion::InCq,
            false => SendCompletion::Silently,
        };
        counting.sent(qp, (opcode, length, position), why, completes);
        match why {
            status::SUCCESS => succeed(meter, qp, wr_id, opcode, flags, length, position),
            _ => push_send(qp, wr_id, opcode, length, position, why),
        }
    }
}

/// A request succeeded.
#[inline(always)]
fn succeed(
    meter: &mut Meter,
    qp: &Qp,
    wr_id: u64,
    opcode: u32,
    flags: u32,
    length: u64,
    position: u64,
) {
    meter.sent(opcode, length);
    if is_signalled(qp, flags) {
        push_send(qp, wr_id, opcode, length, position, status::SUCCESS);
    }
}

/// Whether a request with these flags has a completion in the CQ if it succeeds.
#[inline(always)]
fn is_signalled(qp: &Qp, flags: u32) -> bool {
    flags & send_flags::SIGNALED != 0 || qp.signaling == Signaling::All
}

#[inline(always)]
fn push_send(qp: &Qp, wr_id: u64, opcode: u32, length: u64, position: u64, status: u32) {
    let opcode = match opcode {
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        opcode::RDMA_READ => wc_opcode::RDMA_READ,
        opcode::ATOMIC_CMP_AND_SWP => wc_opcode::COMP_SWAP,
        opcode::ATOMIC_FETCH_AND_ADD => wc_opcode::FETCH_ADD,
        opcode::BIND_MW => wc_opcode::BIND_MW,
        opcode::LOCAL_INV => wc_opcode::LOCAL_INV,
        opcode::FLUSH => wc_opcode::FLUSH,
        opcode::ATOMIC_WRITE => wc_opcode::ATOMIC_WRITE,
        _ => wc_opcode::SEND,
    };
    let wc =
        Wc { wr_id, status, opcode, byte_len: length as u32, qp_num: qp.number.0, ..Wc::default() };
    let release = SlotRelease::Send { slot: qp.slot, position };
    if !qp.send_cq.push(Entry::new(wc, release, SolicitedEvent::Nothing)) {
        qp.cq_overflowed();
    }
}
