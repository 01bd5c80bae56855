//! What the application answers: READ data, results of atomics, refusals. They come in the order
//! they were asked for.

use omniverb_link::{Broken, Endpoint, Nak, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_transport::{Fetched, Ticket};
use std::collections::VecDeque;

/// Something the application was asked.
struct Asked {
    ticket: Ticket,
    kind: Kind,
}

enum Kind {
    /// So many bytes are still to come; `wanted`: by somebody.
    Read {
        left: u64,
        wanted: bool,
    },
    Atomic,
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
    /// Bytes for the packet that is being filled, from records before.
    stage: Vec<u8>,
}

impl Readings {
    /// A READ was passed on.
    pub(crate) fn read(&mut self, ticket: Ticket, length: u64) {
        self.asked.push_back(Asked { ticket, kind: Kind::Read { left: length, wanted: true } });
    }

    /// An atomic was passed on.
    pub(crate) fn atomic(&mut self, ticket: Ticket) {
        self.asked.push_back(Asked { ticket, kind: Kind::Atomic });
    }

    /// Nobody wants the rest of this READ.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let oldest = self.asked.front().is_some_and(|asked| asked.ticket == ticket);
        if oldest {
            self.stage.clear();
        }
        for asked in self.asked.iter_mut().filter(|asked| asked.ticket == ticket) {
            if let Kind::Read { wanted, .. } = &mut asked.kind {
                *wanted = false;
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
                let asked = self.asked.pop_front().ok_or(Broken)?;
                if !matches!(asked.kind, Kind::Atomic) {
                    return Err(Broken);
                }
                Answer::Original(asked.ticket, original)
            }
        };
        endpoint.pass_response(&record);
        Ok(Some(answer))
    }

    /// The response at the head. READ data that nobody wants is thrown away.
    fn look(&mut self, endpoint: &mut Endpoint) -> Result<Option<(Response, Record)>, Broken> {
        loop {
            let Some((response, record)) = endpoint.next_response()? else { return Ok(None) };
            let Response::ReadData { last } = response else {
                return Ok(Some((response, record)));
            };
            let (left, wanted) = self.reading()?;
            if wanted && left > 0 {
                return Ok(Some((response, record)));
            }
            self.pass(endpoint, &record, last)?;
        }
    }

    fn reading(&mut self) -> Result<(u64, bool), Broken> {
        match self.asked.front().map(|asked| &asked.kind) {
            Some(Kind::Read { left, wanted }) => Ok((*left, *wanted)),
            _ => Err(Broken),
        }
    }

    /// Done with a record of READ data.
    fn pass(&mut self, endpoint: &mut Endpoint, record: &Record, last: bool) -> Result<(), Broken> {
        let Some(Kind::Read { left, .. }) = self.asked.front_mut().map(|asked| &mut asked.kind)
        else {
            return Err(Broken);
        };
        let length = record.length as u64;
        if length > *left || last != (length == *left) || length == 0 && !last {
            return Err(Broken);
        }
        *left -= length;
        if last {
            self.asked.pop_front();
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
            let Some((Response::ReadData { last }, record)) = self.look(endpoint)? else {
                return Ok(Fetched::Later);
            };
            if self.asked.front().is_none_or(|asked| asked.ticket != ticket) {
                return Ok(Fetched::Later);
            }
            let available = record.length.checked_sub(self.taken).ok_or(Broken)?;
            let from = self.stage.len();
            let count = available.min(target.len().checked_sub(from).ok_or(Broken)?);
            UserMemory::lend_mut(&mut target[from..from + count], |memory| {
                endpoint.response_payload(&record, self.taken, memory);
            });
            let filled = from + count == target.len();
            if filled {
                target[..from].copy_from_slice(&self.stage);
                self.stage.clear();
            } else if last {
                return Err(Broken); // less than was asked for
            } else {
                self.stage.extend_from_slice(&target[from..from + count]);
            }
            if count == available {
                self.pass(endpoint, &record, last)?;
            } else {
                self.taken += count;
            }
            if filled {
                return Ok(Fetched::Filled);
            }
        }
    }
}
