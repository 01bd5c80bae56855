//! The responder of a reliable connection (9.9.3): request packets in, response packets out.
//!
//! Packets are taken in order and handed to the layer above at once. Answers leave in the same
//! order (9.7.5.1), whenever the layer above has given its own, so what was taken and is not
//! answered waits in `pending`. What a requester asks for a second time is answered from `replays`,
//! before anything newer.

mod ack_coalescing;
mod duplicate_request;
mod execute;
mod nak_and_receive_state;
mod response;
mod snapshot;
mod write_packet_run;

use ack_coalescing::AckCoalescer;
use nak_and_receive_state::{DroppedFor, Nak, NakKind, Receive, ResponderState};

pub(crate) use execute::{length_fits, part};

use crate::unwrapped_psn::Sequence;
use crate::upper_layer::{LateAnswer, Ticket, UpperLayer};
use crate::{Config, GoneReads};
use omniverb_terms::{Refusal, Rkey};
use omniverb_wire::{Packet, PacketPosition};
use std::collections::VecDeque;

/// Where in a message the requester is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    None,
    Send { offset: u64 },
    Write { address: u64, key: Rkey, total: u64, offset: u64 },
}

/// Something taken, and not answered to the requester.
#[derive(Debug)]
struct Pending {
    first: Sequence,
    last: Sequence,
    ticket: Ticket,
    /// The requester asked for an acknowledgement.
    ask: bool,
    /// A message ends with it.
    ends: bool,
    state: State,
    kind: PendingKind,
}

/// What ends with a packet that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndOfMessage {
    Message,
    Nothing,
}

impl EndOfMessage {
    fn with(place: PacketPosition) -> EndOfMessage {
        if place.ends() { EndOfMessage::Message } else { EndOfMessage::Nothing }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The layer above has not answered.
    Waiting,
    Done,
    /// It lacks a receive.
    NotReady {
        nak_sent: bool,
    },
    Refused(Refusal),
}

#[derive(Debug)]
enum PendingKind {
    Part,
    Read(ReadInProgress),
    /// Executed once; the answer, or what is known of it before it is executed.
    Once(OnceResult),
}

/// What is said of something that is executed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnceResult {
    /// An atomic found this.
    Found(u64),
    /// It is done: an ATOMIC WRITE, a FLUSH (A19).
    Silently,
}

impl OnceResult {
    /// With the value that was found, if one is said.
    fn with(self, value: u64) -> OnceResult {
        match self {
            OnceResult::Found(_) => OnceResult::Found(value),
            OnceResult::Silently => OnceResult::Silently,
        }
    }
}

/// A READ being answered.
#[derive(Clone, Copy, Debug)]
struct ReadInProgress {
    ticket: Ticket,
    /// PSN that offset 0 of the ticket has.
    base: Sequence,
    /// The next PSN to send.
    next: Sequence,
    last: Sequence,
    /// The PSN of the first answer to this request: FIRST or ONLY.
    begin: Sequence,
    length: u64,
}

/// Something answered again.
#[derive(Debug)]
enum RepeatedResponse {
    Read(ReadInProgress),
    Once {
        psn: Sequence,
        executed: OnceResult,
    },
    /// A READ whose memory is gone, from this PSN on, and its last PSN.
    Gone {
        psn: Sequence,
        last: Sequence,
    },
}

/// What is remembered of READs, atomics and FLUSHes, to answer them again (9.4.4, 9.4.5.1).
#[derive(Clone, Copy, Debug)]
struct RememberedRequest {
    first: Sequence,
    last: Sequence,
    kind: RememberedKind,
}

#[derive(Clone, Copy, Debug)]
enum RememberedKind {
    Read {
        address: u64,
        key: Rkey,
        length: u64,
    },
    /// `None`: not executed yet.
    Once {
        executed: Option<OnceResult>,
    },
}

