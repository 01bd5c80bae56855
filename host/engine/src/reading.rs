//! What the application answers: READ data, results of atomics, refusals. They come in the order
//! they were asked for.
//!
//! READ data usually go from the ring straight into a packet. Only when the peer asks for an
//! earlier READ again while a later one is being answered, the later one's data, which come first,
//! are kept until their turn.

use omniverb_link::{Broken, Endpoint, Nak, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_transport::{Fetched, Ticket};
use std::collections::VecDeque;

/// Bytes that are kept for one QP at most.
const KEPT_MAX: usize = 2 << 20;

/// Something the application was asked.
struct Asked {
    ticket: Ticket,
    kind: Kind,
}

enum Kind {
    Read(Reading),
    Atomic,
}

struct Reading {
    /// Bytes still to come out of the ring.
    left: u64,
    /// The last of them was there.
    complete: bool,
    /// By somebody.
    wanted: bool,
    /// Bytes that came before their turn.
    kept: VecDeque<u8>,
}

/// What the application has to say next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An atomic found this.
    Original(Ticket, u64),
    /// The oldest request that it has not consumed is refused.
    Refused(Nak),
    /// READ data is there to be fetched.
    Data,
}

/// What the application was asked and has not answered completely, oldest first.
#[derive(Default)]
pub(crate) struct Readings {
    asked: VecDeque<Asked>,
    /// Bytes of the record at the head that were taken already.
    taken: usize,
    /// Bytes kept in all.
    kept: usize,
}

impl Readings {
    /// A READ was passed on.
    pub(crate) fn read(&mut self, ticket: Ticket, length: u64) {
        let reading =
            Reading { left: length, complete: false, wanted: true, kept: VecDeque::new() };
        self.asked.push_back(Asked { ticket, kind: Kind::Read(reading) });
    }

    /// An atomic was passed on.
    pub(crate) fn atomic(&mut self, ticket: Ticket) {
        self.asked.push_back(Asked { ticket, kind: Kind::Atomic });
    }

    /// Nobody wants the rest of this READ.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let Some(index) = self.asked.iter().position(|asked| asked.ticket == ticket) else {
            return;
        };
        if let Kind::Read(reading) = &mut self.asked[index].kind {
            reading.wanted = false;
            self.kept -= reading.kept.len();
            reading.kept.clear();
            if reading.complete {
                self.asked.remove(index);
            }
        }
    }

    /// What the application says next, and takes it, but for READ data, which is fetched.
    pub(crate) fn next(&mut self, endpoint: &mut Endpoint) -> Result<Option<Answer>, Broken> {
        let Some((response, record)) = self.look(endpoint)? else { return Ok(None) };
        let answer = match response {
            Response::ReadData { .. } => return Ok(Some(Answer::Data)),
            Response::Nak { code } => Answer::Refused(code),
            Response::AtomicResult { original } => {
                let index = self.current().ok_or(Broken)?;
                let asked = self.asked.remove(index).ok_or(Broken)?;
                if !matches!(asked.kind, Kind::Atomic) {
                    return Err(Broken);
                }
                Answer::Original(asked.ticket, original)
            }
        };
        endpoint.pass_response(&record);
        Ok(Some(answer))
    }

    /// What the response at the head is about: the oldest that is not complete.
    fn current(&self) -> Option<usize> {
        let complete = |asked: &Asked| matches!(&asked.kind, Kind::Read(r) if r.complete);
        self.asked.iter().position(|asked| !complete(asked))
    }

    /// The READ that the data at the head belong to.
    fn reading(&mut self) -> Result<(usize, &mut Reading), Broken> {
        let index = self.current().ok_or(Broken)?;
        match self.asked.get_mut(index).map(|asked| &mut asked.kind) {
            Some(Kind::Read(reading)) => Ok((index, reading)),
            _ => Err(Broken),
        }
    }

    /// The response at the head. READ data that nobody wants is thrown away.
    fn look(&mut self, endpoint: &mut Endpoint) -> Result<Option<(Response, Record)>, Broken> {
        loop {
            let Some((response, record)) = endpoint.next_response()? else { return Ok(None) };
            let Response::ReadData { last } = response else {
                return Ok(Some((response, record)));
            };
            let (_, reading) = self.reading()?;
            let length = record.length as u64;
            let fits = length <= reading.left && last == (length == reading.left);
            if !fits || length == 0 && !last {
                return Err(Broken);
            }
            if reading.wanted && length > 0 {
                return Ok(Some((response, record)));
            }
            self.pass(endpoint, &record, last)?;
        }
    }

    /// Done with a record of READ data.
    fn pass(&mut self, endpoint: &mut Endpoint, record: &Record, last: bool) -> Result<(), Broken> {
        let (index, reading) = self.reading()?;
        reading.left = reading.left.checked_sub(record.length as u64).ok_or(Broken)?;
        if last {
            reading.complete = true;
            if !reading.wanted || reading.kept.is_empty() {
                self.asked.remove(index);
            }
        }
        self.taken = 0;
        endpoint.pass_response(record);
        Ok(())
    }

    /// Fills a packet with the next bytes of a READ.
    pub(crate) fn fetch(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        target: &mut [u8],
    ) -> Result<Fetched, Broken> {
        loop {
            if self.take_kept(ticket, target) {
                return Ok(Fetched::Filled);
            }
            let Some((Response::ReadData { last }, record)) = self.look(endpoint)? else {
                return Ok(Fetched::Later);
            };
            let rest = record.length.checked_sub(self.taken).ok_or(Broken)?;
            let index = self.current().ok_or(Broken)?;
            let asked = self.asked.get_mut(index).ok_or(Broken)?;
            let Kind::Read(reading) = &mut asked.kind else { return Err(Broken) };
            if asked.ticket == ticket && reading.kept.is_empty() && rest >= target.len() {
                UserMemory::lend_mut(target, |memory| {
                    endpoint.response_payload(&record, self.taken, memory);
                });
                self.taken += target.len();
                if self.taken == record.length {
                    self.pass(endpoint, &record, last)?;
                }
                return Ok(Fetched::Filled);
            }
            // A packet that spans two records, or somebody else's turn.
            let ours = asked.ticket == ticket;
            if !ours && self.kept + rest > KEPT_MAX {
                return Ok(Fetched::Behind);
            }
            let mut bytes = vec![0; rest];
            UserMemory::lend_mut(&mut bytes, |memory| {
                endpoint.response_payload(&record, self.taken, memory);
            });
            reading.kept.extend(bytes);
            self.kept += rest;
            self.pass(endpoint, &record, last)?;
        }
    }

    /// Fills a packet from what was kept; false: there is not enough.
    fn take_kept(&mut self, ticket: Ticket, target: &mut [u8]) -> bool {
        let Some(index) = self.asked.iter().position(|asked| asked.ticket == ticket) else {
            return false;
        };
        let Kind::Read(reading) = &mut self.asked[index].kind else { return false };
        if reading.kept.len() < target.len() {
            return false;
        }
        let count = target.len();
        for (to, from) in target.iter_mut().zip(reading.kept.drain(..count)) {
            *to = from;
        }
        self.kept -= count;
        if reading.complete && reading.kept.is_empty() {
            self.asked.remove(index);
        }
        true
    }
}
