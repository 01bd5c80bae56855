//! Traces what this QP does on direct links for the daemon, while packets are captured. Only the
//! requester writes traces, of both directions: it knows what it sent and what came back.
//!
//! Off this path, one look at `PathSelection` is all it costs. On it, requests are traced when they
//! begin, answers when they are known, and packets are numbered from `sq_psn` on.

use super::request_state::TraceNumbers;
use super::trace_psns::{PsnUse, packets};
use super::transmit::last_flags;
use super::{CompletionCondition, PathSelection, RequestHeader, TryOutcome, WaitReason};
use crate::qp::link_table::{LinkEnd, Links};
use crate::qp::qp_attributes::QpAttributes;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::pieces;
use crate::verbs_constants::opcode;
use omniverb_link::captured_operations_ring::{ACKNOWLEDGED, Key, Kind, NOT_READY};
use omniverb_link::qp_attributes_for_engine::ReceiveAttributes;
use omniverb_link::record::{IMMEDIATE, INVALIDATE, SOLICITED};
use omniverb_link::{Broken, Nak, Request, Trace, Tracer};
use omniverb_ring::UserMemory;
use omniverb_terms::{Qpn, Service};
use std::sync::Arc;

/// Flags of a request that its packets show.
const SHOWN: u32 = SOLICITED | IMMEDIATE | INVALIDATE;
/// `IBV_MTU_4096`: datagrams are one packet each.
const DATAGRAM_MTU: u8 = 5;

impl Qp {
    /// Tells of the link with this peer from now on.
    pub fn trace(&self, peer_qpn: Qpn, tracer: &Arc<Tracer>) {
        let mut guard = self.inner();
        let inner = &mut *guard;
        for index in 0..inner.links.len() {
            if inner.links[index].peer.qpn == peer_qpn && !self.service.is_extended() {
                inner.links[index].trace(tracer, &mut inner.path);
            }
        }
    }

    /// Tells of the link with this peer no longer; `None`: of none.
    pub fn untrace(&self, peer_qpn: Option<Qpn>) {
        let mut guard = self.inner();
        for link in guard.links.iter_mut() {
            if peer_qpn.is_none_or(|qpn| qpn == link.peer.qpn) {
                link.end_trace();
            }
        }
        if !guard.links.iter().any(LinkEnd::is_traced) {
            guard.path.untrace();
        }
    }
}

impl Inner {
    /// As [`Inner::transmit_untraced`], for what is traced or looked at strictly.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_watched(
        &mut self,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
    ) -> Result<TryOutcome, Broken> {
        let attributes = self.machine.attributes();
        if self.path.is_strict()
            && let Some(step) = order.unforgiven(qp, self.links.first(), attributes)
        {
            return Ok(step);
        }
        if !self.path.is_traced() {
            return self.transmit_untraced(qp, order, parts);
        }
        let time = qp.shared.host.now();
        let step = self.transmit_untraced(qp, order, parts)?;
        if qp.service == Service::Ud {
            if matches!(step, TryOutcome::Started(_)) {
                self.traces().datagram(qp, order, parts, time);
            }
            return Ok(step);
        }
        match step {
            TryOutcome::Started(CompletionCondition::Done) => match order.traced.take() {
                Some(numbers) => self.traces().acknowledged(qp, numbers),
                None => self.traces().done(qp, order, parts, time),
            },
            TryOutcome::Wait(WaitReason::Receive) if !order.has_begun && !order.has_traced_wait => {
                order.has_traced_wait = true;
                self.traces().request(qp, order, parts, time, NOT_READY);
            }
            TryOutcome::Started(_) if order.traced.is_none() => {
                order.traced = self.traces().request(qp, order, parts, time, 0);
            }
            // The rest of it follows; the whole is known now.
            TryOutcome::Wait(_) if order.traced.is_none() && order.has_begun => {
                order.traced = self.traces().request(qp, order, parts, time, 0);
            }
            _ => {}
        }
        Ok(step)
    }

    #[inline(always)]
    pub(super) fn traces(&mut self) -> Traces<'_> {
        let attributes = self.machine.attributes();
        Traces { links: &self.links, attributes, path: &mut self.path }
    }
}

/// What traces of operations are made from.
pub(super) struct Traces<'q> {
    pub(super) links: &'q Links,
    pub(super) attributes: &'q QpAttributes,
    pub(super) path: &'q mut PathSelection,
}

