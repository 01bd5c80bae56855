//! Requests for which nobody waits yet.
//!
//! Two programs that agree by other means to connect now do not agree which of them is first: one
//! listens while the other, who has to find an address and a route, make a queue pair and ask,
//! takes longer on every kernel. Here it may not, and programs count on it (perftest's `-R` does,
//! and does not survive a refusal). So a request that nobody waits for is held for a moment, and
//! refused then. Few are held for a vNIC at a time; all others are refused at once.

use omniverb_cm::{Mad, Message, ServiceId};
use omniverb_terms::{Gid, VnicId};
use std::collections::VecDeque;

/// How long, in nanoseconds: long enough for a program that shares its processor to listen, and
/// over before the asker says it again (100 ms), lest that come after the refusal.
const HELD: u64 = 60_000_000;
/// How many for one vNIC.
const HELD_MAX: usize = 16;

/// From whom, to whom: names of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) at: VnicId,
    /// The receiver's, one of `at`'s.
    pub(super) own: Gid,
    pub(super) sender: Gid,
    /// It came from `at` itself.
    pub(super) at_home: bool,
}

/// One that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) ends: Ends,
    pub(super) mad: Mad,
    pub(super) until: u64,
}

/// All of them, in the order of their coming.
#[derive(Debug, Default)]
pub(super) struct HeldRequests(VecDeque<Held>);

/// Which service a request is for.
pub(super) fn called(mad: &Mad) -> Option<ServiceId> {
    match &mad.message {
        Message::Request(request) => ServiceId::from_u64(request.service),
        Message::Resolve(resolve) => ServiceId::from_u64(resolve.service),
        _ => None,
    }
}

/// The asker's name for it.
pub(super) fn name(mad: &Mad) -> Option<u32> {
    match &mad.message {
        Message::Request(request) => Some(request.communication),
        Message::Resolve(resolve) => Some(resolve.request),
        _ => None,
    }
}

impl HeldRequests {
    /// Holds one for a moment from now on; says whether there was room.
    pub(super) fn hold(&mut self, ends: Ends, mad: Mad, now: u64) -> bool {
        let held = Held { ends, mad, until: now.saturating_add(HELD) };
        if self.0.iter().any(|other| other.ends == held.ends && other.mad == held.mad) {
            return true;
        }
        let room = self.0.iter().filter(|other| other.ends.at == held.ends.at).count() < HELD_MAX;
        if room {
            self.0.push_back(held);
        }
        room
    }

    /// When the next one has been held long enough.
    pub(super) fn due(&self) -> Option<u64> {
        self.0.front().map(|held| held.until)
    }

    /// Takes out those of which this holds.
    pub(super) fn take(&mut self, which: impl Fn(&Held) -> bool) -> Vec<Held> {
        let (out, rest) = std::mem::take(&mut self.0).into_iter().partition(which);
        self.0 = rest;
        Vec::from_iter::<VecDeque<Held>>(out)
    }
}
