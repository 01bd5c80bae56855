//! Unreliable connection (9.8.2, 9.9.4): messages in order or not at all, no answers.

use crate::operation_rate_permit::OperationPermit;
use crate::requester::{OpenMessage, check};
use crate::responder::{length_fits, part};
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::{Delivery, GatherOutcome, Kind, Ticket, UpperLayer};
use crate::work_request::{Event, Operation, Request, Status, SubmitError};
use crate::{Config, ConfigError, MESSAGE_MAX, segmentation};
use omniverb_terms::{Psn, Refusal, Rkey, Service};
use omniverb_wire::{Bth, Operation as Code, Packet, PacketPosition};
use std::collections::VecDeque;

/// Where in a message the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    None,
    Send { offset: u64 },
    Write { address: u64, key: Rkey, total: u64, offset: u64 },
}

/// One end of an unreliable connection.
pub struct Unreliable {
    config: Config,
    requests: VecDeque<Request>,
    /// Packets of the oldest request that have left.
    index: u64,
    next: Sequence,
    starved: bool,
    /// Whether the next operation may begin.
    operations: OperationPermit,
    events: VecDeque<Event>,
    open: Option<OpenMessage>,
    expected: Sequence,
    message: Message,
    tickets: u64,
    closed: bool,
    /// Messages of the peer that were dropped.
    pub dropped: u64,
}

impl Unreliable {
    /// A connection in the state RTS.
    pub fn new(config: Config) -> Result<Unreliable, ConfigError> {
        config.check()?;
        Ok(Unreliable {
            requests: VecDeque::new(),
            index: 0,
            next: Sequence::first(config.sq_psn),
            starved: false,
            operations: OperationPermit::default(),
            events: VecDeque::new(),
            open: None,
            expected: Sequence::first(config.rq_psn),
            message: Message::None,
            tickets: 0,
            closed: false,
            dropped: 0,
            config,
        })
    }

    /// The QP goes from RTR to RTS: only now is the first PSN to send known. Nothing may have been
    /// submitted.
    pub fn ready_to_send(&mut self, sq_psn: Psn) {
        self.config.sq_psn = sq_psn;
        if self.requests.is_empty() {
            self.next = Sequence::first(sq_psn);
        }
    }

