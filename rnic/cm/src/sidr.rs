//! Resolves a service to a queue pair (12.11): a question and its answer, by which datagrams find
//! their receiver.
//!
//! In and out: as for a connection. Whoever has answered keeps the answer, for who asks again.

use crate::connection::CmAction;
use crate::mad::Mad;
use crate::message::{Message, Resolve, Resolved};
use crate::retransmit::{Retransmit, RetransmitDue};
use crate::{Private, WrongState};
use omniverb_terms::{Qkey, Qpn};

/// Statuses of an answer (12.11.2.2).
#[allow(missing_docs)]
pub mod status {
    pub const VALID: u8 = 0;
    pub const UNSUPPORTED: u8 = 1;
    pub const REJECTED: u8 = 2;
}

/// How far it is.
#[derive(Clone, Debug)]
enum State {
    /// We have asked.
    Sent(Retransmit),
    /// We were asked.
    Asked { transaction: u64 },
    /// We have answered this.
    Answered(Mad),
    /// Nothing is left to do.
    Closed,
}

/// What became of a question of ours.
#[allow(clippy::large_enum_variant)] // one at a time, on the stack
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SidrOutcome {
    /// The peer said this.
    Answer(Resolved),
    /// The peer does not answer.
    Silence,
}

/// A question for a queue pair that serves datagrams, at either end.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The asker's name for it.
    request: u32,
    service: u64,
    state: State,
}

impl Resolution {
    /// Asks for a queue pair: `out` has the SIDR_REQ to send.
    pub fn ask(
        resolve: Resolve,
        transaction: u64,
        now: u64,
        out: &mut Vec<CmAction>,
    ) -> Resolution {
        let (request, service) = (resolve.request, resolve.service);
        let mad = Mad { transaction, modifier: 0, message: Message::Resolve(resolve) };
        out.push(CmAction::Send(mad.clone()));
        Resolution { request, service, state: State::Sent(Retransmit::new(mad, now)) }
    }

    /// One that begins with a SIDR_REQ which came.
    pub fn asked(resolve: &Resolve, transaction: u64) -> Resolution {
        let (request, service) = (resolve.request, resolve.service);
        Resolution { request, service, state: State::Asked { transaction } }
    }

    /// The asker's name for it.
    pub fn request(&self) -> u32 {
        self.request
    }

    /// When [`tick`](Self::tick) wants to be called.
    pub fn deadline(&self) -> Option<u64> {
        match &self.state {
            State::Sent(repeat) => Some(repeat.due()),
            _ => None,
        }
    }

    /// We were asked, and our user has not answered.
    pub fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    /// Our user answers: with a queue pair and its Q_Key, or with a status that is not zero.
    ///
    /// # Errors
    /// Nobody has asked, or has been answered.
    pub fn answer(
        &mut self,
        status: u8,
        (queue_pair, queue_key): (Qpn, Qkey),
        private: Private<136>,
        out: &mut Vec<CmAction>,
    ) -> Result<(), WrongState> {
        let State::Asked { transaction } = self.state else { return Err(WrongState) };
        let message = Message::Resolved(Resolved {
            request: self.request,
            status,
            information_length: 0,
            vendor: 0,
            queue_pair,
            service: self.service,
            queue_key,
            information: [0; 72],
            private,
        });
        let mad = Mad { transaction, modifier: 0, message };
        out.push(CmAction::Send(mad.clone()));
        self.state = State::Answered(mad);
        Ok(())
    }

    /// Our user has forgotten it, or is no more.
    pub fn destroy(&mut self, out: &mut Vec<CmAction>) {
        if self.is_asked() {
            let _ = self.answer(status::REJECTED, (Qpn(0), Qkey(0)), [0; 136], out);
        }
        self.state = State::Closed;
    }

    /// The question came once more.
    pub fn asked_again(&self, out: &mut Vec<CmAction>) {
        if let State::Answered(mad) = &self.state {
            out.push(CmAction::Send(mad.clone()));
        }
    }

    /// An answer came.
    pub fn answered(&mut self, resolved: &Resolved) -> Option<SidrOutcome> {
        let is_ours = resolved.request == self.request && matches!(self.state, State::Sent(_));
        if !is_ours {
            return None;
        }
        self.state = State::Closed;
        Some(SidrOutcome::Answer(resolved.clone()))
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64, out: &mut Vec<CmAction>) -> Option<SidrOutcome> {
        let State::Sent(repeat) = &mut self.state else { return None };
        match repeat.tick(now) {
            RetransmitDue::Nothing => None,
            RetransmitDue::Again(mad) => {
                out.push(CmAction::Send(mad));
                None
            }
            RetransmitDue::Over => {
                self.state = State::Closed;
                Some(SidrOutcome::Silence)
            }
        }
    }
}
