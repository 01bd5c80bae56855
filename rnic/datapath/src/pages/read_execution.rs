//! Executes the peer's READs on the application's pages.
//!
//! A READ sees the memory as it is when its answer is made, packet by packet: everything that the
//! peer asked for before has been answered by then, and the first packet also waits until the
//! application has consumed what it was given before. If pages are taken back in the middle, the
//! application answers the rest.

use crate::pages::mapped_pages::{MappedPages, REMOTE_READ, Target};
use omniverb_link::{Broken, Endpoint};
use omniverb_transport::{FetchOutcome, ReadRequest, Ticket};
use std::collections::VecDeque;

struct MappedRead {
    ticket: Ticket,
    request: ReadRequest,
    /// Where the ring was; nothing before it may be left when the first bytes are taken.
    after: u64,
    begun: bool,
}

/// Those that are not over, in the order of their arrival.
#[derive(Default)]
pub struct MappedReads {
    list: VecDeque<MappedRead>,
    /// READs answered here.
    pub count: u64,
}

/// The result of filling a packet.
pub enum Filling {
    /// This is what becomes of the packet.
    Done(FetchOutcome),
    /// The application has to answer this, which is the rest of it.
    Travels(ReadRequest),
    /// The READ is none of those that are answered here.
    NotMapped,
}

impl MappedReads {
    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether a READ is to be held: it can be answered here; or others are held, which it would
    /// get in the way of if the application answered both.
    pub fn takes(
        &self,
        grants: &mut impl MappedPages,
        endpoint: &Endpoint,
        request: &ReadRequest,
    ) -> bool {
        // One of no bytes is never asked for its bytes.
        request.length > 0
            && (grants.reach(endpoint, target(request), REMOTE_READ) || !self.list.is_empty())
    }

    /// Holds one; `position`: where the ring is.
    pub fn push(&mut self, ticket: Ticket, request: &ReadRequest, position: u64) {
        // A repeated READ waits for none: later READs may be in the ring, whose answers have to
        // leave after it.
        let (after, begun) = if request.is_repeated { (0, true) } else { (position, false) };
        self.list.push_back(MappedRead { ticket, request: *request, after, begun });
    }

    /// It is over. False: it was not held.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        let index = self.list.iter().position(|hold| hold.ticket == ticket);
        index.and_then(|index| self.list.remove(index)).is_some()
    }

    /// Fills a packet.
    pub fn fill(
        &mut self,
        grants: &mut impl MappedPages,
        endpoint: &mut Endpoint,
        (ticket, offset): (Ticket, u64),
        bytes: &mut [u8],
        now: u64,
    ) -> Result<Filling, Broken> {
        let Some(hold) = self.list.iter_mut().find(|hold| hold.ticket == ticket) else {
            return Ok(Filling::NotMapped);
        };
        if !hold.begun && !endpoint.request_consumed(hold.after)? {
            // Not to hold up what is said again meanwhile.
            return Ok(Filling::Done(FetchOutcome::Behind));
        }
        let begins = !std::mem::replace(&mut hold.begun, true);
        let request = hold.request;
        if grants.read(endpoint, (target(&request), offset), bytes, now) {
            self.count += u64::from(begins);
            return Ok(Filling::Done(FetchOutcome::Filled));
        }
        Ok(Filling::Travels(ReadRequest {
            address: request.address.wrapping_add(offset),
            key: request.key,
            srq: request.srq,
            length: request.length.saturating_sub(offset),
            is_repeated: request.is_repeated,
        }))
    }
}

fn target(request: &ReadRequest) -> Target {
    Target { key: request.key, address: request.address, length: request.length }
}
