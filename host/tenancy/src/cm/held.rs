//! Requests for which nobody waits yet.
//!
//! Two programs that agree by other means to connect now do not agree which of them is first: one
//! listens while the other, who has to find an address and a route, make a queue pair and ask,
//! takes longer on every kernel. Here it may not, and programs count on it (perftest's `-R` does,
//! and does not survive a refusal). So a request that nobody waits for is held for a moment, and
//! refused then. Few are held for a vNIC at a time, and fewer of one sender; all others are refused
//! at once. Where there is no room, the sender with the most makes some.

use omniverb_cm::{Mad, Message, ServiceId};
use omniverb_terms::{Gid, VnicId};
use std::collections::{BTreeMap, VecDeque};

/// How long, in nanoseconds: long enough for a program that shares its processor to listen, and
/// over before the asker says it again (100 ms), lest that come after the refusal.
const HELD: u64 = 60_000_000;
/// How many for one vNIC.
const HELD_MAX: usize = 16;
/// How many of one sender's.
const HELD_OF_ONE: usize = 4;

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
    /// Holds one for a moment from now on. Which one is not held, or no more, if there was no room.
    pub(super) fn hold(&mut self, ends: Ends, mad: Mad, now: u64) -> Option<Held> {
        let held = Held { ends, mad, until: now.saturating_add(HELD) };
        if self.0.iter().any(|other| other.ends == held.ends && other.mad == held.mad) {
            return None;
        }
        let mut of = BTreeMap::<Gid, usize>::new();
        for other in self.0.iter().filter(|other| other.ends.at == ends.at) {
            *of.entry(other.ends.sender).or_default() += 1;
        }
        let own = of.get(&ends.sender).copied().unwrap_or(0);
        if own >= HELD_OF_ONE {
            return Some(held);
        }
        let mut yields = None;
        if of.values().sum::<usize>() >= HELD_MAX {
            let (most, who) = of.iter().map(|(who, count)| (*count, *who)).max()?;
            if most <= own + 1 {
                return Some(held);
            }
            let theirs = |other: &Held| (other.ends.at, other.ends.sender) == (ends.at, who);
            let oldest = self.0.iter().position(theirs);
            yields = oldest.and_then(|at| self.0.remove(at));
        }
        self.0.push_back(held);
        yields
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

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_cm::Resolve;
    use std::net::IpAddr;

    fn ask(held: &mut HeldRequests, sender: u8, request: u32) -> Option<(u8, u32)> {
        let (partition_key, service, private) = (0xffff, 0x0106_0001, [0; 216]);
        let resolve = Resolve { request, partition_key, service, private };
        let message = Message::Resolve(resolve);
        let mad = Mad { transaction: 1, modifier: 0, message };
        let gid = |last| Gid::from(IpAddr::from([10, 0, 0, last]));
        let ends = Ends { at: VnicId(1), own: gid(1), sender: gid(sender), at_home: false };
        let yields = held.hold(ends, mad, 0)?;
        let sender = (0..50).find(|last| yields.ends.sender == gid(*last))?;
        Some((sender, name(&yields.mad)?))
    }

    #[test]
    fn one_sender_has_few_and_who_has_most_makes_room() {
        let mut held = HeldRequests::default();
        for sender in [2, 3, 4, 5] {
            for request in 0..4 {
                assert_eq!(ask(&mut held, sender, request), None);
            }
            assert_eq!(ask(&mut held, sender, 4), Some((sender, 4)), "one too many");
            assert_eq!(ask(&mut held, sender, 3), None, "again");
        }
        let yields = ask(&mut held, 6, 0);
        assert!(yields.is_some_and(|(sender, request)| sender != 6 && request == 0), "{yields:?}");
        assert_eq!(held.0.len(), HELD_MAX);
        // Where all have as many, nobody yields.
        for sender in 7..50 {
            ask(&mut held, sender, 0);
        }
        assert_eq!(held.0.len(), HELD_MAX);
    }
}
