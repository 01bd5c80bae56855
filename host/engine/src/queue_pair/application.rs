//! The application as the transport's layer above: an end of a link.

use crate::pages::grant::Grant;
use crate::pages::granted::{Grants, Stretch};
use crate::pages::placing::{Course, Order, Placing, is_drained};
use crate::pages::reads::{Filling, MappedReads};
use crate::pages::sources::Sources;
use crate::queue_pair::backlog::{Allowance, Backlog};
use crate::queue_pair::incoming::{Incoming, Needs};
use crate::queue_pair::outgoing::Outgoing;
use crate::queue_pair::reading::{Answer, Readings};
use crate::records;
use omniverb_link::pace::Denied;
use omniverb_link::{Broken, Endpoint, Nak, Request};
use omniverb_terms::{Refusal, Rkey, Service};
use omniverb_transport::{
    AtomicRequest, Delivery, Fetched, FlushRequest, Gathered, Part, Placed, ReadRequest, RequestId,
    Taken, Ticket, Upper,
};
use omniverb_wire::{Run, Slots};

/// The engine's end of an RC or UC link.
pub(crate) struct Application {
    pub(crate) endpoint: Endpoint,
    pub(crate) outgoing: Outgoing,
    incoming: Incoming,
    readings: Readings,
    /// The application's pages, as far as we have them.
    grants: Grants,
    /// Those of them that it sends from.
    sources: Sources,
    placing: Placing,
    /// READs that are answered from them.
    mapped_reads: MappedReads,
    /// UC: what found no room.
    pub(crate) backlog: Backlog,
    reliable: bool,
    /// XRC: the SRQ that the application was told what follows is for.
    srq: Told,
    /// The transport waits for room or bytes here.
    pub(crate) stuck: bool,
    /// The peer is to go on when the application has consumed everything.
    draining: bool,
    /// A part is in the ring, but not yet what is to be said after it.
    owing: bool,
    /// The time, as far as it matters.
    pub(crate) now: u64,
    /// The application wrote what no application writes.
    pub(crate) broken: bool,
}

/// What an application was told of SRQs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It is not told of any.
    Never,
    Nothing,
    Srq(u32),
}

/// What the application said.
pub(crate) enum Said {
    /// It has consumed everything up to here.
    Consumed(Ticket),
    /// It has no receive for this.
    NotReady(Ticket),
    /// It refuses this.
    Refused(Ticket, Refusal),
    /// An atomic found this; something else that is done once is done.
    Original(Ticket, u64),
    /// What this READ, which was answered before, has read is gone.
    Gone(Ticket),
}

impl Application {
    /// `sure_bytes`: see [`Incoming`].
    pub(crate) fn new(
        endpoint: Endpoint,
        service: Service,
        sure_bytes: u64,
        allowance: Allowance,
    ) -> Application {
        Application {
            endpoint,
            outgoing: Outgoing::default(),
            incoming: Incoming::new(sure_bytes),
            backlog: Backlog::new(allowance),
            readings: Readings::default(),
            grants: Grants::default(),
            sources: Sources::default(),
            placing: Placing::default(),
            mapped_reads: MappedReads::default(),
            reliable: service.is_reliable(),
            srq: if service.is_extended() { Told::Nothing } else { Told::Never },
            stuck: false,
            draining: false,
            owing: false,
            now: 0,
            broken: false,
        }
    }

    /// Hears what the application has to say.
    pub(crate) fn listen(&mut self, mut hear: impl FnMut(Said)) -> Result<(), Broken> {
        loop {
            // An answer may be about what was consumed before it was given: look at that first.
            let answer = self.readings.next(&mut self.endpoint)?;
            if let Some(ticket) = self.incoming.consumed(&mut self.endpoint)? {
                hear(Said::Consumed(ticket));
            }
            match answer {
                None | Some(Answer::Data) => break,
                Some(Answer::Original(ticket, original)) => hear(Said::Original(ticket, original)),
                Some(Answer::Gone(ticket)) => ticket.into_iter().for_each(|t| hear(Said::Gone(t))),
                Some(Answer::Refused(code)) => {
                    let ticket = self.incoming.oldest().ok_or(Broken)?;
                    hear(Said::Refused(ticket, refusal(code)?));
                }
            }
        }
        if self.reliable
            && let Some(ticket) = self.incoming.oldest()
            && self.endpoint.peer_lacks_receive()?
        {
            hear(Said::NotReady(ticket));
        }
        Ok(())
    }

    /// Whether the transport is to be told that there is room, or that there are bytes. Once.
    pub(crate) fn take_stuck(&mut self) -> Result<bool, Broken> {
        if self.draining && is_drained(&mut self.endpoint)? {
            self.draining = false;
            self.stuck = true;
        }
        Ok(std::mem::take(&mut self.stuck))
    }

