//! Implements what the transport asks of the application: payload, buffers, and execution of
//! requests.

use super::{Application, LatestSrq};
use crate::pages::mapped_pages::MappedPages;
use crate::pages::read_execution::Filling;
use crate::pages::write_execution::{Course, Order};
use crate::queue_pair::incoming_messages::Needs;
use crate::request_records;
use omniverb_link::{Broken, Request};
use omniverb_transport::{
    AtomicRequest, Delivery, FetchOutcome, FlushRequest, GatherOutcome, Part, PlaceOutcome,
    ReadRequest, RequestId, RunOutcome, Ticket, UpperLayer,
};
use omniverb_wire::{PacketSlots, WriteRun};

impl<P: MappedPages> Application<P> {
    /// Tells the application which SRQ the next record is for, unless it knows. False: no room.
    fn tell_srq(&mut self, number: u32) -> Result<bool, Broken> {
        if self.srq == LatestSrq::NotOfXrc || self.srq == LatestSrq::Number(number) {
            return Ok(true);
        }
        let told = self.endpoint.send_request(&Request::ForSrq { number }, 0, [])?;
        if told {
            self.srq = LatestSrq::Number(number);
        }
        Ok(told)
    }

    fn order(&self) -> Order {
        Order { is_behind: !self.backlog.is_empty(), may_wait: self.reliable }
    }

    /// Takes a part of a message of the peer.
    fn take(&mut self, ticket: Ticket, part: &Part<'_>) -> Result<Delivery, Broken> {
        if !self.tell_srq(part.srq)? || !self.backlog.takes_up(part.place) {
            return Ok(Delivery::Full);
        }
        // Nothing of a part without a receive is placed.
        if self.reliable && part.takes_receive() && self.incoming.lacks_receive(&mut self.endpoint)
        {
            return Ok(Delivery::NotReady);
        }
        let order = self.order();
        let Application { grants, endpoint, placing, .. } = self;
        self.owing &= !part.place.begins();
        let course = match self.srq {
            LatestSrq::NotOfXrc => placing.part(grants, endpoint, part, order, self.now)?,
            // Its SRQ names the process whose memory it is for; grants do not know it.
            _ => Course::Travels(request_records::part(part)),
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
        let sent = self.backlog.send(&mut self.endpoint, record, data, self.now)?;
        Ok(if sent { Delivery::Done } else { Delivery::Full })
    }

    /// Has the application answer a READ, or what is left of it from `begin` on; false: no room.
    fn ask(&mut self, ticket: Ticket, request: &ReadRequest, begin: u64) -> Result<bool, Broken> {
        if !self.tell_srq(request.srq)? {
            return Ok(false);
        }
        let record = request_records::read(request);
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
    fn fill(
        &mut self,
        ticket: Ticket,
        offset: u64,
        target: &mut [u8],
    ) -> Result<FetchOutcome, Broken> {
        let Application { grants, endpoint, mapped_reads, .. } = self;
        let mut filling =
            mapped_reads.fill(grants, endpoint, (ticket, offset), target, self.now)?;
        if let Filling::NotMapped = filling {
            filling = self.readings.fetch(endpoint, (ticket, offset), target, self.now)?;
        }
        if let Filling::Travels(rest) = filling {
            if !self.ask(ticket, &rest, offset)? {
                return Ok(FetchOutcome::Later);
            }
            self.mapped_reads.release(ticket);
            filling =
                self.readings.fetch(&mut self.endpoint, (ticket, offset), target, self.now)?;
        }
        Ok(if let Filling::Done(fetched) = filling { fetched } else { FetchOutcome::Later })
    }

    /// Bytes that the application sends.
    fn fetch_own<'a>(
        &mut self,
        from: (RequestId, u64),
        pieces: impl Iterator<Item = &'a mut [u8]>,
        bytes: usize,
    ) -> GatherOutcome {
        let Application { endpoint, outgoing, grants, sources, now, .. } = self;
        let gathered = outgoing.gather((endpoint, sources), grants, from, pieces, bytes, *now);
        self.stuck |= gathered == GatherOutcome::Later;
        gathered
    }
}

impl<P: MappedPages> UpperLayer for Application<P> {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> GatherOutcome {
        let bytes = target.len();
        self.fetch_own((request, offset), std::iter::once(target), bytes)
    }

    fn gather_run(
        &mut self,
        request: RequestId,
        offset: u64,
        slots: &mut PacketSlots<'_>,
    ) -> GatherOutcome {
        let bytes = slots.bytes();
        self.fetch_own((request, offset), slots.iter_mut(), bytes)
    }

    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> PlaceOutcome {
        let placed = self.outgoing.place(&mut self.endpoint, request, offset, data);
        let placed = self.checked(placed, PlaceOutcome::Failed);
        self.stuck |= placed == PlaceOutcome::Full;
        placed
    }

    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery {
        let delivered = self.take(ticket, part);
        let delivery = self.checked(delivered, Delivery::Full);
        self.stuck |= self.reliable && delivery == Delivery::Full && !self.draining;
        delivery
    }

    fn deliver_run(&mut self, part: &Part<'_>, run: &WriteRun<'_>) -> RunOutcome {
        if self.srq != LatestSrq::NotOfXrc {
            return RunOutcome::Nothing;
        }
        let order = self.order();
        let Application { grants, endpoint, placing, .. } = self;
        let placed = placing.run(grants, endpoint, (part, run), order, self.now);
        let placed = self.checked(placed, false);
        self.owing &= !placed;
        if placed { RunOutcome::All } else { RunOutcome::Nothing }
    }

    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery {
        if self.srq == LatestSrq::NotOfXrc
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

    fn fetch(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> FetchOutcome {
        let fetched = self.fill(ticket, offset, target);
        let fetched = self.checked(fetched, FetchOutcome::Later);
        self.stuck |= matches!(fetched, FetchOutcome::Later | FetchOutcome::Behind);
        fetched
    }

    fn release(&mut self, ticket: Ticket) {
        if !self.mapped_reads.release(ticket) {
            self.readings.release(ticket);
        }
    }

    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery> {
        self.once(ticket, request.srq, &request_records::atomic(request))
    }

    // Data placed on mapped pages before it are visible, and other data are in the ring.
    fn flush(&mut self, ticket: Ticket, request: &FlushRequest) -> Result<u64, Delivery> {
        // Not of XRC, so no SRQ.
        self.once(ticket, 0, &request_records::flush(request))
    }
}
