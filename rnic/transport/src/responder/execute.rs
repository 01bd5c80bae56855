//! Executes a request packet in its turn: checks in the order of 9.7.4, then hands it to the layer
//! above.

use super::nak_and_receive_state::{DroppedFor, Nak, NakKind};
use super::{
    EndOfMessage, Message, OnceResult, Pending, PendingKind, ReadInProgress, RememberedKind,
    RememberedRequest, Responder, State,
};
use crate::upper_layer::{
    AtomicOperation, AtomicRequest, Delivery, FlushRequest, Kind, Part, ReadRequest,
};
use crate::{Config, MESSAGE_MAX, UpperLayer, segmentation};
use omniverb_terms::{Refusal, Rkey};
use omniverb_wire::{Operation as Code, Packet, PacketPosition};

const INVALID: Delivery = Delivery::Refused(Refusal::InvalidRequest);

impl Responder {
    pub(super) fn execute(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        if self.pending.len() >= config.unanswered_max {
            (self.dropped, self.nak) = (self.dropped.and_for_unanswered(), Nak::Withheld);
            return;
        }
        match packet.opcode().operation {
            Code::Send { place, .. } => self.send(config, packet, place, upper),
            Code::Write { place, .. } => self.write(config, packet, place, upper),
            Code::ReadRequest => self.read(config, packet, upper),
            Code::CompareSwap | Code::FetchAdd => self.atomic(config, packet, upper),
            Code::AtomicWrite => self.atomic_write(config, packet, upper),
            Code::Flush => self.flush(config, packet, upper),
            _ => {}
        }
    }

    /// The packet is dropped as if it had been lost, and no NAK hurries the requester. If it comes
    /// again before there is room, the requester should know that somebody is here.
    fn no_room(&mut self) {
        self.asked_again |= self.dropped.for_room_above();
        (self.dropped, self.nak) = (self.dropped.and_for_room_above(), Nak::Withheld);
    }