    /// Queues a SEND or WRITE, or a piece of one.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        if self.closed {
            return Err(SubmitError::Failed);
        }
        if self.requests.len() >= self.config.requests_max {
            return Err(SubmitError::Full);
        }
        match request.operation {
            Operation::Send { invalidate: None, .. } | Operation::Write { .. } => {}
            _ => return Err(SubmitError::Sequence),
        }
        // A message may break off: the receiver drops what it has of it when another one begins.
        let open = self.open.filter(|_| !request.place.begins());
        self.open = check(&request, open, self.config.path_mtu)?;
        self.requests.push_back(request);
        Ok(())
    }

    /// Whether the next operation may begin.
    pub fn operations(&mut self) -> &mut OperationPermit {
        &mut self.operations
    }

    /// Writes the next packet. A request is over when its last packet has left (9.8.2.2).
    pub fn poll_transmit(
        &mut self,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        if self.starved || self.closed {
            return None;
        }
        let request = *self.requests.front()?;
        let begins = self.index == 0 && request.place.begins();
        if begins && !self.operations.may_begin() {
            return None;
        }
        let mtu = self.config.path_mtu;
        let count = segmentation::packets(request.length, mtu);
        let position = (self.index, count);
        let header = |code| Bth::new(code, self.config.destination, self.next.psn());
        let mut builder =
            segmentation::begin(datagram, Service::Uc, &request, position, mtu, None, header)?;
        let payload = builder.payload();
        if !payload.is_empty() {
            match upper.gather(request.id, self.index * mtu as u64, payload) {
                GatherOutcome::Filled => {}
                GatherOutcome::Later => {
                    self.starved = true;
                    return None;
                }
                GatherOutcome::Failed => {
                    self.fail(Status::LocalProtection);
                    return None;
                }
            }
        }
        let length = builder.finish();
        if begins {
            self.operations.note_begun();
        }
        self.next += 1;
        self.index += 1;
        if self.index == count {
            self.index = 0;
            self.requests.pop_front();
            let (id, status) = (request.id, Status::Success);
            self.events.push_back(Event::Completed { id, status, original: None });
        }
        Some(length)
    }

    /// Ends all requests, the oldest with `status`.
    fn fail(&mut self, status: Status) {
        self.closed = true;
        let mut next = status;
        for request in self.requests.drain(..) {
            let id = request.id;
            self.events.push_back(Event::Completed { id, status: next, original: None });
            next = Status::Flushed;
        }
        if status != Status::Flushed {
            self.events.push_back(Event::Failed(status));
        }
    }

    /// Takes a packet addressed to this QP from its peer's address, with a good ICRC.
    pub fn handle_packet(&mut self, packet: &Packet<'_>, upper: &mut impl UpperLayer) {
        let partition = packet.bth().is_in_default_partition();
        if !packet.opcode().is_of(Service::Uc) || self.closed || !partition {
            return;
        }
        let psn = self.expected.nearest(packet.bth().psn());
        let place = match packet.opcode().operation {
            Code::Send { place, .. } | Code::Write { place, .. } => place,
            _ => return,
        };
        // After a gap the rest of the message is dropped, and the next one begins wherever it
        // begins (9.8.2.2.2).
        if psn != self.expected || place.begins() {
            self.abandon();
        }
        self.expected = psn + 1;
        if !self.take(packet, place, upper) {
            self.dropped += u64::from(place.begins());
            self.message = Message::None;
        }
    }

    fn abandon(&mut self) {
        self.dropped += u64::from(self.message != Message::None);
        self.message = Message::None;
    }

    /// False: the message is dropped.
    fn take(
        &mut self,
        packet: &Packet<'_>,
        place: PacketPosition,
        upper: &mut impl UpperLayer,
    ) -> bool {
        let length = packet.payload().len();
        if !length_fits(place, length, self.config.path_mtu) {
            return false;
        }
        let is_write = matches!(packet.opcode().operation, Code::Write { .. });
        let (kind, offset) = match (self.message, packet.reth()) {
            (Message::None, Some(reth)) => {
                let (address, key, total) = (reth.address(), reth.key(), reth.length().into());
                (Kind::Write { address, key, total }, 0)
            }
            (Message::Write { address, key, total, offset }, None) if is_write => {
                (Kind::Write { address, key, total }, offset)
            }
            (Message::None, None) if place.begins() => (Kind::Send, 0),
            (Message::Send { offset }, None) if !is_write => (Kind::Send, offset),
            _ => return false,
        };
        let after = offset + length as u64;
        let fits = match kind {
            Kind::Send => after <= MESSAGE_MAX,
            Kind::Write { total, .. } if place.ends() => after == total && total <= MESSAGE_MAX,
            Kind::Write { total, .. } => after < total && total <= MESSAGE_MAX,
        };
        if !fits {
            return false;
        }
        self.tickets += 1;
        let part = part(packet, kind, place, offset);
        match upper.deliver(Ticket(self.tickets), &part) {
            Delivery::Done | Delivery::Later => {}
            Delivery::NotReady | Delivery::Full | Delivery::Refused(_) => return false,
        }
        self.message = match kind {
            _ if place.ends() => Message::None,
            Kind::Send => Message::Send { offset: after },
            Kind::Write { address, key, total } => {
                Message::Write { address, key, total, offset: after }
            }
        };
        true
    }

    /// A late refusal by the layer above: the message was dropped, the QP of an unreliable
    /// connection does not fail for it.
    pub fn refused(&mut self, _ticket: Ticket, _refusal: Refusal) {
        self.abandon();
    }

    /// The next thing that the layer above is to learn, each once; `None`: nothing new.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The layer above has bytes that it lacked.
    pub fn resume(&mut self) {
        self.starved = false;
    }

    /// The QP goes to the error state.
    pub fn close(&mut self) {
        self.fail(Status::Flushed);
    }
}
