//! Serves an RC or UC queue pair: a link on one side, a transport connection on the other.

mod handover;

use crate::pacing::unreliable_message_window::PacketRoute;
use crate::pages::mapped_pages::MappedPages;
use crate::queue_pair::application::{Application, ApplicationState};
use crate::queue_pair::connection_parameters::{self, Terms, Trains};
use crate::queue_pair::outgoing_requests::Fate;
use crate::queue_pair::qp_stage::Stage;
use crate::queue_pair::unreliable_flow_control::{Leaves, MessagePacing};
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::{Broken, Endpoint};
use omniverb_terms::{Qpn, Refusal, Service};
use omniverb_transport::{
    Connection, Counters, Ecn, Event, LateAnswer, OperationPermit, RunOutcome, Status, Transmit,
    Unreliable,
};
use omniverb_wire::{Packet, WriteRun};

enum Transport {
    Rc(Box<Connection>),
    Uc(Box<Unreliable>, MessagePacing),
}

/// One queue pair.
pub struct Connected<P> {
    /// The layer above the transport: its end of the link.
    pub application: Application<P>,
    /// There from RTR on.
    transport: Option<Transport>,
    stage: Stage,
    service: Service,
    terms: Terms,
    qpn: Qpn,
    failure: Option<Status>,
    /// By a connection that has ended.
    counted: Counters,
    /// The application was not to ring when it was last listened to, but is now.
    unheard: bool,
    /// It is to ring since [`Self::take_rings_since`].
    rings_since: bool,
    /// Its requests stay in the ring.
    holds_requests: bool,
    /// Another host is to go on with it.
    rests: bool,
}

impl<P: MappedPages> Connected<P> {
    /// A queue pair whose application is at the other end of a link with request rings of
    /// `request_bytes`. `features`: bits of [`crate::peer_features`] that the peer has.
    #[must_use]
    pub fn new(
        mut endpoint: Endpoint,
        service: Service,
        (qpn, peer_qpn): (Qpn, Qpn),
        features: u32,
        request_bytes: usize,
        allowance: Allowance,
        trains: Trains,
    ) -> Connected<P> {
        // The application's requests complete when the network has acknowledged them.
        endpoint.publish_no_credits();
        endpoint.set_watched(false);
        endpoint.set_blocked(true);
        endpoint.open(0);
        let half = request_bytes as u64 / 2;
        Connected {
            // Records are a little longer than the packets they come from.
            application: Application::new(endpoint, service, half - half / 8, allowance),
            transport: None,
            stage: Stage::Receives,
            service,
            terms: Terms { peer_qpn, service, features, trains, window_bytes: half },
            qpn,
            failure: None,
            counted: Counters::default(),
            unheard: false,
            rings_since: true,
            holds_requests: false,
            rests: false,
        }
    }

    /// Whether packets can be taken: the application's QP is RTR.
    pub fn is_ready(&self) -> bool {
        self.transport.is_some()
    }

    /// Why the connection failed, once.
    pub fn take_failure(&mut self) -> Option<Status> {
        self.failure.take()
    }

    /// Looks at everything the application may have done. True: there is more than was taken.
    pub fn serve(&mut self, now: u64) -> bool {
        if self.stage.is_closed() {
            return false;
        }
        self.application.set_time(now);
        if self.application.has_closed() {
            self.leave(now);
        }
        let mut more = if matches!(self.stage, Stage::Leaving | Stage::Silent) {
            self.hear(now).map(|()| false)
        } else {
            self.come_up();
            if self.service == Service::Rc {
                self.application.offer_sources();
            }
            self.hear(now).and_then(|()| self.take_requests())
        };
        self.after();
        self.refuse_oldest();
        // It does not ring for what it did before it saw that it is to ring.
        if self.is_unheard() {
            more = more.and_then(|more| self.hear(now).map(|()| more));
            self.after();
        }
        match more {
            Ok(more) if !self.application.is_broken() => more && !self.stage.is_closed(),
            _ => {
                self.break_off();
                false
            }
        }
    }

