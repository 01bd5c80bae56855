//! Requests for which nobody waits yet.
//!
//! Two programs that agree by other means to connect now do not agree which of them is first: one
//! listens while the other, who has to find an address and a route, make a queue pair and ask,
//! takes longer on every kernel. Here it may not, and programs count on it (perftest's `-R` does,
//! and does not survive a refusal). So a request that nobody waits for is held for a moment, and
//! refused then. Few are held for a vNIC at a time; all others are refused at once.

use super::arriving::Ends;
use crate::tenancy::Tenancy;
use crate::timers::Timer;
use omniverb_cm::{Mad, Message, ServiceId};
use omniverb_terms::VnicId;
use std::collections::VecDeque;

/// How long, in nanoseconds: long enough for a program that shares its processor to listen, and over
/// before the asker says it again (100 ms), lest that come after the refusal.
const HELD: u64 = 60_000_000;
/// How many for one vNIC.
const HELD_MAX: usize = 16;

/// One that is held.
#[derive(Debug)]
struct Held {
    ends: Ends,
    mad: Mad,
    until: u64,
}

/// All of them, in the order of their coming.
#[derive(Debug, Default)]
pub(super) struct HeldRequests(VecDeque<Held>);

/// Which service a request is for.
fn called(mad: &Mad) -> Option<ServiceId> {
    match &mad.message {
        Message::Request(request) => ServiceId::from_u64(request.service),
        Message::Resolve(resolve) => ServiceId::from_u64(resolve.service),
        _ => None,
    }
}

/// The asker's name for it.
fn name(mad: &Mad) -> Option<u32> {
    match &mad.message {
        Message::Request(request) => Some(request.communication),
        Message::Resolve(resolve) => Some(resolve.request),
        _ => None,
    }
}

impl HeldRequests {
    fn hold(&mut self, held: Held) -> bool {
        if self.0.iter().any(|other| other.ends == held.ends && other.mad == held.mad) {
            return true;
        }
        let room = self.0.iter().filter(|other| other.ends.at == held.ends.at).count() < HELD_MAX;
        if room {
            self.0.push_back(held);
        }
        room
    }

    /// Takes out those of which this holds.
    fn take(&mut self, which: impl Fn(&Held) -> bool) -> Vec<Held> {
        let (out, rest) = std::mem::take(&mut self.0).into_iter().partition(which);
        self.0 = rest;
        Vec::from_iter::<VecDeque<Held>>(out)
    }
}

impl Tenancy {
    /// Holds a request that nobody waits for; says whether.
    pub(super) fn hold_cm(&mut self, ends: Ends, mad: &Mad, now: u64) -> bool {
        let until = now.saturating_add(HELD);
        let held = self.connections.held.hold(Held { ends, mad: mad.clone(), until });
        self.set_held_timer();
        held
    }

    fn set_held_timer(&mut self) {
        match self.connections.held.0.front() {
            Some(held) => self.timers.set(Timer::HeldRequests, held.until),
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
            self.refuse_cm(ends, &mad);
        }
        self.set_held_timer();
        self.carry_cm(now);
    }

    /// A vNIC is no more.
    pub(crate) fn forget_held(&mut self, vnic: VnicId) {
        self.connections.held.take(|held| held.ends.at == vnic);
        self.set_held_timer();
    }
}
