//! What this QP does on direct links, told to the daemon while somebody captures packets. Only the
//! requester tells, of both directions: it knows what it sent and what came back.
//!
//! Off this path, one look at [`Inner::telling`] is all it costs. On it, requests are told when
//! they begin, answers when they are known, and packets are numbered from `sq_psn` on.

use super::transmit::last_flags;
use super::{Finish, Order, Step, Why};
use crate::constants::opcode;
use crate::gather::pieces;
use crate::qp::attributes::QpAttributes;
use crate::qp::{Inner, LinkEnd, Qp};
use omniverb_link::record::{IMMEDIATE, INVALIDATE, SOLICITED};
use omniverb_link::trace::{ACKNOWLEDGED, Kind, NOT_READY, PIECE};
use omniverb_link::wire::Receiving;
use omniverb_link::{Broken, Nak, Request, Trace, Tracer};
use omniverb_ring::UserMemory;
use omniverb_terms::{Qpn, Service};
use std::sync::Arc;

/// Flags of a request that its packets show.
const SHOWN: u32 = SOLICITED | IMMEDIATE | INVALIDATE;
/// Packets and messages are numbered in 24 bits.
const NUMBER: u32 = 0xff_ffff;
/// `IBV_MTU_4096`: datagrams are one packet each.
const DATAGRAM_MTU: u8 = 5;

/// What telling needs to know of a QP.
pub(crate) struct Telling {
    tracer: Arc<Tracer>,
    /// Of the next packet, once there was one.
    psn: Option<u32>,
    messages: u32,
}

/// A request that was told of and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    psn: u32,
    /// Of its last packet.
    last: u32,
    messages: u32,
}

impl Qp {
    /// Tells of the link with this peer from now on.
    pub fn trace(&self, peer_qpn: Qpn, tracer: &Arc<Tracer>) {
        let mut guard = self.inner();
        let inner = &mut *guard;
        for index in 0..inner.links.len() {
            if inner.links[index].peer.qpn == peer_qpn {
                inner.tell_of(self, index, tracer);
            }
        }
    }

    /// Tells of the link with this peer no longer; `None`: of none.
    pub fn untrace(&self, peer_qpn: Option<Qpn>) {
        let mut guard = self.inner();
        for link in guard.links.iter_mut() {
            link.traced &= peer_qpn.is_some_and(|qpn| qpn != link.peer.qpn);
        }
        if !guard.links.iter().any(|link| link.traced) {
            guard.telling = None;
            guard.choose_way(self);
        }
    }
}

impl Inner {
    /// Tells of a link. What leads to the engine, the engine sees.
    pub(crate) fn tell_of(&mut self, qp: &Qp, index: usize, tracer: &Arc<Tracer>) {
        let link = &mut self.links[index];
        link.traced = !link.peer.wire;
        let known =
            self.telling.as_ref().is_some_and(|telling| Arc::ptr_eq(&telling.tracer, tracer));
        if link.traced && !known {
            let tracer = tracer.clone();
            self.telling = Some(Box::new(Telling { tracer, psn: None, messages: 0 }));
            self.choose_way(qp);
        }
    }

