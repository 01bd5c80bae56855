//! Rebuilds packets from a process's traces of a direct link.
//!
//! In: a record, which is hostile; the link's end, which is ours. Out: datagrams with addresses and
//! queue pair numbers of the latter, or nothing if the record makes no sense.

#[cfg(test)]
mod tests;

use omniverb_link::captured_operations_ring::{
    ACKNOWLEDGED, KEEP_MAX, Key, Kind, NOT_READY, PIECE, Trace,
};
use omniverb_link::record::{IMMEDIATE, INVALIDATE, SOLICITED};
use omniverb_terms::{Placement, Psn, Qpn, Refusal, Rkey, Selectivity, Service};
use omniverb_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Builder, CREDITS_INVALID, DATAGRAM_MAX, Deth, Feth,
    IcrcFlow, Ieth, ImmDt, Opcode, Operation, PacketPosition, Reth, Syndrome,
};
use std::net::IpAddr;

/// Bytes of the longest message (C9-4).
const MESSAGE_MAX: u64 = 1 << 31;
/// Bytes of the longest datagram.
const DATAGRAM_BYTES_MAX: u64 = 4096;

/// The sender of a packet of a message: its requester, or the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Requester,
    Responder,
}

/// One end of a link that tells what it requests.
#[derive(Clone, Debug)]
pub struct TracedEnd {
    /// The queue pair of the process that tells.
    pub qpn: Qpn,
    /// The queue pair at the other end.
    pub peer_qpn: Qpn,
    /// Transport service of both.
    pub service: Service,
    /// The address that its packets come from.
    pub local: IpAddr,
    /// The address that they go to.
    pub remote: IpAddr,
}

/// A packet: in which direction, and of how many of its bytes we know.
pub(crate) struct Rebuilt<'a> {
    pub(crate) flow: IcrcFlow,
    pub(crate) datagram: &'a [u8],
    pub(crate) known: usize,
}

/// A message, or the part of one that a record tells of.
struct Part<'a> {
    payload: &'a [u8],
    keep: usize,
    mtu: u64,
    /// Of its first packet, among all of the message.
    first: u64,
    /// Packets of the message.
    packets: u64,
    /// Message bytes from here on, and in this part.
    left: u64,
    length: u64,
}