    /// The application's QP is going. An RC peer still hears what was consumed and what was
    /// refused: it may wait for nothing else. UC finishes what it has to send.
    pub fn leave(&mut self, now: u64) {
        if self.service.is_reliable() && self.stage.leave() {
            let _ = self.hear(now);
        }
        if let Some(Transport::Uc(_, pacing)) = &mut self.transport {
            pacing.leave();
        }
    }

    /// Follows the application's QP through RTR and RTS.
    fn come_up(&mut self) {
        if self.rests {
            return;
        }
        if self.transport.is_none() && self.application.is_open() {
            let Some(receiving) = self.application.receiving() else { return };
            let config = self.terms.config(&receiving);
            let transport = match self.service {
                service if service.is_reliable() => {
                    Connection::new(config).map(|c| Transport::Rc(Box::new(c)))
                }
                _ => Unreliable::new(config).map(|c| Transport::Uc(Box::new(c), self.pacing())),
            };
            // The one fault a configuration can have is a wrong MTU, and it cannot be wrong.
            self.transport = transport.ok();
        }
        if self.stage == Stage::Receives
            && let Some(sending) = self.application.sending()
        {
            match &mut self.transport {
                Some(Transport::Rc(connection)) => {
                    connection.ready_to_send(&connection_parameters::requesting(&sending));
                }
                Some(Transport::Uc(connection, _)) => connection.ready_to_send(sending.sq_psn),
                None => return,
            }
            self.stage = Stage::Sends;
        }
    }

    fn pacing(&self) -> MessagePacing {
        MessagePacing::new((self.qpn, self.terms.peer_qpn), self.terms.features)
    }

    /// Passes on what the application said, and that it has made room.
    fn hear(&mut self, now: u64) -> Result<(), Broken> {
        self.unheard = false;
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let stuck = self.application.take_stuck()?;
        match transport {
            Transport::Rc(connection) => {
                let hear = |said| match said {
                    ApplicationState::Consumed(ticket) => connection.done_through(ticket),
                    ApplicationState::NotReady(ticket) => {
                        connection.answer(ticket, LateAnswer::NotReady)
                    }
                    ApplicationState::Refused(ticket, why) => {
                        connection.answer(ticket, LateAnswer::Refused(why))
                    }
                    ApplicationState::Gone(ticket) => connection.answer(ticket, LateAnswer::Gone),
                    ApplicationState::Original(ticket, value) => {
                        connection.answer(ticket, LateAnswer::Original(value));
                    }
                };
                self.application.listen(hear)?;
                if stuck {
                    connection.resume(now);
                }
                if self.application.receive_came() {
                    connection.receive_came();
                }
            }
            Transport::Uc(connection, _) => {
                self.application.listen(|_| {})?;
                self.application.flush_backlog(now)?;
                if stuck {
                    connection.resume();
                }
            }
        }
        self.application.flush_answers()
    }

    fn take_requests(&mut self) -> Result<bool, Broken> {
        // A receiving end of a domain sends no requests.
        let is_silent = self.holds_requests || self.rests || self.service == Service::XrcRecv;
        if self.stage != Stage::Sends || is_silent {
            return Ok(false);
        }
        match &mut self.transport {
            Some(Transport::Rc(connection)) => {
                self.application.take_requests(|request| connection.submit(request))
            }
            Some(Transport::Uc(connection, _)) => {
                self.application.take_requests(|request| connection.submit(request))
            }
            None => Ok(false),
        }
    }