    /// As [`Inner::transmit_silently`], and tells.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_told(
        &mut self,
        qp: &Qp,
        order: &mut Order,
        parts: &[UserMemory],
    ) -> Result<Step, Broken> {
        let time = qp.shared.host.now();
        let step = self.transmit_silently(qp, order, parts)?;
        if qp.service == Service::Ud {
            if matches!(step, Step::Started(_)) {
                self.tell_datagram(qp, order, parts, time);
            }
            return Ok(step);
        }
        match step {
            Step::Started(Finish::Done) => match order.told.take() {
                Some(told) => self.tell_acknowledged(qp, told),
                None => self.tell_done(qp, order, parts, time),
            },
            Step::Wait(Why::Receive) if !order.begun && !order.told_of_wait => {
                order.told_of_wait = true;
                self.tell_request(qp, order, parts, time, NOT_READY);
            }
            Step::Started(_) if order.told.is_none() => {
                order.told = self.tell_request(qp, order, parts, time, 0);
            }
            // The rest of it follows; the whole is known now.
            Step::Wait(_) if order.told.is_none() && order.begun => {
                order.told = self.tell_request(qp, order, parts, time, 0);
            }
            _ => {}
        }
        Ok(step)
    }

    /// A request that was done at once.
    fn tell_done(&mut self, qp: &Qp, order: &Order, parts: &[UserMemory], time: u64) {
        let acknowledged = qp.service == Service::Rc && !order.needs_answer();
        let flags = if acknowledged { ACKNOWLEDGED } else { 0 };
        let told = self.tell_request(qp, order, parts, time, flags);
        if let Some(told) = told.filter(|_| order.needs_answer()) {
            self.tell_answer(qp, order, told, parts);
        }
    }

    fn tell_request(
        &mut self,
        qp: &Qp,
        order: &Order,
        parts: &[UserMemory],
        time: u64,
        flags: u32,
    ) -> Option<Told> {
        let link = self.links.first().filter(|link| link.traced)?;
        let not_ready = flags & NOT_READY != 0;
        let code = link.endpoint.peer_receiving().map(|peer| peer.min_rnr_timer);
        let mut trace = begin(qp, link, self.machine.attributes(), time);
        trace.kind = match order.opcode {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => Kind::Write,
            opcode::RDMA_READ => Kind::Read,
            opcode::ATOMIC_CMP_AND_SWP => Kind::CompareSwap,
            opcode::ATOMIC_FETCH_AND_ADD => Kind::FetchAdd,
            _ => Kind::Send,
        };
        let length = if order.is_atomic() { 0 } else { order.length };
        let telling = self.telling.as_mut()?;
        let count = packets(length, trace.path_mtu);
        let told = telling.number(self.machine.attributes().sq_psn, count, not_ready);
        (trace.psn, trace.messages) = (told.psn, told.messages);
        trace.flags = last_flags(order.opcode, order.flags) & SHOWN | flags;
        trace.code = code.filter(|_| not_ready).unwrap_or_default();
        trace.address = order.address;
        trace.rkey = order.rkey.0;
        trace.immediate = order.immediate;
        (trace.first, trace.second) =
            if order.is_atomic() { (order.compare_add, order.swap) } else { (order.length, 0) };
        telling.tell(&trace, length, parts);
        Some(told)
    }

    /// The peer has taken a request.
    pub(super) fn tell_acknowledged(&mut self, qp: &Qp, told: Told) {
        self.tell_back(qp, told, Kind::Acknowledge, 0);
    }

    /// The peer has refused one.
    #[cold]
    pub(super) fn tell_refused(&mut self, qp: &Qp, told: Told, code: Nak) {
        if let Nak::Refused(refusal) = code {
            let before = Told { messages: told.messages.wrapping_sub(1), ..told };
            self.tell_back(qp, before, Kind::Refusal, refusal.code());
        }
    }

    fn tell_back(&mut self, qp: &Qp, told: Told, kind: Kind, code: u8) {
        if qp.service != Service::Rc {
            return;
        }
        let Some(link) = self.links.first().filter(|link| link.traced) else { return };
        let trace = begin(qp, link, self.machine.attributes(), qp.shared.host.now());
        let psn = if kind == Kind::Refusal { told.psn } else { told.last };
        let trace = Trace { kind, code, psn, messages: told.messages, ..trace };
        if let Some(telling) = &self.telling {
            telling.tell(&trace, 0, &[]);
        }
    }

    /// The answer to a READ or an atomic is in `parts`.
    #[cold]
    pub(super) fn tell_answer(&mut self, qp: &Qp, order: &Order, told: Told, parts: &[UserMemory]) {
        let Some(link) = self.links.first().filter(|link| link.traced) else { return };
        let Some(telling) = &self.telling else { return };
        let trace = begin(qp, link, self.machine.attributes(), qp.shared.host.now());
        let trace = Trace { psn: told.psn, messages: told.messages, ..trace };
        if order.is_atomic() {
            let mut original = [0; 8];
            pieces(parts, 0, 8, |at, piece| piece.read(&mut original[at as usize..]));
            let first = u64::from_ne_bytes(original);
            telling.tell(&Trace { kind: Kind::AtomicResult, first, ..trace }, 0, &[]);
        } else {
            let trace = Trace { kind: Kind::ReadData, first: order.length, ..trace };
            telling.tell(&trace, order.length, parts);
        }
    }

    fn tell_datagram(&mut self, qp: &Qp, order: &Order, parts: &[UserMemory], time: u64) {
        let Some(to) = order.to else { return };
        let index = self.links.to(&to.destination);
        let Some(index) = index else { return }; // it is held back
        let flags = last_flags(order.opcode, order.flags);
        let qkey = self.qkey_to(&to);
        let request = Request::Datagram { flags, immediate: order.immediate, qkey };
        self.tell_of_datagram(qp, index, &request, order.length, parts, time);
    }

    /// A datagram has left for the peer of link `index`.
    #[cold]
    pub(super) fn tell_of_datagram(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        length: u64,
        parts: &[UserMemory],
        time: u64,
    ) {
        let Some(link) = self.links.get(index).filter(|link| link.traced) else { return };
        let Request::Datagram { flags, immediate, qkey } = *request else { return };
        let Some(telling) = &mut self.telling else { return };
        let told = telling.number(self.machine.attributes().sq_psn, 1, false);
        let trace = Trace {
            kind: Kind::Datagram,
            flags: flags & SHOWN,
            path_mtu: DATAGRAM_MTU,
            psn: told.psn,
            rkey: qkey,
            immediate,
            first: length,
            ..begin(qp, link, self.machine.attributes(), time)
        };
        telling.tell(&trace, length, parts);
    }
}