    /// Takes a packet, or several PSNs of one.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        count: u64,
        ends: EndOfMessage,
        state: State,
        kind: PendingKind,
    ) {
        let first = self.expected;
        let ticket = crate::Ticket(self.tickets);
        let ask = packet.bth().is_ack_requested();
        let (last, ends) = (first + count - 1, ends == EndOfMessage::Message);
        self.pending.push_back(Pending { first, last, ticket, ask, ends, state, kind });
        self.expected += count;
        self.dropped = DroppedFor::No;
    }

    /// Does what the layer above said of a part. True: it was taken.
    fn delivered(&mut self, packet: &Packet<'_>, ends: EndOfMessage, delivery: Delivery) -> bool {
        let state = match delivery {
            Delivery::Done => State::Done,
            Delivery::Later => State::Waiting,
            Delivery::NotReady => {
                self.nak = Nak::Due(NakKind::NotReady);
                return false;
            }
            Delivery::Full => {
                self.no_room();
                return false;
            }
            Delivery::Refused(refusal) => {
                self.standing = self.standing.closed();
                State::Refused(refusal)
            }
        };
        self.take(packet, 1, ends, state, PendingKind::Part);
        true
    }

    fn send(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: PacketPosition,
        upper: &mut impl UpperLayer,
    ) {
        let offset = match self.message {
            Message::None if place.begins() => 0,
            Message::Send { offset } if !place.begins() => offset,
            _ => {
                self.refuse(packet); // 9.7.4.1.2: out of sequence within the message
                return;
            }
        };
        let length = packet.payload().len();
        let after = offset + length as u64;
        if !length_fits(place, length, config.path_mtu) || after > MESSAGE_MAX {
            self.refuse(packet); // 9.7.4.1.6
            return;
        }
        let part = part(packet, Kind::Send, place, offset);
        let ticket = self.new_ticket();
        if self.delivered(packet, EndOfMessage::with(place), upper.deliver(ticket, &part)) {
            self.message =
                if place.ends() { Message::None } else { Message::Send { offset: after } };
        }
    }

    fn write(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: PacketPosition,
        upper: &mut impl UpperLayer,
    ) {
        let Some((address, key, total, offset)) = self.writes(packet) else {
            self.refuse(packet);
            return;
        };
        let length = packet.payload().len();
        let after = offset + length as u64;
        let fits = if place.ends() { after == total } else { after < total };
        if total > MESSAGE_MAX || !fits || !length_fits(place, length, config.path_mtu) {
            self.refuse(packet); // 9.7.4.1.6, 9.7.4.1.7
            return;
        }
        self.named |= offset > 0 && packet.reth().is_some();
        let place = PacketPosition::new(offset == 0, place.ends());
        let part = part(packet, Kind::Write { address, key, total }, place, offset);
        let ticket = self.new_ticket();
        if self.delivered(packet, EndOfMessage::with(place), upper.deliver(ticket, &part)) {
            self.message = if place.ends() {
                Message::None
            } else {
                Message::Write { address, key, total, offset: after }
            };
        }
    }

    /// Address, key and length of the WRITE that a packet belongs to, and where in it the packet
    /// stands. `None`: out of place. One that names exactly what is left is in its place also where
    /// we name nothing ourselves: each end asks for itself who the other is, and may have heard it
    /// when the other has not.
    pub(super) fn writes(&self, packet: &Packet<'_>) -> Option<(u64, Rkey, u64, u64)> {
        match (self.message, packet.reth()) {
            (Message::None, Some(reth)) => {
                Some((reth.address(), reth.key(), u64::from(reth.length()), 0))
            }
            (Message::Write { address, key, total, offset }, None) => {
                Some((address, key, total, offset))
            }
            (Message::Write { address, key, total, offset }, Some(reth)) => {
                let named = reth.address() == address.wrapping_add(offset)
                    && reth.key() == key
                    && u64::from(reth.length()) == total - offset;
                named.then_some((address, key, total, offset))
            }
            _ => None,
        }
    }

    /// READs and atomics under way; more than agreed on are refused (9.7.4.1.5).
    fn too_many(&self, config: &Config) -> bool {
        let under_way =
            self.pending.iter().filter(|p| !matches!(p.kind, PendingKind::Part)).count();
        under_way >= config.max_dest_rd_atomic
    }

    fn read(&mut self, config: &Config, packet: &Packet<'_>, upper: &mut impl UpperLayer) {
        let Some(reth) = packet.reth() else { return };
        let length = u64::from(reth.length());
        if self.message != Message::None || self.too_many(config) || length > MESSAGE_MAX {
            self.refuse(packet);
            return;
        }
        let (address, key) = (reth.address(), reth.key());
        let request = ReadRequest {
            address,
            key,
            srq: packet.srq().unwrap_or(0),
            length,
            is_repeated: false,
        };
        let ticket = self.new_ticket();
        let count = segmentation::packets(length, config.path_mtu);
        let (first, last) = (self.expected, self.expected + count - 1);
        match upper.read(ticket, &request) {
            Delivery::Done | Delivery::Later => {
                let reading =
                    ReadInProgress { ticket, base: first, next: first, last, begin: first, length };
                self.take(
                    packet,
                    count,
                    EndOfMessage::Message,
                    State::Waiting,
                    PendingKind::Read(reading),
                );
                let kind = RememberedKind::Read { address, key, length };
                self.remember(config, RememberedRequest { first, last, kind });
            }
            other => {
                self.delivered(packet, EndOfMessage::Nothing, other);
            }
        }
    }

    fn atomic(&mut self, config: &Config, packet: &Packet<'_>, upper: &mut impl UpperLayer) {
        let Some(operands) = packet.atomic() else { return };
        let misaligned = !operands.address().is_multiple_of(8); // 9.4.5.1
        if self.message != Message::None || self.too_many(config) || misaligned {
            self.refuse(packet);
            return;
        }
        let operation = if packet.opcode().operation == Code::FetchAdd {
            AtomicOperation::FetchAdd { add: operands.swap_or_add() }
        } else {
            let (compare, swap) = (operands.compare(), operands.swap_or_add());
            AtomicOperation::CompareSwap { compare, swap }
        };
        let (address, key) = (operands.address(), operands.key());
        let srq = packet.srq().unwrap_or(0);
        let request = AtomicRequest { address, key, srq, operation };
        let ticket = self.new_ticket();
        let result = upper.atomic(ticket, &request);
        self.executed(config, packet, result, OnceResult::Found(0));
    }

    fn atomic_write(&mut self, config: &Config, packet: &Packet<'_>, upper: &mut impl UpperLayer) {
        let Some(reth) = packet.reth() else { return };
        let misaligned = !reth.address().is_multiple_of(8);
        let value = packet.payload().try_into().ok().filter(|_| reth.length() == 8 && !misaligned);
        let value = value.filter(|_| self.message == Message::None && !self.too_many(config));
        let Some(value) = value else {
            self.refuse(packet);
            return;
        };
        let operation = AtomicOperation::Write { value };
        // Not of XRC, so no SRQ.
        let request = AtomicRequest { address: reth.address(), key: reth.key(), srq: 0, operation };
        let ticket = self.new_ticket();
        let result = upper.atomic(ticket, &request);
        self.executed(config, packet, result, OnceResult::Silently);
    }

    fn flush(&mut self, config: &Config, packet: &Packet<'_>, upper: &mut impl UpperLayer) {
        let (Some(reth), Some(feth)) = (packet.reth(), packet.flush()) else { return };
        let (Some(placement), Some(selectivity)) = (feth.placement(), feth.selectivity()) else {
            self.refuse(packet);
            return;
        };
        if self.message != Message::None || self.too_many(config) {
            self.refuse(packet);
            return;
        }
        let (address, key, length) = (reth.address(), reth.key(), u64::from(reth.length()));
        let request = FlushRequest { address, key, length, placement, selectivity };
        let ticket = self.new_ticket();
        let result = upper.flush(ticket, &request);
        self.executed(config, packet, result, OnceResult::Silently);
    }

    /// Something that is executed once was handed over under the latest ticket. `kind`: what is
    /// said of it, but for the value.
    fn executed(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        result: Result<u64, Delivery>,
        kind: OnceResult,
    ) {
        let first = self.expected;
        let (state, executed) = match result {
            Ok(original) => (State::Done, Some(kind.with(original))),
            Err(Delivery::Later) => (State::Waiting, None),
            // "Done" without a value is no answer.
            Err(Delivery::Done) => (State::Refused(Refusal::RemoteOperation), None),
            Err(other) => {
                self.delivered(packet, EndOfMessage::Nothing, other);
                return;
            }
        };
        self.take(
            packet,
            1,
            EndOfMessage::Message,
            state,
            PendingKind::Once(executed.unwrap_or(kind)),
        );
        let kind = RememberedKind::Once { executed };
        self.remember(config, RememberedRequest { first, last: first, kind });
    }

    fn refuse(&mut self, packet: &Packet<'_>) {
        self.new_ticket();
        self.delivered(packet, EndOfMessage::Nothing, INVALID);
    }
}

/// FIRST and MIDDLE are full, LAST has at least a byte (9.7.4.1.6).
pub(crate) fn length_fits(place: PacketPosition, length: usize, path_mtu: usize) -> bool {
    match place {
        PacketPosition::First | PacketPosition::Middle => length == path_mtu,
        PacketPosition::Last => (1..=path_mtu).contains(&length),
        PacketPosition::Only => length <= path_mtu,
    }
}

/// The packet as the layer above sees it.
pub(crate) fn part<'a>(
    packet: &Packet<'a>,
    kind: Kind,
    place: PacketPosition,
    offset: u64,
) -> Part<'a> {
    Part {
        kind,
        srq: packet.srq().unwrap_or(0),
        place,
        offset,
        data: packet.payload(),
        immediate: packet.immediate().map(|immediate| immediate.0),
        invalidate: packet.invalidate().map(|invalidate| invalidate.key()),
        is_solicited: packet.bth().is_solicited(),
    }
}
