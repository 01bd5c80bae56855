//! Delivers [early requests](super::early_requests) to a new listener, or refuses them in time.

use super::early_requests::{Early, called, name};
use super::message_ends::Ends;
use crate::cm::ConnectionManager;
use crate::timers::Timer;
use omniverb_cm::{Mad, ServiceId};
use omniverb_terms::VnicId;

impl ConnectionManager<'_> {
    /// Keeps a request without listener, or refuses it or another that yields.
    pub(super) fn keep_early(&mut self, ends: Ends, mad: &Mad, now: u64) {
        let yields = self.connections.early.keep(ends, mad.clone(), now);
        self.set_early_timer();
        if let Some(Early { ends, mad, .. }) = yields {
            self.refuse_early(ends, &mad, now);
        }
    }

    fn set_early_timer(&mut self) {
        match self.connections.early.due() {
            Some(at) => self.context.timers.set(Timer::EarlyRequests, at),
            None => self.context.timers.clear(Timer::EarlyRequests),
        }
    }

    /// A listener of a service exists now.
    pub(super) fn is_waited_for(&mut self, at: VnicId, service: ServiceId, now: u64) {
        let fits = |early: &Early| called(&early.mad) == Some(service);
        for Early { ends, mad, .. } in self.connections.early.take(at, fits) {
            self.cm_arrived(ends, &mad, now);
        }
        self.set_early_timer();
        self.carry_cm(now);
    }

    /// The requester of a connection that does not exist has given up waiting.
    pub(super) fn is_given_up(&mut self, ends: Ends, asker: u32) {
        let same =
            |early: &Early| (early.ends.sender, name(&early.mad)) == (ends.sender, Some(asker));
        self.connections.early.take(ends.at, same);
        self.set_early_timer();
    }

    /// Refuses those that were kept long enough.
    pub(crate) fn early_requests_due(&mut self, now: u64) {
        for Early { ends, mad, .. } in self.connections.early.take_due(now) {
            self.refuse_early(ends, &mad, now);
        }
        self.set_early_timer();
        self.carry_cm(now);
    }

    /// Refuses one, also when it comes again.
    fn refuse_early(&mut self, ends: Ends, mad: &Mad, now: u64) {
        self.connections.early.note_refused(ends, mad, now);
        self.refuse_cm(ends, mad);
    }

    /// A vNIC is no more, nor what was kept for it.
    pub(crate) fn forget_early(&mut self, vnic: VnicId) {
        self.connections.early.forget(vnic);
        self.set_early_timer();
    }
}
