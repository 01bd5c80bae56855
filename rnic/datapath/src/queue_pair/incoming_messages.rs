//! Turns messages of the peer into records of the application's request ring.

use crate::request_records;
use omniverb_link::Credit;
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::UserMemory;
use omniverb_transport::{Delivery, Kind, Part, Ticket};
use std::collections::VecDeque;

/// Resources of the application that a record takes, beside room in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// One of the receives that it has posted.
    Receive,
    Nothing,
}

/// Something the application was given.
#[derive(Clone, Copy)]
struct PartialMessage {
    ticket: Ticket,
    /// Where it ends in the ring.
    end: u64,
}

/// Records that the application got and has not consumed, oldest first. The ring bounds them.
pub struct Incoming {
    given: VecDeque<PartialMessage>,
    /// Bytes that every receive of the application has, if the current message's was promised.
    floor: Option<u64>,
    /// Bytes in the ring up to which messages count as delivered as soon as they are in it. Later
    /// bytes are acknowledged when they were consumed, so that a sender that fills its window never
    /// finds the ring full.
    sure_bytes: u64,
    /// The peer was told that there is no receive.
    lacking: bool,
    /// Where the application was when we looked last.
    consumed: u64,
}

impl Incoming {
    pub fn new(sure_bytes: u64) -> Incoming {
        Incoming { given: VecDeque::new(), floor: None, sure_bytes, lacking: false, consumed: 0 }
    }

    /// Writes a part of a message into the ring.
    pub fn deliver(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        part: &Part<'_>,
    ) -> Result<Delivery, Broken> {
        let request = request_records::part(part);
        let needs = if part.takes_receive() { Needs::Receive } else { Needs::Nothing };
        let delivery = self.put(endpoint, ticket, &request, part.data, needs)?;
        // A SEND into a promised receive that is long enough will surely be placed, unless the
        // application has ended (decision 0040). Everything else it has to look at first.
        let end = part.offset + part.data.len() as u64;
        let sure = delivery == Delivery::Later
            && part.kind == Kind::Send
            && part.invalidate.is_none()
            && !endpoint.peer_has_died()
            && self.floor.is_some_and(|floor| end <= floor)
            && endpoint.request_position().saturating_sub(self.consumed) <= self.sure_bytes;
        Ok(if sure { Delivery::Done } else { delivery })
    }

    /// Whether a message lacks a receive; then the peer gets an RNR NAK.
    pub fn lacks_receive(&mut self, endpoint: &mut Endpoint) -> bool {
        self.lacking = endpoint.credit() == Credit::None;
        self.lacking
    }

    /// Whether there is a receive after the peer was told that there is none. Once.
    pub fn receive_came(&mut self, endpoint: &mut Endpoint) -> bool {
        let came = self.lacking && endpoint.credit() != Credit::None;
        self.lacking &= !came;
        came
    }

    /// Whether it waits for the application to consume something, or to post a receive.
    pub fn waits(&self) -> bool {
        self.lacking || !self.given.is_empty()
    }

    /// Writes a record into the ring. Several of one ticket count as one.
    pub fn put(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        request: &Request,
        data: &[u8],
        needs: Needs,
    ) -> Result<Delivery, Broken> {
        let mut promised = false;
        if needs == Needs::Receive {
            match endpoint.credit() {
                Credit::None => {
                    self.lacking = true;
                    return Ok(Delivery::NotReady);
                }
                Credit::Promised { floor } => {
                    self.floor = Some(floor);
                    promised = true;
                }
                Credit::Unpromised => self.floor = None,
            }
        }
        let sent =
            UserMemory::lend(data, |memory| endpoint.send_request(request, data.len(), [&memory]))?;
        if !sent {
            return Ok(Delivery::Full);
        }
        if promised {
            endpoint.use_credit();
        }
        self.note(ticket, endpoint.request_position());
        Ok(Delivery::Later)
    }

    /// What the application has not consumed: tickets, and where it ends in the ring.
    pub fn given(&self) -> impl Iterator<Item = (Ticket, u64)> {
        self.given.iter().map(|given| (given.ticket, given.end))
    }

    /// The application was given this before; ends count up.
    pub fn resume(&mut self, given: impl Iterator<Item = (Ticket, u64)>) {
        self.given = given.map(|(ticket, end)| PartialMessage { ticket, end }).collect();
    }

    fn note(&mut self, ticket: Ticket, end: u64) {
        match self.given.back_mut() {
            Some(given) if given.ticket == ticket => given.end = end,
            _ => self.given.push_back(PartialMessage { ticket, end }),
        }
    }

    /// Writes a READ or atomic into the ring; false: no room.
    pub fn ask(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        request: &Request,
    ) -> Result<bool, Broken> {
        let sent = endpoint.send_request(request, 0, [])?;
        if sent {
            self.note(ticket, endpoint.request_position());
        }
        Ok(sent)
    }

    /// The last thing the application has consumed since the last call. All with smaller tickets
    /// are consumed too, but for READs that were passed on late.
    pub fn consumed(&mut self, endpoint: &mut Endpoint) -> Result<Option<Ticket>, Broken> {
        if self.given.is_empty() {
            return Ok(None);
        }
        let consumed = endpoint.requests_consumed()?;
        self.consumed = consumed;
        let mut last = None;
        while let Some(given) = self.given.front().filter(|given| given.end <= consumed) {
            last = last.max(Some(given.ticket));
            self.given.pop_front();
        }
        Ok(last)
    }

    /// The oldest thing that the application has not consumed.
    pub fn oldest(&self) -> Option<Ticket> {
        self.given.front().map(|given| given.ticket)
    }
}
