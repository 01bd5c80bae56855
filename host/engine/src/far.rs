//! The application as the transport's layer above: an end of a link.

use crate::backlog::{Allowance, Backlog};
use crate::incoming::{self, Incoming};
use crate::outgoing::Outgoing;
use crate::reading::{Answer, Readings};
use omniverb_link::{Broken, Endpoint, Nak};
use omniverb_transport::{
    AtomicRequest, Delivery, Fetched, Gathered, Part, Placed, ReadRequest, Refusal, RequestId,
    Ticket, Upper,
};

/// The engine's end of an RC or UC link.
pub(crate) struct Far {
    pub(crate) endpoint: Endpoint,
    pub(crate) outgoing: Outgoing,
    incoming: Incoming,
    readings: Readings,
    /// UC: what found no room.
    pub(crate) backlog: Backlog,
    reliable: bool,
    /// The transport waits for room or bytes here.
    pub(crate) stuck: bool,
    /// The application wrote what no application writes.
    pub(crate) broken: bool,
}

/// What the application said.
pub(crate) enum Said {
    /// It has consumed everything up to here.
    Consumed(Ticket),
    /// It has no receive for this.
    NotReady(Ticket),
    /// It refuses this.
    Refused(Ticket, Refusal),
    /// An atomic found this.
    Original(Ticket, u64),
}

impl Far {
    /// `sure_bytes`: see [`Incoming`].
    pub(crate) fn new(
        endpoint: Endpoint,
        reliable: bool,
        sure_bytes: u64,
        allowance: Allowance,
    ) -> Far {
        Far {
            endpoint,
            outgoing: Outgoing::default(),
            incoming: Incoming::new(sure_bytes),
            backlog: Backlog::new(allowance),
            readings: Readings::default(),
            reliable,
            stuck: false,
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

    /// Whether the application must tell us when it has consumed or has made room.
    pub(crate) fn waits(&self) -> bool {
        self.stuck
            || self.outgoing.waits()
            || self.incoming.oldest().is_some()
            || !self.backlog.is_empty()
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
        Nak::InvalidRequest => Ok(Refusal::InvalidRequest),
        Nak::RemoteAccess => Ok(Refusal::RemoteAccess),
        Nak::RemoteOperation => Ok(Refusal::RemoteOperation),
        _ => Err(Broken),
    }
}

impl Upper for Far {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> Gathered {
        self.outgoing.gather(&self.endpoint, request, offset, target)
    }

    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> Placed {
        let placed = self.outgoing.place(&mut self.endpoint, request, offset, data);
        let placed = self.checked(placed, Placed::Failed);
        self.stuck |= placed == Placed::Full;
        placed
    }

    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery {
        let delivered = if self.reliable {
            self.incoming.deliver(&mut self.endpoint, ticket, part)
        } else {
            // UC does not ask: the application drops what it has no receive for.
            let request = incoming::request(part);
            let sent = self.backlog.send(&mut self.endpoint, &request, part.data);
            sent.map(|sent| if sent { Delivery::Done } else { Delivery::Full })
        };
        let delivery = self.checked(delivered, Delivery::Full);
        self.stuck |= self.reliable && delivery == Delivery::Full;
        delivery
    }

    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery {
        let record = incoming::read(request);
        let asked = self.incoming.ask(&mut self.endpoint, ticket, &record);
        if !self.checked(asked, false) {
            self.stuck = true;
            return Delivery::Full;
        }
        self.readings.read(ticket, request.length);
        Delivery::Later
    }

    fn fetch(&mut self, ticket: Ticket, _offset: u64, target: &mut [u8]) -> Fetched {
        let fetched = self.readings.fetch(&mut self.endpoint, ticket, target);
        let fetched = self.checked(fetched, Fetched::Later);
        self.stuck |= matches!(fetched, Fetched::Later | Fetched::Behind);
        fetched
    }

    fn release(&mut self, ticket: Ticket) {
        self.readings.release(ticket);
    }

    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery> {
        let record = incoming::atomic(request);
        let asked = self.incoming.ask(&mut self.endpoint, ticket, &record);
        if !self.checked(asked, false) {
            self.stuck = true;
            return Err(Delivery::Full);
        }
        self.readings.atomic(ticket);
        Err(Delivery::Later)
    }
}
