//! Makes response packets, in the order of their PSNs (9.7.5.1): first what was asked for again,
//! then acknowledgements of what is done, then what is oldest among the rest.

use super::nak_and_receive_state::{Nak, NakKind, ResponderState};
use super::{OnceResult, Pending, PendingKind, ReadInProgress, RepeatedResponse, Responder, State};
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::FetchOutcome;
use crate::{AddressedPackets, Config, UpperLayer, segmentation};
use omniverb_terms::Refusal;
use omniverb_wire::{
    Aeth, AtomicAckEth, Bth, Builder, CREDITS_INVALID, Opcode, Operation as Code, PacketPosition,
    Syndrome,
};

/// What came of answering a READ.
enum ReadResponse {
    Packet(usize),
    Nothing,
    Behind,
    Refused(Refusal),
}

impl Responder {
    /// Writes the next packet. `None`: nothing to send now.
    pub(crate) fn transmit(
        &mut self,
        config: &Config,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        if let ResponderState::AskedAgain(psn, refusal) = self.standing {
            self.standing = ResponderState::Refused(psn, refusal);
            return self.simple(config, datagram, psn, Syndrome::Refused(refusal));
        }
        self.pass_done(config);
        if self.dropped.for_unanswered() && self.pending.len() <= config.unanswered_max / 2 {
            self.ask_to_go_on();
        }
        if let Some(length) = self.replay(config, datagram, upper) {
            return Some(length);
        }
        if self.acknowledging.is_due() {
            let syndrome = Syndrome::Ack(CREDITS_INVALID);
            let length = self.simple(config, datagram, self.answered - 1, syndrome)?;
            self.acknowledging.said();
            return Some(length);
        }
        self.oldest(config, datagram, upper)
    }

    /// Says again what was asked for again, in that order. What the layer above does not have yet
    /// holds up the rest; what it has only behind something else does not.
    fn replay(
        &mut self,
        config: &Config,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        let mut index = 0;
        while let Some(replay) = self.replays.get(index) {
            match replay {
                RepeatedResponse::Once { psn, executed } => {
                    let (psn, executed) = (*psn, *executed);
                    let length = self.once_answer(config, datagram, psn, executed)?;
                    self.replays.remove(index);
                    return Some(length);
                }
                RepeatedResponse::Gone { psn, .. } => {
                    let syndrome = Syndrome::Refused(Refusal::RemoteAccess);
                    let length = self.simple(config, datagram, *psn, syndrome)?;
                    self.replays.remove(index);
                    return Some(length);
                }
                RepeatedResponse::Read(_) if self.starved => return None,
                RepeatedResponse::Read(reading) => {
                    let mut reading = *reading;
                    match self.read_answer(config, datagram, &mut reading, upper) {
                        ReadResponse::Packet(length) => {
                            if reading.next > reading.last {
                                upper.release(reading.ticket);
                                self.replays.remove(index);
                            } else if let Some(replay) = self.replays.get_mut(index) {
                                *replay = RepeatedResponse::Read(reading);
                            }
                            return Some(length);
                        }
                        ReadResponse::Nothing => return None,
                        ReadResponse::Behind => index += 1,
                        ReadResponse::Refused(_) => {
                            upper.release(reading.ticket);
                            self.replays.remove(index);
                        }
                    }
                }
            }
        }
        None
    }

    /// Whether an acknowledgement is due.
    pub(crate) fn acknowledges(&mut self, config: &Config) -> bool {
        self.pass_done(config);
        self.acknowledging.is_due()
    }

    /// Whether something else than an acknowledgement is to be said, or may be.
    pub(crate) fn has_answers(&self) -> bool {
        let waits = |pending: &Pending| !matches!(pending.kind, PendingKind::Part);
        self.nak.due().is_some()
            || !self.replays.is_empty()
            || self.pending.front().is_some_and(waits)
    }

    /// Whether one acknowledgement is due, of one packet, and nothing else.
    pub(crate) fn only_acknowledges(&mut self, config: &Config) -> bool {
        self.acknowledges(config)
            && self.acknowledging.is_of_one()
            && self.pending.is_empty()
            && self.replays.is_empty()
            && self.nak.due().is_none()
    }

    /// Takes off what is done and needs no packet of its own.
    pub(super) fn pass_done(&mut self, config: &Config) {
        while let Some(pending) = self.pending.front() {
            if !matches!(pending.kind, PendingKind::Part) || pending.state != State::Done {
                break;
            }
            self.answered = pending.last + 1;
            self.messages = self.messages.wrapping_add(u32::from(pending.ends));
            let packets = (pending.last + 1 - pending.first) as u32;
            if pending.ask {
                self.acknowledging.make_due();
            }
            self.acknowledging.add(packets, config.acknowledge_every);
            self.pending.pop_front();
        }
    }

