//! Implements a reliable connection: joins requester, responder and congestion notification.

use crate::congestion::Congestion;
use crate::delay_notice::DelayMeter;
use crate::operation_rate_permit::OperationPermit;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::snapshot::{ConnectionSnapshot, RequesterSnapshot, ResponderSnapshot, SnapshotError};
use crate::upper_layer::{LateAnswer, RunOutcome, Ticket, UpperLayer};
use crate::work_request::{Event, Request, Status, SubmitError};
use crate::{Acknowledgements, Config, ConfigError, DelayNotices, Time};
use omniverb_terms::{Psn, Service};
use omniverb_wire::{Class, Operation, Packet, WriteRun, write_delay, write_notification};

/// A peer is told of congestion at most this often (A17.9.3 leaves it open).
const NOTIFY_EVERY: Time = 50_000;

/// Who asks for what the layer above has not answered is told that this will take so long.
const LATE: Time = 10_000_000;

/// A time as delay notices have it.
fn microseconds(time: Time) -> u32 {
    u32::try_from(time / 1000).unwrap_or(u32::MAX)
}

/// A packet to send: so many bytes of the buffer, the last four of which await the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of the datagram, the four of the ICRC included.
    pub length: usize,
    /// It is a congestion notification: such packets travel in a class of their own.
    pub is_notification: bool,
}

/// What the IP header says of congestion on the way (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Nothing, or that it could say so.
    Unmarked,
    /// "Congestion experienced".
    CongestionExperienced,
}

impl Ecn {
    /// From the two bits of the IP header.
    pub fn of(bits: u8) -> Ecn {
        if bits & 3 == 3 { Ecn::CongestionExperienced } else { Ecn::Unmarked }
    }
}

/// What a QP learns when it goes to RTS; see [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SendParameters {
    pub sq_psn: Psn,
    pub max_rd_atomic: usize,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
}

/// What there is to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// PSNs sent again.
    pub resent: u64,
    /// Request packets that had been taken before.
    pub duplicates: u64,
    /// Gaps before request packets, each counted once.
    pub out_of_order: u64,
    /// RNR NAKs received.
    pub not_ready_heard: u64,
    /// RNR NAKs sent.
    pub not_ready_said: u64,
    /// NAKs received that told of a gap in what was sent.
    pub gaps_heard: u64,
    /// Times that sending began anew, for want of an answer or after such a NAK.
    pub retries: u64,
    /// Packets that may be under way now.
    pub window: u64,
}

/// One end of a reliable connection.
pub struct Connection {
    config: Config,
    requester: Requester,
    responder: Responder,
    /// A notification is to be sent.
    notify: bool,
    notified: Option<Time>,
    /// Whose turn it is when both halves have packets.
    answered_last: bool,
    /// A request packet was let in front of the acknowledgement that is due.
    let_by: bool,
    /// What the peer knows of answers that wait.
    delays: DelayMeter,
    /// Requests of the peer are not looked at, and none are sent: another end is to go on.
    rests: bool,
}

impl Connection {
    /// A connection in the state RTS, or in RTR if [`Connection::ready_to_send`] follows.
    pub fn new(config: Config) -> Result<Connection, ConfigError> {
        config.check()?;
        Ok(Connection {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            config,
            notify: false,
            notified: None,
            answered_last: false,
            let_by: false,
            delays: DelayMeter::default(),
            rests: false,
        })
    }

    /// The QP goes from RTR to RTS: only now are the attributes of the sending half known. Nothing
    /// may have been submitted. What the peer sent before stays as it is.
    pub fn ready_to_send(&mut self, sending: &SendParameters) {
        self.config.sq_psn = sending.sq_psn;
        self.config.max_rd_atomic = sending.max_rd_atomic;
        self.config.timeout = sending.timeout;
        self.config.retry_count = sending.retry_count;
        self.config.rnr_retry = sending.rnr_retry;
        if self.requester.queued() == 0 {
            self.requester = Requester::new(&self.config);
        }
    }

