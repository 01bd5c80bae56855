//! Tells what another host has to know to go on with an application at rest, and goes on so.

use super::Application;
use crate::handover::{Handover, HandoverError, ReceivingState, SendingState, ticket};
use crate::pages::mapped_pages::MappedPages;
use omniverb_link::EndpointPositions;
use omniverb_transport::snapshot::{ConnectionSnapshot, OpenMessage, ResponderSnapshot};
use omniverb_transport::{Operation, Request, Ticket};

impl<P: MappedPages> Application<P> {
    /// What the application has no room for is asked for again, by another host.
    pub(crate) fn keep_nothing(&mut self) {
        self.outgoing.keep_nothing();
    }

    /// Where this end is in the rings. `None`: the application has not answered something, or not
    /// been told something.
    pub(crate) fn rest(&self) -> Option<EndpointPositions> {
        let has_rest = self.reliable
            && !self.broken
            && !self.outgoing.waits()
            && self.readings.is_empty()
            && self.mapped_reads.is_empty();
        has_rest.then(|| self.endpoint.positions())
    }

    /// The receiving half. `None`: the application has not consumed what came before a part that
    /// was not taken.
    pub(crate) fn receiving_state(
        &self,
        mut responder: ResponderSnapshot,
    ) -> Option<ReceivingState> {
        let mut given = self.incoming.given().peekable();
        let oldest = responder.unanswered.first().map_or(Ticket(u64::MAX), |part| part.ticket);
        let mut delivered = 0;
        while let Some((_, end)) = given.next_if(|(ticket, _)| *ticket < oldest) {
            delivered = end;
        }
        let mut ends = Vec::new();
        for (index, part) in responder.unanswered.iter_mut().enumerate() {
            let end = given.next_if(|(ticket, _)| *ticket == part.ticket).map(|(_, end)| end);
            if end.is_none() && !part.is_done {
                return None;
            }
            part.ticket = ticket(index);
            ends.push(end);
        }
        if given.next().is_some() {
            return None;
        }
        let (route, has_notice_due) = (self.placing.route(), self.owing);
        Some(ReceivingState { responder, delivered, ends, route, has_notice_due })
    }

    /// The sending half. `oldest`: the request that is the oldest under way.
    pub(crate) fn sending_state(
        &self,
        snapshot: ConnectionSnapshot,
        oldest: Option<&Request>,
    ) -> Option<SendingState> {
        let requester = snapshot.requester;
        let write = match (requester.open, oldest.map(|request| request.operation)) {
            (
                Some(OpenMessage::Write { .. }),
                Some(Operation::Write { address, key, total, .. }),
            ) => Some((address, key, total)),
            (Some(OpenMessage::Write { .. }), _) => Some(self.outgoing.open_write()?),
            _ => None,
        };
        Some(SendingState { requester, write })
    }

    /// Goes on, before it was served, as another host has ended.
    pub(crate) fn resume(&mut self, handover: &Handover) -> Result<(), HandoverError> {
        let positions = handover.positions;
        if !self.endpoint.resume_at(&positions) {
            return Err(HandoverError::Positions);
        }
        let write = handover.sending.as_ref().and_then(|sending| sending.write);
        self.outgoing.resume_at(positions.requests_in, write);
        let Some(receiving) = &handover.receiving else { return Ok(()) };
        let delivered = Some((Ticket(0), receiving.delivered)).filter(|(_, end)| *end > 0);
        let parts = receiving.ends.iter().enumerate();
        let parts = parts.filter_map(|(index, end)| Some((ticket(index), (*end)?)));
        let given = || delivered.into_iter().chain(parts.clone());
        if !given().is_sorted_by(|(_, one), (_, next)| one < next)
            || given().any(|(_, end)| end > positions.requests_out)
        {
            return Err(HandoverError::Positions);
        }
        self.incoming.resume(given());
        self.placing.resume(receiving.route);
        self.owing = receiving.has_notice_due;
        Ok(())
    }
}
