//! Presents the application's end of a link as the layer above the transport.

mod handover;
mod upper_layer;

use crate::pages::mapped_pages::MappedPages;
use crate::pages::payload_sources_offered_to_app::Sources;
use crate::pages::read_execution::MappedReads;
use crate::pages::write_execution::{WritePlacement, is_drained};
use crate::queue_pair::incoming_messages::Incoming;
use crate::queue_pair::outgoing_requests::{Fate, Outgoing};
use crate::queue_pair::responder_answers::{Answer, Readings};
use crate::queue_pair::unreliable_backlog::Backlog;
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::{Broken, Endpoint, Nak};
use omniverb_ring::shared_atomics::AtomicU64;
use omniverb_terms::{Operations, Refusal, Service};
use omniverb_transport::{Request as Order, Status, SubmitError, Ticket};

/// The engine's end of an RC or UC link.
pub struct Application<P> {
    endpoint: Endpoint,
    allowance: Allowance,
    outgoing: Outgoing,
    incoming: Incoming,
    readings: Readings,
    /// The application's pages, as far as we have them.
    grants: P,
    /// Those of them that it sends from.
    sources: Sources,
    placing: WritePlacement,
    /// READs that are answered from them.
    mapped_reads: MappedReads,
    /// UC: what found no room.
    backlog: Backlog,
    reliable: bool,
    srq: LatestSrq,
    /// The transport waits for room or bytes here.
    stuck: bool,
    /// The peer is to go on when the application has consumed everything.
    draining: bool,
    /// A part is in the ring, but not yet what is to be said after it.
    owing: bool,
    /// The time, as far as it matters.
    now: u64,
    /// The application wrote what no application writes.
    broken: bool,
}

/// The SRQ that the application takes what follows in the ring to be for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LatestSrq {
    /// None is ever named to it.
    NotOfXrc,
    /// None has been so far.
    None,
    /// The one of this number.
    Number(u32),
}

/// A report of the application.
pub enum ApplicationState {
    /// It has consumed everything up to here.
    Consumed(Ticket),
    /// It has no receive for this.
    NotReady(Ticket),
    /// It refuses this.
    Refused(Ticket, Refusal),
    /// An atomic found this; something else that is done once is done.
    Original(Ticket, u64),
    /// The data of this READ, which was answered before, are gone.
    Gone(Ticket),
}

impl<P: MappedPages> Application<P> {
    /// `sure_bytes`: see [`Incoming`].
    pub fn new(
        endpoint: Endpoint,
        service: Service,
        sure_bytes: u64,
        allowance: Allowance,
    ) -> Application<P> {
        Application {
            endpoint,
            outgoing: Outgoing::new(&allowance),
            incoming: Incoming::new(sure_bytes),
            backlog: Backlog::new(&allowance),
            readings: Readings::new(&allowance),
            allowance,
            grants: P::default(),
            sources: Sources::default(),
            placing: WritePlacement::default(),
            mapped_reads: MappedReads::default(),
            reliable: service.is_reliable(),
            srq: if service.is_extended() { LatestSrq::None } else { LatestSrq::NotOfXrc },
            stuck: false,
            draining: false,
            owing: false,
            now: 0,
            broken: false,
        }
    }

    /// It may not ask the peer for these.
    pub fn refuse(&mut self, refused: Operations) {
        self.outgoing.refused = refused;
    }

    /// Whether its oldest request is one that it may not make.
    pub fn asks_refused(&self) -> bool {
        self.outgoing.asks_refused()
    }

    /// Sets the time of the following events.
    pub fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Whether the application wrote what no application writes.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether its QP is open.
    pub fn is_open(&self) -> bool {
        self.endpoint.peer_is_open()
    }

    /// Whether it has closed its QP.
    pub fn has_closed(&self) -> bool {
        self.endpoint.peer_has_closed()
    }

    /// The attributes of its QP at RTR, if it is that far.
    pub fn receiving(&self) -> Option<ReceiveAttributes> {
        self.endpoint.peer_receiving()
    }

    /// The attributes of its QP at RTS, if it is that far.
    pub fn sending(&self) -> Option<SendAttributes> {
        self.endpoint.peer_sending()
    }

    /// Whether it is to ring when it has done something. True: from now on, but not for what it did
    /// until now.
    pub fn have_it_ring(&mut self, ring: bool) -> bool {
        self.endpoint.set_blocked(ring)
    }

    /// It is served no more.
    pub fn close(&mut self) {
        self.endpoint.close();
        self.backlog = Backlog::new(&self.allowance);
        self.readings = Readings::new(&self.allowance);
    }

    /// Whether it naps, and what has happened is what it waits for.
    pub fn nap_is_over(&mut self) -> bool {
        self.endpoint.nap_is_over()
    }

    /// Announces that it is awake, and returns where napping threads are found.
    pub fn answer_nap(&mut self) -> &AtomicU64 {
        self.endpoint.answer_nap()
    }