    /// Whether a receive is there that the peer was told is missing. Once.
    pub(crate) fn receive_came(&mut self) -> bool {
        self.incoming.receive_came(&mut self.endpoint)
    }

    /// A key to ask the control plane for, and what of it.
    pub(crate) fn take_wanted(&mut self) -> Option<(Rkey, Stretch)> {
        self.grants.take_wanted()
    }

    /// The control plane could not be asked for it.
    pub(crate) fn not_asked(&mut self, key: Rkey) {
        self.grants.not_asked(key);
    }

    /// The control plane refused it.
    pub(crate) fn refused(&mut self, key: Rkey, denied: Denied) {
        self.grants.refused(key, denied);
    }

    /// Whether only the application itself wants this key to be mapped.
    pub(crate) fn is_own(&self, key: Rkey) -> bool {
        self.grants.is_own(key)
    }

    /// The control plane granted it; `epoch`: see [`crate::Grant`].
    pub(crate) fn granted(&mut self, grant: Grant, epoch: u32) {
        self.grants.insert(&self.endpoint, grant, epoch);
    }

    /// Operations of the peer that were executed here.
    pub(crate) fn mapped(&self) -> u64 {
        self.placing.count + self.mapped_reads.count
    }

    /// Whether the application must tell us when it has consumed or has made room.
    pub(crate) fn waits(&self) -> bool {
        self.stuck
            || self.draining
            || self.outgoing.waits()
            || self.incoming.waits()
            || !self.backlog.is_empty()
    }

    /// Tells the application which SRQ the next record is for, unless it knows. False: no room.
    fn tell_srq(&mut self, number: u32) -> Result<bool, Broken> {
        if self.srq == Told::Never || self.srq == Told::Srq(number) {
            return Ok(true);
        }
        let told = self.endpoint.send_request(&Request::ForSrq { number }, 0, [])?;
        if told {
            self.srq = Told::Srq(number);
        }
        Ok(told)
    }

    /// Takes a part of a message of the peer.
    fn take(&mut self, ticket: Ticket, part: &Part<'_>) -> Result<Delivery, Broken> {
        if !self.tell_srq(part.srq)? {
            return Ok(Delivery::Full);
        }
        // Nothing of a part without a receive is placed.
        if self.reliable && part.takes_receive() && self.incoming.lacks_receive(&mut self.endpoint)
        {
            return Ok(Delivery::NotReady);
        }
        let order = Order { waiting: !self.backlog.is_empty(), may_wait: self.reliable };
        let Application { grants, endpoint, placing, .. } = self;
        self.owing &= !part.place.begins();
        let course = match self.srq {
            Told::Never => placing.part(grants, endpoint, part, order, self.now)?,
            // Whose memory it is for, its SRQ says, which the grants do not know.
            _ => Course::Travels(records::part(part)),
        };
        match course {
            Course::Placed => Ok(Delivery::Done),
            Course::PlacedAndTold(record) => self.put(ticket, &record, &[], Needs::Receive),
            Course::Wait => {
                self.draining = true;
                Ok(Delivery::Full)
            }
            Course::Rest(record, notice) => {
                if !std::mem::take(&mut self.owing) {
                    let delivery = self.put(ticket, &record, part.data, Needs::Nothing)?;
                    if delivery == Delivery::Full {
                        return Ok(delivery);
                    }
                    self.placing.rest_began();
                }
                let Some(notice) = notice else { return Ok(Delivery::Later) };
                let delivery = self.put(ticket, &notice, &[], Needs::Receive)?;
                self.owing = matches!(delivery, Delivery::Full | Delivery::NotReady);
                Ok(delivery)
            }
            Course::Travels(_) if self.reliable => {
                self.incoming.deliver(&mut self.endpoint, ticket, part)
            }
            Course::Travels(record) => self.put(ticket, &record, part.data, Needs::Nothing),
        }
    }

    fn put(
        &mut self,
        ticket: Ticket,
        record: &Request,
        data: &[u8],
        needs: Needs,
    ) -> Result<Delivery, Broken> {
        if self.reliable {
            return self.incoming.put(&mut self.endpoint, ticket, record, data, needs);
        }
        // UC does not ask: the application drops what it has no receive for.
        let sent = self.backlog.send(&mut self.endpoint, record, data)?;
        Ok(if sent { Delivery::Done } else { Delivery::Full })
    }

    /// Has the application answer a READ, or what is left of it from `begin` on; false: no room.
    fn ask(&mut self, ticket: Ticket, request: &ReadRequest, begin: u64) -> Result<bool, Broken> {
        if !self.tell_srq(request.srq)? {
            return Ok(false);
        }
        let record = records::read(request);
        let asked = self.incoming.ask(&mut self.endpoint, ticket, &record)?;
        if asked {
            self.readings.read(ticket, request, begin);
        }
        Ok(asked)
    }