    /// A packet from the peer.
    pub fn packet(&mut self, now: u64, packet: &Packet<'_>, ecn: Ecn) {
        self.application.set_time(now);
        match &mut self.transport {
            Some(Transport::Rc(connection)) => {
                connection.handle_packet(now, packet, ecn, &mut self.application);
                // The result of an atomic goes before the data of a READ behind it.
                self.tell();
            }
            Some(Transport::Uc(_, pacing)) if packet.opcode().is_notification() => {
                pacing.on_notification(now, packet);
            }
            Some(Transport::Uc(connection, pacing)) => {
                pacing.on_packet(packet.bth());
                connection.handle_packet(packet, &mut self.application);
            }
            None => {}
        }
    }

    /// Packets from the peer that follow each other. False: they have to come one by one.
    pub fn take_run(&mut self, now: u64, run: &WriteRun<'_>) -> bool {
        self.application.set_time(now);
        match &mut self.transport {
            Some(Transport::Rc(connection)) => {
                connection.handle_run(run, &mut self.application) == RunOutcome::All
            }
            _ => false,
        }
    }

    /// The time that was asked for has come.
    pub fn timeout(&mut self, now: u64) {
        self.application.expire(now);
        if let Some(Transport::Rc(connection)) = &mut self.transport {
            connection.handle_timeout(now);
        }
    }

    /// When to call `timeout`.
    pub fn next_timeout(&self) -> Option<u64> {
        let transport = match &self.transport {
            Some(Transport::Rc(connection)) => connection.poll_timeout(),
            Some(Transport::Uc(_, pacing)) => pacing.due(),
            None => None,
        };
        transport.into_iter().chain(self.application.due()).min()
    }

    /// Whether something waits for the application.
    pub fn waits(&self) -> bool {
        !self.stage.is_closed() && self.application.waits()
    }

    /// Whether all that is to be sent is an acknowledgement that might travel with what the
    /// application is about to say.
    pub fn may_wait(&mut self) -> bool {
        match &mut self.transport {
            Some(Transport::Rc(connection)) => {
                matches!(self.stage, Stage::Receives | Stage::Sends | Stage::Closed)
                    && connection.may_wait()
            }
            _ => false,
        }
    }

    /// Whether the next operation may begin; `None`: there is no connection yet, or any more.
    pub fn operations(&mut self) -> Option<&mut OperationPermit> {
        match self.transport.as_mut()? {
            Transport::Rc(connection) => Some(connection.operations()),
            Transport::Uc(connection, _) => Some(connection.operations()),
        }
    }

    /// Packets from now on take this route. RC puts them in order itself.
    pub fn take_way(&mut self, way: PacketRoute) {
        if let Some(Transport::Uc(_, pacing)) = &mut self.transport {
            pacing.take_way(way);
        }
    }

    /// Writes the next packet.
    pub fn transmit(&mut self, now: u64, datagram: &mut [u8]) -> Option<usize> {
        match self.transport.as_mut()? {
            Transport::Rc(connection) => {
                let mut sent = connection.poll_transmit(now, datagram, &mut self.application);
                if matches!(self.stage, Stage::Leaving | Stage::Silent) && sent.is_none() {
                    // The last data of a READ may have stood in front of a refusal.
                    sent = self.last_words(now, datagram);
                    self.stage = if sent.is_none() { Stage::Silent } else { Stage::Leaving };
                }
                sent.map(|sent| sent.length)
            }
            Transport::Uc(connection, pacing) => {
                match pacing.next(now, self.application.backlog(), datagram) {
                    Leaves::Message => {}
                    Leaves::Notice(length) => return Some(length),
                    Leaves::Nothing => return None,
                }
                let length = connection.poll_transmit(datagram, &mut self.application)?;
                pacing.on_send(&mut datagram[..length]);
                Some(length)
            }
        }
    }

    /// Writes a packet that tells the peer that nothing can leave for `wait`, if it should know.
    pub fn delay(&mut self, now: u64, wait: u64, datagram: &mut [u8]) -> Option<usize> {
        match self.transport.as_mut()? {
            Transport::Rc(connection) => connection.poll_delay(now, wait, datagram),
            Transport::Uc(..) => None,
        }
    }