/// The receiving half of a connection.
pub(crate) struct Responder {
    expected: Sequence,
    /// Everything before it is answered.
    answered: Sequence,
    /// Messages completed: the MSN of acknowledgements, 24 bits of it (9.7.7.1).
    messages: u32,
    message: Message,
    /// The requester has named what is left of a WRITE in the middle of it, as only another of
    /// this kind does.
    named: bool,
    tickets: u64,
    pending: VecDeque<Pending>,
    replays: VecDeque<RepeatedResponse>,
    memories: VecDeque<RememberedRequest>,
    nak: Nak,
    receive: Receive,
    dropped: DroppedFor,
    /// The bytes of the READ to answer next are not there; wait for news.
    starved: bool,
    acknowledging: AckCoalescer,
    standing: ResponderState,
    /// The refusal that the requester was told, until the layer above knows of that.
    refused: Option<Refusal>,
    /// The requester asks again for what the layer above has not answered.
    asked_again: bool,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    pub(crate) not_ready_said: u64,
}

impl Responder {
    pub(crate) fn new(config: &Config) -> Responder {
        let start = Sequence::first(config.rq_psn);
        Responder {
            expected: start,
            answered: start,
            messages: 0,
            message: Message::None,
            named: false,
            tickets: 0,
            pending: VecDeque::new(),
            replays: VecDeque::new(),
            memories: VecDeque::new(),
            nak: Nak::None,
            receive: Receive::NotMissed,
            dropped: DroppedFor::No,
            starved: false,
            acknowledging: AckCoalescer::default(),
            standing: ResponderState::Takes,
            refused: None,
            asked_again: false,
            duplicates: 0,
            out_of_order: 0,
            not_ready_said: 0,
        }
    }

    /// Takes a request packet. Its PSN is looked at first (9.7.4.1).
    pub(crate) fn handle_request(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        let psn = self.expected.nearest(packet.bth().psn());
        if self.standing != ResponderState::Takes {
            if psn < self.expected {
                self.standing = self.standing.asked_again();
            }
            return;
        }
        if psn > self.expected {
            // Once per gap (9.7.5.2.8).
            if self.nak == Nak::None {
                self.out_of_order += 1;
                self.nak = Nak::Due(NakKind::Sequence);
            }
        } else if psn < self.expected {
            self.duplicates += 1;
            self.duplicate(config, psn, packet, upper);
        } else {
            self.clear_naks();
            self.execute(config, packet, upper);
        }
    }

    /// What is expected has come.
    fn clear_naks(&mut self) {
        (self.nak, self.receive) = (Nak::None, Receive::NotMissed);
    }

    fn new_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// A late answer of the layer above.
    pub(crate) fn answer(&mut self, config: &Config, ticket: Ticket, answer: LateAnswer) {
        let found = self.pending.partition_point(|pending| pending.ticket < ticket);
        let Some(pending) = self.pending.get_mut(found).filter(|p| p.ticket == ticket) else {
            self.answer_again(config, ticket, answer);
            return;
        };
        if matches!(pending.state, State::Done | State::Refused(_)) {
            return;
        }
        match (answer, &mut pending.kind) {
            (LateAnswer::Done, PendingKind::Part) => pending.state = State::Done,
            (LateAnswer::Original(value), PendingKind::Once(executed)) => {
                *executed = executed.with(value);
                pending.state = State::Done;
                let (first, executed) = (pending.first, *executed);
                self.remember_result(first, executed);
            }
            (LateAnswer::NotReady, PendingKind::Part) if pending.state == State::Waiting => {
                pending.state = State::NotReady { nak_sent: false };
            }
            (LateAnswer::Refused(refusal), _) => {
                pending.state = State::Refused(refusal);
                self.standing = self.standing.closed();
            }
            (LateAnswer::Gone, PendingKind::Read(_)) => {
                pending.state = State::Refused(Refusal::RemoteAccess);
                self.standing = self.standing.closed();
            }
            _ => {}
        }
    }