impl Traces<'_> {
    /// A request that was done at once.
    fn done(&mut self, qp: &Qp, order: &RequestHeader, parts: &[UserMemory], time: u64) {
        let acknowledged = qp.service == Service::Rc && !order.needs_answer();
        let flags = if acknowledged { ACKNOWLEDGED } else { 0 };
        let numbers = self.request(qp, order, parts, time, flags);
        if let Some(numbers) = numbers.filter(|_| order.needs_answer()) {
            self.answer(qp, order, numbers, parts);
        }
    }

    fn request(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        parts: &[UserMemory],
        time: u64,
        flags: u32,
    ) -> Option<TraceNumbers> {
        let link = self.links.first().filter(|link| link.is_traced())?;
        let not_ready = flags & NOT_READY != 0;
        let code = link.endpoint.peer_receiving().map(|peer| peer.min_rnr_timer);
        let mut trace = begin(qp, link, self.attributes, time);
        trace.kind = match order.opcode {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => Kind::Write,
            opcode::RDMA_READ => Kind::Read,
            opcode::ATOMIC_CMP_AND_SWP => Kind::CompareSwap,
            opcode::ATOMIC_FETCH_AND_ADD => Kind::FetchAdd,
            opcode::ATOMIC_WRITE => Kind::AtomicWrite,
            opcode::FLUSH => Kind::Flush,
            _ => Kind::Send,
        };
        let length = if order.is_atomic() { 0 } else { order.length };
        let attempt = if not_ready { PsnUse::WillBeRepeated } else { PsnUse::Counts };
        let tracing = self.path.tracing_mut()?;
        let count = packets(length, trace.path_mtu);
        let numbers = tracing.number(self.attributes.sq_psn, count, attempt);
        (trace.psn, trace.messages) = (numbers.psn, numbers.messages);
        trace.flags = last_flags(order.opcode, order.flags) & SHOWN | flags;
        trace.code = code.filter(|_| not_ready).unwrap_or_default();
        trace.address = order.address;
        trace.key = Key::Remote(order.rkey);
        trace.immediate = order.immediate;
        (trace.first, trace.second) = match order.opcode {
            opcode::FLUSH => (order.compare_add, 0),
            _ if order.is_atomic() => (order.compare_add, order.swap),
            _ => (order.length, 0),
        };
        if order.opcode == opcode::FLUSH {
            trace.immediate = order.swap as u32;
        }
        tracing.write(&trace, length, parts);
        Some(numbers)
    }

    /// The peer has taken a request.
    pub(super) fn acknowledged(&mut self, qp: &Qp, numbers: TraceNumbers) {
        self.note_peer_operation(qp, numbers, Kind::Acknowledge, 0);
    }

    /// The peer has refused one.
    #[cold]
    pub(super) fn refused(&mut self, qp: &Qp, numbers: TraceNumbers, code: Nak) {
        if let Nak::Refused(refusal) = code {
            let before = TraceNumbers { messages: numbers.messages.wrapping_sub(1), ..numbers };
            self.note_peer_operation(qp, before, Kind::Refusal, refusal.code());
        }
    }

    fn note_peer_operation(&mut self, qp: &Qp, numbers: TraceNumbers, kind: Kind, code: u8) {
        if qp.service != Service::Rc {
            return;
        }
        let Some(link) = self.links.first().filter(|link| link.is_traced()) else { return };
        let trace = begin(qp, link, self.attributes, qp.shared.host.now());
        let psn = if kind == Kind::Refusal { numbers.psn } else { numbers.last };
        let trace = Trace { kind, code, psn, messages: numbers.messages, ..trace };
        if let Some(tracing) = self.path.tracing() {
            tracing.write(&trace, 0, &[]);
        }
    }

    /// The answer to a READ or an atomic is in `parts`.
    #[cold]
    pub(super) fn answer(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        numbers: TraceNumbers,
        parts: &[UserMemory],
    ) {
        let Some(link) = self.links.first().filter(|link| link.is_traced()) else { return };
        let Some(tracing) = self.path.tracing() else { return };
        let trace = begin(qp, link, self.attributes, qp.shared.host.now());
        let trace = Trace { psn: numbers.psn, messages: numbers.messages, ..trace };
        if order.is_atomic() {
            let mut original = [0; 8];
            pieces(parts, 0, 8, |at, piece| piece.read(&mut original[at as usize..]));
            let first = u64::from_ne_bytes(original);
            tracing.write(&Trace { kind: Kind::AtomicResult, first, ..trace }, 0, &[]);
        } else {
            // What brings nothing back is answered like a READ of nothing.
            let length = if order.brings_back() { order.length } else { 0 };
            let trace = Trace { kind: Kind::ReadData, first: length, ..trace };
            tracing.write(&trace, length, parts);
        }
    }

    fn datagram(&mut self, qp: &Qp, order: &RequestHeader, parts: &[UserMemory], time: u64) {
        let Some(to) = order.to else { return };
        let index = self.links.to(&to.destination);
        let Some(index) = index else { return }; // it is held back
        let flags = last_flags(order.opcode, order.flags);
        let qkey = self.attributes.qkey_to(&to);
        let request = Request::Datagram { flags, immediate: order.immediate, qkey };
        self.datagram_on(qp, index, &request, order.length, parts, time);
    }

    /// A datagram has left for the peer of link `index`.
    #[cold]
    pub(super) fn datagram_on(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        length: u64,
        parts: &[UserMemory],
        time: u64,
    ) {
        let Some(link) = self.links.get(index).filter(|link| link.is_traced()) else { return };
        let Request::Datagram { flags, immediate, qkey } = *request else { return };
        let Some(tracing) = self.path.tracing_mut() else { return };
        let numbers = tracing.number(self.attributes.sq_psn, 1, PsnUse::Counts);
        let trace = Trace {
            kind: Kind::Datagram,
            flags: flags & SHOWN,
            path_mtu: DATAGRAM_MTU,
            psn: numbers.psn,
            key: Key::Queue(qkey),
            immediate,
            first: length,
            ..begin(qp, link, self.attributes, time)
        };
        tracing.write(&trace, length, parts);
    }
}

/// What all records of a link have in common.
fn begin(qp: &Qp, link: &LinkEnd, attributes: &QpAttributes, time: u64) -> Trace {
    let path_mtu = ReceiveAttributes::from(attributes).path_mtu;
    Trace { time, qpn: qp.number, peer_qpn: link.peer.qpn, path_mtu, ..Trace::default() }
}
