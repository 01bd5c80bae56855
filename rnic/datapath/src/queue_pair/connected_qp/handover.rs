//! Brings a queue pair to rest, for another host to go on with it, and goes on with one.

use super::{Connected, Transport};
use crate::handover::{Handover, HandoverError};
use crate::pages::mapped_pages::MappedPages;
use crate::queue_pair::connection_parameters;
use crate::queue_pair::qp_stage::Stage;
use omniverb_link::Broken;
use omniverb_terms::Service;
use omniverb_transport::Connection;

impl<P: MappedPages> Connected<P> {
    /// The application's requests stay in its ring from now on, or do no longer. What was taken
    /// goes on, and the peer is served.
    pub fn hold_requests(&mut self, hold: bool) {
        self.holds_requests = hold;
    }

    /// Takes no more requests, neither of the application nor of the peer, and asks for nothing:
    /// another host will. What the peer has asked for is answered still: [`Self::export`] is soon
    /// possible, if the application answers, and takes what its READs have brought.
    pub fn rest(&mut self) {
        self.rests = true;
        self.application.keep_nothing();
        if let Some(Transport::Rc(connection)) = &mut self.transport {
            connection.rest();
        }
    }

    /// The state, for another host to go on with: nothing may be done with this one any more.
    /// `None`: it is not at rest yet, or is ending by itself, or has too much
    /// unanswered.
    pub fn export(&mut self, now: u64) -> Option<Handover> {
        let goes_on = matches!(self.stage, Stage::Receives | Stage::Sends);
        if self.service != Service::Rc || !goes_on || self.failure.is_some() {
            return None;
        }
        self.application.set_time(now);
        self.hear(now).ok()?;
        self.tell();
        let positions = self.application.rest()?;
        let connection = match &mut self.transport {
            _ if self.stage == Stage::Closed => return None,
            None => return Some(Handover { positions, receiving: None, sending: None }),
            Some(Transport::Rc(connection)) => connection,
            Some(Transport::Uc(..)) => return None,
        };
        let snapshot = connection.snapshot()?;
        let receiving = self.application.receiving_state(snapshot.responder.clone())?;
        let sending = match self.stage {
            Stage::Sends => {
                Some(self.application.sending_state(snapshot, connection.oldest_request())?)
            }
            _ => None,
        };
        let handover = Handover { positions, receiving: Some(receiving), sending };
        handover.to_bytes().is_some().then_some(handover)
    }

    /// Goes on, before it was served, where another host has ended. After an error this one can
    /// only be closed.
    pub fn restore(&mut self, handover: &Handover) -> Result<(), HandoverError> {
        if self.transport.is_some() || self.service != Service::Rc {
            return Err(HandoverError::Late);
        }
        self.application.resume(handover)?;
        let Some(receiving) = &handover.receiving else { return Ok(()) };
        let attributes = self.application.receiving().ok_or(HandoverError::Attributes)?;
        let config = self.terms.config(&attributes);
        let mut connection = Connection::new(config).map_err(|_| HandoverError::Attributes)?;
        connection
            .restore_responder(&receiving.responder)
            .map_err(|_| HandoverError::Connection)?;
        if let Some(sending) = &handover.sending {
            let attributes = self.application.sending().ok_or(HandoverError::Attributes)?;
            connection.ready_to_send(&connection_parameters::requesting(&attributes));
            let requester = &sending.requester;
            connection.restore_requester(requester).map_err(|_| HandoverError::Connection)?;
            let taken = self.application.take_requests(|request| connection.submit(request));
            taken.map_err(|Broken| HandoverError::Requests)?;
            connection.resume_sent(requester).map_err(|_| HandoverError::Requests)?;
            self.stage = Stage::Sends;
        }
        self.transport = Some(Transport::Rc(Box::new(connection)));
        Ok(())
    }
}