impl<'a> Part<'a> {
    /// `None`: this is no part of such a message.
    fn new(trace: &Trace, payload: &'a [u8]) -> Option<Part<'a>> {
        let (total, offset) = (trace.first, trace.second);
        let mtu = trace.mtu_bytes()?;
        let keep = usize::from(trace.keep);
        let begins_within = offset < total || offset == 0;
        if total > MESSAGE_MAX || !offset.is_multiple_of(PIECE) || !begins_within {
            return None;
        }
        let left = total - offset;
        let length = left.min(PIECE);
        let whole = length / mtu * (keep as u64).min(mtu);
        let kept = whole + (length % mtu).min(keep as u64);
        let (first, packets) = (offset / mtu, total.div_ceil(mtu).max(1));
        let sound = keep <= KEEP_MAX && kept == payload.len() as u64;
        sound.then_some(Part { payload, keep, mtu, first, packets, left, length })
    }

    /// Calls `each` with number, place, length and known payload of each packet.
    fn packets(&self, mut each: impl FnMut(u64, PacketPosition, usize, &[u8])) {
        let mut rest = self.payload;
        for index in 0..self.length.div_ceil(self.mtu).max(1) {
            let number = self.first + index;
            let length = (self.left - index * self.mtu).min(self.mtu) as usize;
            let (known, after) = rest.split_at(length.min(self.keep).min(rest.len()));
            rest = after;
            each(
                number,
                PacketPosition::new(number == 0, number + 1 == self.packets),
                length,
                known,
            );
        }
    }
}

/// Turns a record of `end` into packets. False: it makes no sense.
pub(crate) fn rebuild(
    end: &TracedEnd,
    trace: &Trace,
    payload: &[u8],
    mut each: impl FnMut(Rebuilt<'_>),
) -> bool {
    let is_datagram = trace.kind == Kind::Datagram;
    let unreliable = matches!(trace.kind, Kind::Send | Kind::Write);
    let possible = match end.service {
        Service::Rc => !is_datagram,
        Service::Uc => unreliable && trace.flags & (ACKNOWLEDGED | NOT_READY) == 0,
        Service::Ud => is_datagram && trace.first <= DATAGRAM_BYTES_MAX && trace.path_mtu == 5,
        // XRC is not traced.
        Service::XrcSend | Service::XrcRecv => false,
    };
    if !possible || trace.mtu_bytes().is_none() {
        return false;
    }
    let mut rebuilding = Rebuilding { end, trace, each: &mut each };
    if trace.kind.has_payload() {
        if trace.kind == Kind::AtomicWrite && (trace.first, trace.second) != (8, 0) {
            return false;
        }
        let Some(part) = Part::new(trace, payload) else { return false };
        rebuilding.message(&part);
        return true;
    }
    payload.is_empty() && rebuilding.short().is_some()
}

struct Rebuilding<'a, F> {
    end: &'a TracedEnd,
    trace: &'a Trace,
    each: &'a mut F,
}

impl<F: FnMut(Rebuilt<'_>)> Rebuilding<'_, F> {
    /// Records that are one packet.
    fn short(&mut self) -> Option<()> {
        let Trace { kind, code, psn, messages, address, immediate, first, second, .. } =
            *self.trace;
        let rkey = self.rkey();
        let request = |operation| Opcode::new(Service::Rc, operation);
        let mut buffer = [0; 128];
        match kind {
            Kind::Read if first <= MESSAGE_MAX => {
                let reth = Reth::new(address, rkey, first as u32);
                let begin = self.begin(&mut buffer, request(Operation::ReadRequest), psn, 0)?;
                let length = begin.header(reth).finish();
                self.done(&mut buffer, length, 0, Sender::Requester);
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let (operation, header) = match kind {
                    Kind::FetchAdd => {
                        (Operation::FetchAdd, AtomicEth::new(address, rkey, first, 0))
                    }
                    _ => (Operation::CompareSwap, AtomicEth::new(address, rkey, second, first)),
                };
                let begin = self.begin(&mut buffer, request(operation), psn, 0)?;
                let length = begin.header(header).finish();
                self.done(&mut buffer, length, 0, Sender::Requester);
            }
            Kind::Flush => {
                let [placement, selectivity, ..] = immediate.to_le_bytes();
                let selectivity = Selectivity::from_code(selectivity)?;
                let feth = Feth::new(Placement::from_bits(placement)?, selectivity);
                let reth = Reth::new(address, rkey, u32::try_from(first).ok()?);
                let begin = self.begin(&mut buffer, request(Operation::Flush), psn, 0)?;
                let length = begin.header(feth).header(reth).finish();
                self.done(&mut buffer, length, 0, Sender::Requester);
            }
            Kind::AtomicResult => {
                let opcode = request(Operation::AtomicAcknowledge);
                let aeth = Aeth::new(Syndrome::Ack(CREDITS_INVALID), messages);
                let begin = self.begin(&mut buffer, opcode, psn, 0)?;
                let length = begin.header(aeth).header(AtomicAckEth::new(first)).finish();
                self.done(&mut buffer, length, 0, Sender::Responder);
            }
            Kind::Acknowledge => {
                self.acknowledge(psn, Syndrome::Ack(CREDITS_INVALID), messages);
            }
            Kind::Refusal => {
                self.acknowledge(psn, Syndrome::Refused(Refusal::from_code(code)?), messages);
            }
            _ => return None,
        }
        Some(())
    }

    /// A part of a SEND, a WRITE, a datagram or the answer to a READ.
    fn message(&mut self, part: &Part<'_>) {
        let mut buffer = [0; DATAGRAM_MAX];
        let trace = *self.trace;
        part.packets(|number, place, length, known| {
            // The number of a message's last packet fits: a message has at most 2^23 of them.
            let psn = trace.psn.plus(number as u32);
            let Some(total) = self.packet(&mut buffer, psn, place, length, known) else { return };
            let from = match trace.kind {
                Kind::ReadData => Sender::Responder,
                _ => Sender::Requester,
            };
            self.done(&mut buffer, total, length - known.len(), from);
            if place.ends() && trace.flags & ACKNOWLEDGED != 0 {
                self.acknowledge(psn, Syndrome::Ack(CREDITS_INVALID), trace.messages);
            }
            if place.ends() && trace.flags & NOT_READY != 0 {
                // A SEND lacks a receive at its first packet, a WRITE at its last.
                let psn = if trace.kind == Kind::Write { psn } else { trace.psn };
                let syndrome = Syndrome::ReceiverNotReady(trace.code & 0x1f);
                self.acknowledge(psn, syndrome, trace.messages);
            }
        });
    }

    fn packet(
        &self,
        buffer: &mut [u8],
        psn: Psn,
        place: PacketPosition,
        length: usize,
        known: &[u8],
    ) -> Option<usize> {
        let Trace { kind, flags, messages, address, key, immediate, first, .. } = *self.trace;
        let queue_key = match key {
            Key::Queue(key) if kind == Kind::Datagram => Some(key),
            _ => None,
        };
        let service = self.end.service;
        let carries = matches!(kind, Kind::Send | Kind::Write | Kind::Datagram);
        let with_immediate = place.ends() && flags & IMMEDIATE != 0 && carries;
        // UC has no packet that invalidates.
        let invalidate = place.ends()
            && flags & INVALIDATE != 0
            && !with_immediate
            && kind == Kind::Send
            && service == Service::Rc;
        let operation = match kind {
            Kind::Write => Operation::Write { place, immediate: with_immediate },
            Kind::ReadData => Operation::ReadResponse { place },
            Kind::AtomicWrite => Operation::AtomicWrite,
            _ => Operation::Send { place, immediate: with_immediate, invalidate },
        };
        let opcode = Opcode::new(service, operation);
        let mut builder = self
            .begin(buffer, opcode, psn, length)?
            .maybe(opcode.has_reth().then(|| Reth::new(address, self.rkey(), first as u32)))
            .maybe(queue_key.map(|key| Deth::new(key, self.end.qpn)))
            .maybe(opcode.has_aeth().then(|| Aeth::new(Syndrome::Ack(CREDITS_INVALID), messages)))
            // As the application gave it, in network order.
            .maybe(with_immediate.then(|| ImmDt(immediate.to_ne_bytes())))
            .maybe(invalidate.then(|| Ieth::new(Rkey(immediate))));
        let target = builder.payload();
        let (begin, rest) = target.split_at_mut(known.len());
        begin.copy_from_slice(known);
        rest.fill(0);
        Some(builder.finish())
    }

    /// Of the region that a one-sided request names.
    fn rkey(&self) -> Rkey {
        match self.trace.key {
            Key::Remote(key) => key,
            Key::Queue(_) => Rkey(0),
        }
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, messages: u32) {
        let mut buffer = [0; 64];
        let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        let Some(builder) = self.begin(&mut buffer, opcode, psn, 0) else { return };
        let length = builder.header(Aeth::new(syndrome, messages)).finish();
        self.done(&mut buffer, length, 0, Sender::Responder);
    }

    fn begin<'b>(
        &self,
        buffer: &'b mut [u8],
        opcode: Opcode,
        psn: Psn,
        payload: usize,
    ) -> Option<Builder<'b>> {
        let back = opcode.operation.is_response();
        let destination = if back { self.end.qpn } else { self.end.peer_qpn };
        let ends = match opcode.operation {
            Operation::Send { place, .. } => place.ends(),
            Operation::Write { place, immediate } => place.ends() && immediate,
            _ => false,
        };
        let asks = opcode.is_of(Service::Rc)
            && match opcode.operation {
                Operation::Send { place, .. } | Operation::Write { place, .. } => place.ends(),
                _ => !back,
            };
        let bth = Bth::new(opcode.to_byte(), destination, psn)
            .solicited(ends && self.trace.flags & SOLICITED != 0)
            .ack_requested(asks);
        Builder::new(buffer, opcode, bth, payload)
    }

    /// Hands out a packet, of whose payload so many bytes are `missing`.
    fn done(&mut self, buffer: &mut [u8], length: usize, missing: usize, from: Sender) {
        let TracedEnd { qpn, peer_qpn, local, remote, .. } = *self.end;
        let (own, other, source, destination) = match from {
            Sender::Requester => (qpn, peer_qpn, local, remote),
            Sender::Responder => (peer_qpn, qpn, remote, local),
        };
        let flow = IcrcFlow { source, destination, source_port: source_port(own, other) };
        let datagram = &mut buffer[..length];
        flow.seal(datagram, 0);
        let known = if missing == 0 {
            length
        } else {
            // Neither padding nor ICRC are known.
            let behind = usize::from(datagram[1] >> 4 & 3) + omniverb_wire::SUFFIX_BYTES;
            length - missing - behind
        };
        (self.each)(Rebuilt { flow, datagram, known });
    }
}

/// The port that packets of a connection come from: one of RoCE's range, the same for all of them.
fn source_port(from: Qpn, to: Qpn) -> u16 {
    let product = u64::from(from.0) * u64::from(to.0);
    let folded = product ^ product >> 20 ^ product >> 40;
    0xc000 | (folded & 0x3fff) as u16
}
