//! Limits the unasked events of a session to its reading speed.
//!
//! Others may open datagram links towards a session, strangers' packets make links for it, peers
//! ask for its pages. Each is an event for it, and waits until it is taken. So a session that is
//! behind gets no new links that it did not ask for: requesters ask again, packets are lost as on a
//! busy line. The events that wait are bounded then by its own rows and requests: each of its links
//! can be made once and end once, however many others open and close.

use super::session::{Pace, Session};
use crate::accounts::{Kind, Receipt};
use crate::action::Action;
use crate::decision_context::Context;
use crate::row_keys::SessionId;
use crate::vnics_and_policies::Tenants;
use omniverb_terms::Errno;

impl Tenants {
    /// The session's reading speed has changed.
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

    /// The charge for one more question for pages, if it may wait for this owner.
    pub(crate) fn charge_question(&self, owner: SessionId) -> Result<Receipt, Errno> {
        self.sessions.get(&owner).ok_or(Errno::ENOENT)?.account().charge(&[Kind::Question])
    }
}