    /// Another timer for peers that find no receive (a QP may change it at any time).
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.config.min_rnr_timer = code;
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        self.requester.submit(&self.config, request)
    }

    /// Whether the next operation may begin.
    pub fn operations(&mut self) -> &mut OperationPermit {
        &mut self.requester.operations
    }

    /// Requests that are not over.
    pub fn queued(&self) -> usize {
        self.requester.queued()
    }

    /// Takes a packet addressed to this QP from its peer's address, with a good ICRC.
    pub fn handle_packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        ecn: Ecn,
        upper: &mut impl UpperLayer,
    ) {
        let opcode = packet.opcode();
        match opcode.class {
            Class::Notification => {
                match packet.delay() {
                    Some(delay) if self.hears_notice(delay) => {
                        self.requester.delayed(now, &self.config, Time::from(delay) * 1000)
                    }
                    Some(_) => {}
                    None => self.requester.congestion.on_notification(now),
                }
                return;
            }
            class if class == Class::of(self.config.service) => {}
            Class::Service(_) => return,
        }
        if !packet.bth().is_in_default_partition() {
            return;
        }
        let congested = ecn == Ecn::CongestionExperienced;
        if congested && self.notified.is_none_or(|time| now >= time + NOTIFY_EVERY) {
            self.notify = true;
            self.notified = Some(now);
        }
        match opcode.operation {
            operation if operation.is_response() => {
                self.requester.handle_response(now, &self.config, packet, upper);
            }
            Operation::Notification => {}
            // It asks, and is not asked (A14).
            _ if self.config.service == Service::XrcSend => {}
            _ if self.rests => {}
            _ => self.responder.handle_request(&self.config, packet, upper),
        }
    }

    /// Only who agreed on notices says them, and who knows us better than we know it: since it has
    /// named what is left of a WRITE, or, where it only sends, since it is waited for in vain and
    /// says that it is there. For as long as it answers in time nobody is made to wait by them.
    fn hears_notice(&self, delay: u32) -> bool {
        self.config.delay_notices == DelayNotices::Agreed
            || self.responder.has_named()
            || delay > 0 && self.requester.has_retried(&self.config)
    }

    /// Takes packets that follow each other, as if each came by itself. If it takes nothing, each
    /// has to.
    pub fn handle_run(&mut self, run: &WriteRun<'_>, upper: &mut impl UpperLayer) -> RunOutcome {
        if self.rests {
            return RunOutcome::Nothing;
        }
        self.responder.handle_run(&self.config, run, upper)
    }

    /// Writes the next packet to send into `datagram`, which must hold
    /// [`omniverb_wire::DATAGRAM_MAX`] bytes. `None`: nothing to send before the next call of one
    /// of the other functions.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<Transmit> {
        if self.notify {
            self.notify = false;
            let length = write_notification(datagram, self.config.destination)?;
            return Some(Transmit { length, is_notification: true });
        }
        if let Some(length) = self.tell_late(now, datagram) {
            return Some(Transmit { length, is_notification: false });
        }
        if let Some(length) = self.tell_ready(datagram) {
            return Some(Transmit { length, is_notification: false });
        }
        let Connection { config, requester, responder, .. } = self;
        if self.rests {
            let length = responder.transmit(config, datagram, upper)?;
            return Some(Transmit { length, is_notification: false });
        }
        // An acknowledgement goes first: programs rely on their send being complete when what
        // answers it arrives. Where the peer takes it in first it may be second, so that both are
        // one system call.
        let requests_first = if responder.acknowledges(config) {
            let behind = config.acknowledgements == Acknowledgements::Behind;
            let by = behind && !self.let_by && requester.has_long_packet();
            self.let_by = by;
            by
        } else {
            self.let_by = false;
            self.answered_last
        };
        let length = if requests_first {
            let length = requester.transmit(now, config, datagram, upper);
            self.answered_last = length.is_none();
            length.or_else(|| responder.transmit(config, datagram, upper))
        } else {
            let length = responder.transmit(config, datagram, upper);
            self.answered_last = length.is_some();
            length.or_else(|| requester.transmit(now, config, datagram, upper))
        };
        Some(Transmit { length: length?, is_notification: false })
    }

    /// Writes up to `count` packets more behind the one that [`Connection::poll_transmit`] has just
    /// written to the beginning of `datagrams`, in so many bytes, if they are like it. How many.
    pub fn poll_alike(
        &mut self,
        now: Time,
        datagrams: &mut [u8],
        length: usize,
        count: usize,
        upper: &mut impl UpperLayer,
    ) -> usize {
        // Answers take turns with requests.
        let count = if self.rests || self.responder.has_answers() { 0 } else { count };
        self.requester.transmit_alike(now, &self.config, datagrams, length, count, upper)
    }

    /// Nothing may be sent for `wait`, because of a rate limit. Writes a packet all the same, that
    /// tells the peer, if there are answers that it should not take for lost, and it can be told.
    pub fn poll_delay(&mut self, now: Time, wait: Time, datagram: &mut [u8]) -> Option<usize> {
        let Connection { config, responder, delays, .. } = self;
        let agreed = config.delay_notices == DelayNotices::Agreed;
        let matters = agreed && wait >= config.early_timeout / 2;
        if !matters || !responder.acknowledges(config) && !responder.has_answers() {
            return None;
        }
        let patience = delays.tell(now, wait, responder.duplicates)?;
        write_delay(datagram, config.destination, microseconds(patience))
    }

    /// The layer above takes its time, and the peer asks whether anybody is here: it is told so, if
    /// it can be.
    fn tell_late(&mut self, now: Time, datagram: &mut [u8]) -> Option<usize> {
        let Connection { config, responder, delays, .. } = self;
        if !responder.take_asked_again() || config.delay_notices == DelayNotices::Unknown {
            return None;
        }
        let patience = delays.tell(now, LATE, responder.duplicates)?;
        write_delay(datagram, config.destination, microseconds(patience))
    }

    /// There is a receive that the peer was told is missing, and it need not wait for its timer.
    fn tell_ready(&mut self, datagram: &mut [u8]) -> Option<usize> {
        let agreed = self.config.delay_notices == DelayNotices::Agreed;
        if self.responder.take_ready_again() && agreed {
            write_delay(datagram, self.config.destination, 0)
        } else {
            None
        }
    }

    /// Whether the only thing to send is an acknowledgement, which an answer of the application
    /// might take along ([`Acknowledgements::Behind`]).
    pub fn may_wait(&mut self) -> bool {
        self.config.acknowledgements == Acknowledgements::Behind
            && !self.notify
            && !self.requester.has_unsent()
            && self.responder.only_acknowledges(&self.config)
    }

    /// The next thing that the layer above is to learn, each once; `None`: nothing new.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.requester.poll_event().or_else(|| self.responder.take_refusal().map(Event::Refused))
    }

    /// When to call [`Connection::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.requester.timeout().filter(|_| !self.rests)
    }

    /// The time that was asked for has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if !self.rests {
            self.requester.handle_timeout(now, &self.config);
        }
    }

    /// The answer to something handed over.
    pub fn answer(&mut self, ticket: Ticket, answer: LateAnswer) {
        self.responder.answer(&self.config, ticket, answer);
    }

    /// All parts of messages up to this ticket are done.
    pub fn done_through(&mut self, ticket: Ticket) {
        self.responder.done_through(ticket);
    }

    /// The layer above has a receive, after it said [`crate::Delivery::NotReady`].
    pub fn receive_came(&mut self) {
        self.responder.receive_came();
    }

    /// The layer above has bytes, or room, that it lacked.
    pub fn resume(&mut self, now: Time) {
        self.requester.resume(now, &self.config);
        self.responder.resume();
    }

    /// The QP goes to the error state: all requests end, nothing is taken or sent any more.
    pub fn close(&mut self, upper: &mut impl UpperLayer) {
        self.requester.fail(Status::Flushed);
        self.responder.close(upper);
        self.notify = false;
    }

    /// What this end asks for is over, and nobody is told. True: it has refused something, and will
    /// say so again to who asks again; it has nothing else to do.
    pub fn end_requests(&mut self) -> bool {
        self.requester.fail(Status::Flushed);
        while self.requester.poll_event().is_some() {}
        self.notify = false;
        self.responder.has_refused()
    }

    /// Nothing more is taken from the peer but answers, as if it were lost on the way, and nothing
    /// more is asked of it: soon all that was taken is answered, and another end can go on.
    pub fn rest(&mut self) {
        self.rests = true;
    }

    /// The state, for another end to go on with; nothing may be asked of this one afterwards.
    /// `None`: the layer above has to answer a READ or an atomic, or the connection is ending, or
    /// events are left.
    pub fn snapshot(&mut self) -> Option<ConnectionSnapshot> {
        let responder = self.responder.snapshot(&self.config)?;
        Some(ConnectionSnapshot { responder, requester: self.requester.snapshot()? })
    }

    /// The oldest request that is not over.
    pub fn oldest_request(&self) -> Option<&Request> {
        self.requester.oldest()
    }

    /// The receiving half, of a connection that has taken nothing, goes on where another has ended.
    pub fn restore_responder(&mut self, state: &ResponderSnapshot) -> Result<(), SnapshotError> {
        self.responder.restore(&self.config, state)
    }

    /// Likewise the sending half, after [`Connection::ready_to_send`]. What was under way is then
    /// submitted again, and [`Connection::resume_sent`] follows before anything else.
    pub fn restore_requester(&mut self, state: &RequesterSnapshot) -> Result<(), SnapshotError> {
        self.requester.restore(&self.config, state)
    }

    /// What was submitted since [`Connection::restore_requester`] was sent before, as far as this
    /// state says so.
    pub fn resume_sent(&mut self, state: &RequesterSnapshot) -> Result<(), SnapshotError> {
        self.requester.resume_sent(&self.config, state)
    }

    /// Counted since the connection was made, but for the window, which is that of now.
    pub fn counters(&self) -> Counters {
        let window = Congestion::window(&self.requester.congestion);
        Counters {
            resent: self.requester.resent,
            duplicates: self.responder.duplicates,
            out_of_order: self.responder.out_of_order,
            not_ready_heard: self.requester.not_ready_heard,
            not_ready_said: self.responder.not_ready_said,
            gaps_heard: self.requester.gaps_heard,
            retries: self.requester.retried,
            window: window.min(self.config.window),
        }
    }
}
