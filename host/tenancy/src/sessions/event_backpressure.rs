//! Limits what a session is told without having asked to what it takes.
//!
//! Others may open datagram links towards a session, strangers' packets make links for it, peers
//! ask for its pages. Each is told to it, and what it is told waits until it is taken. So whoever
//! is behind gets no new links that it did not ask for: those who ask do so again, packets are lost
//! as on a busy line. What waits for a session is bounded then by what it has and what it asked
//! for: each of its links can be made once and end once, whoever else opens and closes how many.

use super::session::{Pace, Session};
use crate::accounts::{Kind, Receipt};
use crate::action::Action;
use crate::context::Context;
use crate::row_keys::SessionId;
use crate::tenants::Tenants;
use omniverb_terms::Errno;

impl Tenants {
    /// How the session takes what it is told has changed.
    pub(crate) fn set_pace(&mut self, session: SessionId, pace: Pace) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.set_pace(pace);
        }
    }

    /// False: nothing that `session` did not ask for may be told to it for now.
    pub(crate) fn has_time(&self, context: &mut Context, session: SessionId) -> bool {
        let pace = self.sessions.get(&session).map(Session::pace);
        let behind = pace == Some(Pace::Behind);
        if behind {
            context.act(Action::LookAgain { session });
        }
        !behind
    }

    /// What one more question for pages pays, if it may wait for this owner.
    pub(crate) fn charge_question(&self, owner: SessionId) -> Result<Receipt, Errno> {
        self.sessions.get(&owner).ok_or(Errno::ENOENT)?.account().charge(&[Kind::Question])
    }
}