    fn oldest(
        &mut self,
        config: &Config,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        let Some(pending) = self.pending.front_mut() else {
            return self.negative(config, datagram);
        };
        let (first, state) = (pending.first, pending.state);
        match (state, &mut pending.kind) {
            (State::Refused(refusal), kind) => {
                // The PSN of a READ is that of the first answer it does not get (9.7.5.2.8).
                let psn = if let PendingKind::Read(reading) = kind { reading.next } else { first };
                let length = self.simple(config, datagram, psn, Syndrome::Refused(refusal))?;
                self.close(upper);
                self.standing = ResponderState::Refused(psn, refusal);
                self.refused = Some(refusal);
                Some(length)
            }
            (State::NotReady { nak_sent: false }, _) => {
                let syndrome = Syndrome::ReceiverNotReady(config.min_rnr_timer);
                let length = self.simple(config, datagram, first, syndrome)?;
                self.not_ready_said += 1;
                if let Some(pending) = self.pending.front_mut() {
                    pending.state = State::NotReady { nak_sent: true };
                }
                Some(length)
            }
            (_, PendingKind::Read(reading)) => {
                if self.starved {
                    return None;
                }
                let mut reading = *reading;
                if std::mem::take(&mut pending.ends) {
                    // A READ counts as soon as it is accepted (9.7.7.1).
                    self.messages = self.messages.wrapping_add(1);
                }
                match self.read_answer(config, datagram, &mut reading, upper) {
                    ReadResponse::Packet(length) => {
                        self.after_read(reading, upper);
                        Some(length)
                    }
                    ReadResponse::Nothing | ReadResponse::Behind => None,
                    ReadResponse::Refused(refusal) => {
                        self.standing = self.standing.closed();
                        if let Some(pending) = self.pending.front_mut() {
                            pending.state = State::Refused(refusal);
                        }
                        self.oldest(config, datagram, upper)
                    }
                }
            }
            (State::Done, PendingKind::Once(executed)) => {
                let executed = *executed;
                if std::mem::take(&mut pending.ends) {
                    self.messages = self.messages.wrapping_add(1);
                }
                let length = self.once_answer(config, datagram, first, executed)?;
                self.pending.pop_front();
                self.answered = first + 1;
                self.acknowledging.implied();
                Some(length)
            }
            _ => None,
        }
    }

    fn after_read(&mut self, reading: ReadInProgress, upper: &mut impl UpperLayer) {
        if reading.next > reading.last {
            upper.release(reading.ticket);
            self.pending.pop_front();
            self.answered = reading.last + 1;
            self.acknowledging.implied();
        } else if let Some(pending) = self.pending.front_mut() {
            pending.kind = PendingKind::Read(reading);
        }
    }

    /// What is to be said of the packet expected; everything before it is answered.
    fn negative(&mut self, config: &Config, datagram: &mut [u8]) -> Option<usize> {
        let negative = self.nak.due()?;
        let syndrome = match negative {
            NakKind::Sequence => Syndrome::SequenceError,
            NakKind::NotReady => Syndrome::ReceiverNotReady(config.min_rnr_timer),
        };
        let length = self.simple(config, datagram, self.expected, syndrome)?;
        self.nak = Nak::Withheld;
        if negative == NakKind::NotReady {
            self.not_ready_said += 1;
            self.receive = self.receive.missed();
        }
        Some(length)
    }

    fn header(&self, config: &Config, operation: Code, psn: Sequence) -> (Opcode, Bth) {
        let code = Opcode::new(config.service, operation);
        (code, Bth::new(code.to_byte(), config.destination, psn.psn()))
    }

    fn simple(
        &self,
        config: &Config,
        datagram: &mut [u8],
        psn: Sequence,
        syndrome: Syndrome,
    ) -> Option<usize> {
        let (code, bth) = self.header(config, Code::Acknowledge, psn);
        let aeth = Aeth::new(syndrome, self.messages);
        Some(Builder::new(datagram, code, bth, 0)?.header(aeth).finish())
    }

    fn once_answer(
        &self,
        config: &Config,
        datagram: &mut [u8],
        psn: Sequence,
        executed: OnceResult,
    ) -> Option<usize> {
        let (operation, original) = match executed {
            OnceResult::Found(original) => {
                (Code::AtomicAcknowledge, Some(AtomicAckEth::new(original)))
            }
            OnceResult::Silently => (Code::ReadResponse { place: PacketPosition::Only }, None),
        };
        let (code, bth) = self.header(config, operation, psn);
        let aeth = Aeth::new(Syndrome::Ack(CREDITS_INVALID), self.messages);
        let builder = Builder::new(datagram, code, bth, 0)?;
        Some(builder.header(aeth).maybe(original).finish())
    }

    fn read_answer(
        &mut self,
        config: &Config,
        datagram: &mut [u8],
        reading: &mut ReadInProgress,
        upper: &mut impl UpperLayer,
    ) -> ReadResponse {
        let index = reading.next - reading.base;
        let bytes = segmentation::payload(reading.length, config.path_mtu, index);
        // With a syndrome in each of them, all packets are equally long.
        let begins = config.naming == AddressedPackets::Every || reading.next == reading.begin;
        let place = PacketPosition::new(begins, reading.next == reading.last);
        let (code, bth) = self.header(config, Code::ReadResponse { place }, reading.next);
        let aeth = Aeth::new(Syndrome::Ack(CREDITS_INVALID), self.messages);
        let Some(builder) = Builder::new(datagram, code, bth, bytes) else {
            return ReadResponse::Nothing;
        };
        let mut builder = builder.maybe(code.has_aeth().then_some(aeth));
        if bytes > 0 {
            let offset = index * config.path_mtu as u64;
            match upper.fetch(reading.ticket, offset, builder.payload()) {
                FetchOutcome::Filled => {}
                FetchOutcome::Later => {
                    self.starved = true;
                    return ReadResponse::Nothing;
                }
                FetchOutcome::Behind => return ReadResponse::Behind,
                FetchOutcome::Refused(refusal) => return ReadResponse::Refused(refusal),
            }
        }
        reading.next += 1;
        ReadResponse::Packet(builder.finish())
    }
}
