//! What becomes of requests that are [held](super::held): somebody listens, or they are refused.

use super::held::{Ends, Held, called, name};
use crate::tenancy::Tenancy;
use crate::timers::Timer;
use omniverb_cm::{Mad, ServiceId};
use omniverb_terms::VnicId;

impl Tenancy {
    /// Holds a request that nobody waits for, or refuses it or another that yields.
    pub(super) fn hold_cm(&mut self, ends: Ends, mad: &Mad, now: u64) {
        let yields = self.connections.held.hold(ends, mad.clone(), now);
        self.set_held_timer();
        if let Some(Held { ends, mad, .. }) = yields {
            self.refuse_early(ends, &mad, now);
        }
    }

    fn set_held_timer(&mut self) {
        match self.connections.held.due() {
            Some(at) => self.timers.set(Timer::HeldRequests, at),
            None => self.timers.clear(Timer::HeldRequests),
        }
    }

    /// Somebody waits for requests of a service now.
    pub(super) fn is_waited_for(&mut self, at: VnicId, service: ServiceId, now: u64) {
        let fits = |held: &Held| held.ends.at == at && called(&held.mad) == Some(service);
        for Held { ends, mad, .. } in self.connections.held.take(fits) {
            self.cm_arrived(ends, &mad, now);
        }
        self.set_held_timer();
        self.carry_cm(now);
    }

    /// Who asked does so no more.
    pub(super) fn is_not_held(&mut self, ends: Ends, asker: u32) {
        let same = |held: &Held| {
            (held.ends.at, held.ends.sender, name(&held.mad)) == (ends.at, ends.sender, Some(asker))
        };
        self.connections.held.take(same);
        self.set_held_timer();
    }

    /// Refuses those that were held long enough.
    pub(crate) fn held_requests_due(&mut self, now: u64) {
        for Held { ends, mad, .. } in self.connections.held.take(|held| held.until <= now) {
            self.refuse_early(ends, &mad, now);
        }
        self.set_held_timer();
        self.carry_cm(now);
    }

    /// Refuses one, also when it comes again.
    fn refuse_early(&mut self, ends: Ends, mad: &Mad, now: u64) {
        self.connections.held.note_refused(ends, mad, now);
        self.refuse_cm(ends, mad);
    }

    /// A vNIC is no more.
    pub(crate) fn forget_held(&mut self, vnic: VnicId) {
        self.connections.held.forget(vnic);
        self.set_held_timer();
    }
}