    /// A READ that is answered again has no answer now. Nothing is wrong with this end: who had
    /// the answer meanwhile hears of something that is over, and who lacks it learns why. To whom
    /// that may be something else nothing is said (9.9.3).
    fn answer_again(&mut self, config: &Config, ticket: Ticket, answer: LateAnswer) {
        if !matches!(answer, LateAnswer::Refused(_) | LateAnswer::Gone) {
            return;
        }
        let is_it = |replay: &RepeatedResponse| match replay {
            RepeatedResponse::Read(read) => read.ticket == ticket,
            _ => false,
        };
        let Some(index) = self.replays.iter().position(is_it) else { return };
        self.starved = false;
        if let Some(RepeatedResponse::Read(ReadInProgress { next, last, .. })) =
            self.replays.remove(index)
            && config.gone_reads == GoneReads::Refused
        {
            self.replays.insert(index, RepeatedResponse::Gone { psn: next, last });
        }
    }

    /// Everything up to this ticket is done.
    pub(crate) fn done_through(&mut self, ticket: Ticket) {
        for pending in self.pending.iter_mut().take_while(|pending| pending.ticket <= ticket) {
            if matches!(pending.kind, PendingKind::Part)
                && matches!(pending.state, State::Waiting | State::NotReady { .. })
            {
                pending.state = State::Done;
            }
        }
    }

    /// The layer above has room, or bytes, again.
    pub(crate) fn resume(&mut self) {
        self.starved = false;
        if self.dropped.for_room_above() {
            self.ask_to_go_on();
        }
    }

    /// The layer above has a receive, which it lacked.
    pub(crate) fn receive_came(&mut self) {
        self.receive = self.receive.came(self.nak);
    }

    /// Whether the requester has shown that it is of our kind, in the order of what it sends: so
    /// whoever sees it is believed to be the requester.
    pub(crate) fn has_named(&self) -> bool {
        self.named
    }

    /// Whether the requester was told that there is no receive, and there is one. Once.
    pub(crate) fn take_ready_again(&mut self) -> bool {
        let ready = self.receive == Receive::CameBack;
        if ready {
            self.receive = Receive::NotMissed;
        }
        ready
    }

    /// Tells the requester where to go on, rather than have it wait for its timer.
    fn ask_to_go_on(&mut self) {
        (self.dropped, self.nak) = (DroppedFor::No, Nak::Due(NakKind::Sequence));
    }

    /// Whether the requester asked again for what the layer above has not answered, since the last
    /// call.
    pub(crate) fn take_asked_again(&mut self) -> bool {
        std::mem::take(&mut self.asked_again)
    }

    /// Whether the requester has been told of a refusal.
    pub(crate) fn has_refused(&self) -> bool {
        matches!(self.standing, ResponderState::Refused(..) | ResponderState::AskedAgain(..))
    }

    /// The refusal, after the requester was told.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    /// Nothing is taken or answered any more.
    pub(crate) fn close(&mut self, upper: &mut impl UpperLayer) {
        self.standing = ResponderState::Closed;
        let readings = self.pending.drain(..).filter_map(|pending| match pending.kind {
            PendingKind::Read(reading) => Some(reading.ticket),
            _ => None,
        });
        readings.for_each(|ticket| upper.release(ticket));
        for replay in self.replays.drain(..) {
            if let RepeatedResponse::Read(reading) = replay {
                upper.release(reading.ticket);
            }
        }
        // Nor is the requester asked to go on with anything.
        (self.nak, self.receive, self.dropped) = (Nak::None, Receive::NotMissed, DroppedFor::No);
        self.acknowledging.stop();
    }

    fn remember(&mut self, config: &Config, memory: RememberedRequest) {
        if self.memories.len() >= config.max_dest_rd_atomic.max(1) {
            self.memories.pop_front();
        }
        self.memories.push_back(memory);
    }

    fn remember_result(&mut self, psn: Sequence, result: OnceResult) {
        for memory in &mut self.memories {
            if memory.first == psn
                && let RememberedKind::Once { executed } = &mut memory.kind
            {
                *executed = Some(result);
            }
        }
    }
}