    /// Takes what it asks for and `submit` has room for. True: there is more.
    pub fn take_requests(
        &mut self,
        submit: impl FnMut(Order) -> Result<(), SubmitError>,
    ) -> Result<bool, Broken> {
        self.outgoing.take(&self.endpoint, submit)
    }

    /// Its oldest request is over, and so perhaps its QP.
    pub fn completed(&mut self, status: Status, original: Option<u64>) -> Fate {
        let completed = self.outgoing.completed(&mut self.endpoint, status, original);
        self.checked(completed, Fate::GoesOn)
    }

    /// The connection failed by itself: it is told.
    pub fn give_up(&mut self, status: Status) {
        self.outgoing.give_up(&mut self.endpoint, status);
    }

    /// Whether requests that were taken are not over.
    pub(crate) fn has_requests_under_way(&self) -> bool {
        self.outgoing.has_some_under_way()
    }

    /// Says what it could not be told before for lack of room, as far as there is room now.
    pub fn flush_answers(&mut self) -> Result<(), Broken> {
        self.outgoing.answer(&mut self.endpoint).map(drop)
    }

    /// UC: likewise, what arrived for it.
    pub fn flush_backlog(&mut self, now: u64) -> Result<(), Broken> {
        self.backlog.flush(&mut self.endpoint, now).map(drop)
    }

    /// When something that is kept is too old.
    pub fn due(&self) -> Option<u64> {
        self.backlog.due().into_iter().chain(self.readings.due()).min()
    }

    /// Drops what is too old by now.
    pub fn expire(&mut self, now: u64) {
        self.backlog.expire(now);
        self.readings.expire(now);
    }

    /// Drops what is kept here while the vNIC keeps more than it may.
    pub fn give_way(&mut self) {
        self.backlog.give_way(&self.allowance);
        self.readings.give_way(&self.allowance);
    }

    /// UC: what arrived for it and found no room.
    pub fn backlog(&mut self) -> &mut Backlog {
        &mut self.backlog
    }

    /// Its requests whose payload was taken from where it was.
    pub fn taken_in_place(&self) -> u64 {
        self.outgoing.in_place
    }

    /// Hears what the application has to say.
    pub fn listen(&mut self, mut hear: impl FnMut(ApplicationState)) -> Result<(), Broken> {
        loop {
            // An answer may be about what was consumed before it was given: look at that first.
            let answer = self.readings.next(&mut self.endpoint)?;
            if let Some(ticket) = self.incoming.consumed(&mut self.endpoint)? {
                hear(ApplicationState::Consumed(ticket));
            }
            match answer {
                None | Some(Answer::Data) => break,
                Some(Answer::Original(ticket, original)) => {
                    hear(ApplicationState::Original(ticket, original))
                }
                Some(Answer::Gone(ticket)) => {
                    ticket.into_iter().for_each(|t| hear(ApplicationState::Gone(t)))
                }
                Some(Answer::Refused(code)) => {
                    let ticket = self.incoming.oldest().ok_or(Broken)?;
                    hear(ApplicationState::Refused(ticket, refusal(code)?));
                }
            }
        }
        if self.reliable
            && let Some(ticket) = self.incoming.oldest()
            && self.endpoint.peer_lacks_receive()?
        {
            hear(ApplicationState::NotReady(ticket));
        }
        Ok(())
    }

    /// Whether the transport is to be told that there is room, or that there are bytes. Once.
    pub fn take_stuck(&mut self) -> Result<bool, Broken> {
        if self.draining && is_drained(&mut self.endpoint)? {
            self.draining = false;
            self.stuck = true;
        }
        Ok(std::mem::take(&mut self.stuck))
    }

    /// Whether a receive is there that the peer was told is missing. Once.
    pub fn receive_came(&mut self) -> bool {
        self.incoming.receive_came(&mut self.endpoint)
    }

    /// The application's pages, and the end of the link that says whether they still are granted.
    pub fn pages(&mut self) -> (&mut P, &Endpoint) {
        (&mut self.grants, &self.endpoint)
    }

    /// Operations of the peer that were executed here.
    pub fn mapped(&self) -> u64 {
        self.placing.count + self.mapped_reads.count
    }

    /// Whether the application must tell us when it has consumed or has made room.
    pub fn waits(&self) -> bool {
        self.stuck
            || self.draining
            || self.outgoing.waits()
            || self.incoming.waits()
            || !self.backlog.is_empty()
    }

    /// Offers the application what it wants to send from.
    pub fn offer_sources(&mut self) {
        let Application { endpoint, grants, sources, now, .. } = self;
        sources.look(endpoint, grants, *now);
    }

    /// The result; a broken link is noted and looks like one that is full.
    fn checked<T>(&mut self, result: Result<T, Broken>, otherwise: T) -> T {
        result.unwrap_or_else(|Broken| {
            self.broken = true;
            otherwise
        })
    }
}

/// Which of the codes an application may use.
fn refusal(code: Nak) -> Result<Refusal, Broken> {
    match code {
        Nak::Refused(refusal) => Ok(refusal),
        _ => Err(Broken),
    }
}