    /// Hears what the application said before it left, as far as nothing stands in front of it any
    /// more, and writes what follows from it.
    fn last_words(&mut self, now: u64, datagram: &mut [u8]) -> Option<Transmit> {
        self.hear(now).ok()?;
        let Some(Transport::Rc(connection)) = &mut self.transport else { return None };
        connection.poll_transmit(now, datagram, &mut self.application)
    }

    /// Writes up to `count` packets like the one that was written last, which is the first `length`
    /// bytes of `datagrams`, behind it. How many.
    pub fn transmit_alike(
        &mut self,
        now: u64,
        datagrams: &mut [u8],
        length: usize,
        count: usize,
    ) -> usize {
        match &mut self.transport {
            Some(Transport::Rc(connection)) => {
                connection.poll_alike(now, datagrams, length, count, &mut self.application)
            }
            _ => 0,
        }
    }

    /// Tells the application what became of its requests.
    fn tell(&mut self) {
        while let Some(event) = match &mut self.transport {
            Some(Transport::Rc(connection)) => connection.poll_event(),
            Some(Transport::Uc(connection, _)) => connection.poll_event(),
            None => None,
        } {
            match event {
                Event::Completed { status, original, .. } => {
                    if self.application.completed(status, original) == Fate::Failed {
                        self.failure.get_or_insert(status);
                        self.stage.close();
                    }
                }
                Event::Failed(status) => {
                    self.failure.get_or_insert(status);
                    self.stage.close();
                }
                Event::Refused(_) => {
                    // Unless the application refused, which put its QP into the error state.
                    self.application.give_up(Status::Flushed);
                    self.stage.close();
                }
            }
        }
    }

    /// The application asks for what a rule denies: its QP fails as if the peer lacked the access
    /// flag, once what it asked for before is over.
    fn refuse_oldest(&mut self) {
        if self.application.asks_refused() && !self.stage.is_closed() {
            let status = Status::Refused(Refusal::InvalidRequest);
            self.failure.get_or_insert(status);
            self.application.give_up(status);
            self.close();
        }
    }

    /// After packets were taken or made.
    pub fn after(&mut self) {
        let silent = self.stage == Stage::Silent;
        self.tell();
        if self.application.is_broken() && !self.stage.is_closed() {
            self.break_off();
        }
        if silent {
            self.fall_silent();
        }
        let early = self.transport.is_none() || self.stage == Stage::Receives;
        if self.application.have_it_ring(early || self.application.waits()) {
            (self.unheard, self.rings_since) = (true, true);
        }
    }

    /// Whether the application is to ring from now on, but was not when it was last listened to.
    fn is_unheard(&self) -> bool {
        self.unheard && !self.stage.is_closed()
    }

    /// Whether it is to ring only since the last call.
    pub fn take_rings_since(&mut self) -> bool {
        std::mem::take(&mut self.rings_since)
    }

    /// The application broke the rules of the link.
    fn break_off(&mut self) {
        self.failure.get_or_insert(Status::LocalProtection);
        self.application.give_up(Status::Flushed);
        self.close();
    }

    /// The application is gone and everything is said. If that ended with a refusal, the peer hears
    /// it again when it asks again, for as long as there is this link: a packet may be lost.
    fn fall_silent(&mut self) {
        let says_again = match &mut self.transport {
            Some(Transport::Rc(connection)) => connection.end_requests(),
            _ => false,
        };
        if !says_again {
            return self.close();
        }
        self.stage.close();
        self.application.close();
    }

    /// Nothing is taken or sent any more.
    pub fn close(&mut self) {
        self.stage.close();
        self.counted = Counters { window: 0, ..self.numbers() };
        self.transport = None;
        self.application.close();
    }

    /// The counters of a reliable connection. An ended one returns its last.
    pub fn numbers(&self) -> Counters {
        match &self.transport {
            Some(Transport::Rc(connection)) => connection.counters(),
            _ => self.counted,
        }
    }
}