impl Telling {
    /// Numbers for a request of so many packets. One that will be tried again keeps them.
    fn number(&mut self, sq_psn: u32, count: u64, again: bool) -> Told {
        let psn = *self.psn.get_or_insert(sq_psn) & NUMBER;
        let next = psn.wrapping_add(count as u32) & NUMBER;
        if !again {
            self.psn = Some(next);
            self.messages = self.messages.wrapping_add(1) & NUMBER;
        }
        Told { psn, last: next.wrapping_sub(1) & NUMBER, messages: self.messages }
    }

    /// Tells, with `length` bytes of payload out of `parts`, in pieces.
    fn tell(&self, trace: &Trace, length: u64, parts: &[UserMemory]) {
        let with_payload = trace.kind.has_payload();
        let Some(mtu) = trace.mtu_bytes() else { return };
        let keep = self.tracer.keep();
        let mut offset = 0;
        let mut list = Vec::new();
        loop {
            let piece = (length - offset).min(PIECE);
            let mut bytes = 0;
            list.clear();
            let mut add = |from, length| {
                pieces(parts, from, length, |_, part| {
                    bytes += part.len();
                    list.push(part);
                });
            };
            match with_payload {
                false => {}
                true if u64::from(keep) >= mtu => add(offset, piece),
                true => {
                    for at in (0..piece).step_by(mtu as usize) {
                        add(offset + at, (piece - at).min(mtu).min(u64::from(keep)));
                    }
                }
            }
            let second = if with_payload { offset } else { trace.second };
            if !self.tracer.tell(&Trace { keep, second, ..*trace }, bytes, &list) {
                let answers = u64::from(trace.flags & (ACKNOWLEDGED | NOT_READY) != 0);
                let left = if with_payload { packets(length - offset, trace.path_mtu) } else { 1 };
                return self.tracer.lose(left + answers);
            }
            offset += piece;
            if !with_payload || offset >= length {
                return;
            }
        }
    }
}

/// What all records of a link have in common.
fn begin(qp: &Qp, link: &LinkEnd, attributes: &QpAttributes, time: u64) -> Trace {
    let path_mtu = Receiving::from(attributes).path_mtu;
    Trace { time, qpn: qp.number, peer_qpn: link.peer.qpn, path_mtu, ..Trace::default() }
}

/// Packets that a message takes.
fn packets(length: u64, path_mtu: u8) -> u64 {
    length.div_ceil(128 << path_mtu).max(1)
}