    /// Has the application do something that is done once, and answered with a number.
    fn once(&mut self, ticket: Ticket, srq: u32, record: &Request) -> Result<u64, Delivery> {
        self.placing.interrupted();
        let asked = match self.tell_srq(srq) {
            Ok(true) => self.incoming.ask(&mut self.endpoint, ticket, record),
            other => other,
        };
        if !self.checked(asked, false) {
            self.stuck = true;
            return Err(Delivery::Full);
        }
        self.readings.once(ticket);
        Err(Delivery::Later)
    }

    /// Fills a packet of an answer.
    fn fill(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> Result<Fetched, Broken> {
        let Application { grants, endpoint, mapped_reads, .. } = self;
        let mut filling =
            mapped_reads.fill(grants, endpoint, (ticket, offset), target, self.now)?;
        if let Filling::NotMapped = filling {
            filling = self.readings.fetch(endpoint, (ticket, offset), target)?;
        }
        if let Filling::Travels(rest) = filling {
            if !self.ask(ticket, &rest, offset)? {
                return Ok(Fetched::Later);
            }
            self.mapped_reads.release(ticket);
            filling = self.readings.fetch(&mut self.endpoint, (ticket, offset), target)?;
        }
        Ok(if let Filling::Done(fetched) = filling { fetched } else { Fetched::Later })
    }

    /// Bytes that the application sends.
    fn fetch_own<'a>(
        &mut self,
        from: (RequestId, u64),
        pieces: impl Iterator<Item = &'a mut [u8]>,
        bytes: usize,
    ) -> Gathered {
        let Application { endpoint, outgoing, grants, sources, now, .. } = self;
        let gathered = outgoing.gather((endpoint, sources), grants, from, pieces, bytes, *now);
        self.stuck |= gathered == Gathered::Later;
        gathered
    }

    /// Offers the application what it wants to send from.
    pub(crate) fn offer_sources(&mut self) {
        let Application { endpoint, grants, sources, now, .. } = self;
        sources.look(endpoint, grants, *now);
    }

    /// What came of it; a broken link is noted and looks like one that is full.
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

impl Upper for Application {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> Gathered {
        let bytes = target.len();
        self.fetch_own((request, offset), std::iter::once(target), bytes)
    }

    fn gather_run(&mut self, request: RequestId, offset: u64, slots: &mut Slots<'_>) -> Gathered {
        let bytes = slots.bytes();
        self.fetch_own((request, offset), slots.iter_mut(), bytes)
    }

    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> Placed {
        let placed = self.outgoing.place(&mut self.endpoint, request, offset, data);
        let placed = self.checked(placed, Placed::Failed);
        self.stuck |= placed == Placed::Full;
        placed
    }

    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery {
        let delivered = self.take(ticket, part);
        let delivery = self.checked(delivered, Delivery::Full);
        self.stuck |= self.reliable && delivery == Delivery::Full && !self.draining;
        delivery
    }

    fn deliver_run(&mut self, part: &Part<'_>, run: &Run<'_>) -> Taken {
        if self.srq != Told::Never {
            return Taken::Nothing;
        }
        let waiting = !self.backlog.is_empty();
        let Application { grants, endpoint, placing, .. } = self;
        let placed = placing.run(grants, endpoint, (part, run), waiting, self.now);
        let placed = self.checked(placed, false);
        self.owing &= !placed;
        if placed { Taken::All } else { Taken::Nothing }
    }

    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery {
        if self.srq == Told::Never
            && self.mapped_reads.takes(&mut self.grants, &self.endpoint, request)
        {
            self.mapped_reads.push(ticket, request, self.endpoint.request_position());
            return Delivery::Later;
        }
        let asked = self.ask(ticket, request, 0);
        if !self.checked(asked, false) {
            self.stuck = true;
            return Delivery::Full;
        }
        Delivery::Later
    }

    fn fetch(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> Fetched {
        let fetched = self.fill(ticket, offset, target);
        let fetched = self.checked(fetched, Fetched::Later);
        self.stuck |= matches!(fetched, Fetched::Later | Fetched::Behind);
        fetched
    }

    fn release(&mut self, ticket: Ticket) {
        if !self.mapped_reads.release(ticket) {
            self.readings.release(ticket);
        }
    }

    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery> {
        self.once(ticket, request.srq, &records::atomic(request))
    }

    // What was placed on mapped pages before it is visible, and what was not is in the ring.
    fn flush(&mut self, ticket: Ticket, request: &FlushRequest) -> Result<u64, Delivery> {
        // Not of XRC, so no SRQ.
        self.once(ticket, 0, &records::flush(request))
    }
}
