//! What the peer asks for: parts of its messages become records of the application's request ring.

use omniverb_link::endpoint::Credit;
use omniverb_link::record::{FIRST, IMMEDIATE, INVALIDATE, LAST, SOLICITED};
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_ring::UserMemory;
use omniverb_transport::{
    AtomicOperation, AtomicRequest, Delivery, Kind, Part, ReadRequest, Ticket,
};
use std::collections::VecDeque;

/// Something the application was given.
#[derive(Clone, Copy)]
struct Given {
    ticket: Ticket,
    /// Where it ends in the ring.
    end: u64,
}

/// What the application was given and has not consumed, oldest first. The ring bounds it.
pub(crate) struct Incoming {
    given: VecDeque<Given>,
    /// Bytes that every receive of the application has, if the current message's was promised.
    floor: Option<u64>,
    /// Bytes in the ring up to which messages count as delivered as soon as they are in it. What
    /// is beyond is acknowledged when it was consumed, so that a sender that fills its window never
    /// finds the ring full.
    sure_bytes: u64,
    /// Where the application was when we looked last.
    consumed: u64,
}

impl Incoming {
    pub(crate) fn new(sure_bytes: u64) -> Incoming {
        Incoming { given: VecDeque::new(), floor: None, sure_bytes, consumed: 0 }
    }

    /// Writes a part of a message into the ring.
    pub(crate) fn deliver(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        part: &Part<'_>,
    ) -> Result<Delivery, Broken> {
        let request = request(part);
        let delivery = self.put(endpoint, ticket, &request, part.data, part.takes_receive())?;
        // A SEND into a promised receive that is long enough will surely be placed. Everything
        // else the application has to look at first.
        let end = part.offset + part.data.len() as u64;
        let sure = delivery == Delivery::Later
            && part.kind == Kind::Send
            && part.invalidate.is_none()
            && self.floor.is_some_and(|floor| end <= floor)
            && endpoint.request_position().saturating_sub(self.consumed) <= self.sure_bytes;
        Ok(if sure { Delivery::Done } else { delivery })
    }

    /// Writes a record into the ring. Several of one ticket count as one.
    pub(crate) fn put(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        request: &Request,
        data: &[u8],
        takes_receive: bool,
    ) -> Result<Delivery, Broken> {
        let mut promised = false;
        if takes_receive {
            match endpoint.credit() {
                Credit::None => return Ok(Delivery::NotReady),
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

    fn note(&mut self, ticket: Ticket, end: u64) {
        match self.given.back_mut() {
            Some(given) if given.ticket == ticket => given.end = end,
            _ => self.given.push_back(Given { ticket, end }),
        }
    }

    /// Writes a READ or atomic into the ring; false: no room.
    pub(crate) fn ask(
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
    pub(crate) fn consumed(&mut self, endpoint: &mut Endpoint) -> Result<Option<Ticket>, Broken> {
        if self.given.is_empty() {
            return Ok(None);
        }
        let consumed = endpoint.peer_consumed()?;
        self.consumed = consumed;
        let mut last = None;
        while let Some(given) = self.given.front().filter(|given| given.end <= consumed) {
            last = last.max(Some(given.ticket));
            self.given.pop_front();
        }
        Ok(last)
    }

    /// The oldest thing that the application has not consumed.
    pub(crate) fn oldest(&self) -> Option<Ticket> {
        self.given.front().map(|given| given.ticket)
    }
}

/// A part of a message as a record.
pub(crate) fn request(part: &Part<'_>) -> Request {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = flag(part.place.ends(), LAST)
        | flag(part.solicited, SOLICITED)
        | flag(part.immediate.is_some(), IMMEDIATE);
    let immediate = part.immediate.map_or(0, u32::from_ne_bytes);
    match part.kind {
        Kind::Send => Request::Send {
            flags: flags
                | flag(part.place.begins(), FIRST)
                | flag(part.invalidate.is_some(), INVALIDATE),
            immediate: part.invalidate.map_or(immediate, |key| key.0),
        },
        Kind::Write { address, key, total } if part.place.begins() => {
            Request::WriteFirst { flags, address, rkey: key, immediate, total }
        }
        Kind::Write { .. } => Request::WriteMore { flags, immediate },
    }
}

/// A READ of the peer as a record.
pub(crate) fn read(request: &ReadRequest) -> Request {
    Request::Read { address: request.address, rkey: request.key, length: request.length }
}

/// An atomic of the peer as a record.
pub(crate) fn atomic(request: &AtomicRequest) -> Request {
    let (address, rkey) = (request.address, request.key);
    match request.operation {
        AtomicOperation::CompareSwap { compare, swap } => {
            Request::CompareSwap { address, rkey, compare, swap }
        }
        AtomicOperation::FetchAdd { add } => Request::FetchAdd { address, rkey, add },
    }
}
