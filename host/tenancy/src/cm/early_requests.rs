//! Keeps connection requests that arrive before their listener.
//!
//! Two programs that agree by other means to connect now do not agree which of them is first: one
//! listens while the other finds an address and a route, makes a queue pair and sends a request,
//! which takes longer on every kernel. Here it may not, and programs count on it (perftest's `-R`
//! does, and does not survive a refusal). So a request without listener is early: it is kept for a
//! moment, and refused then. Few are kept for a vNIC at a time, and fewer of one sender; all others
//! are refused at once. Where there is no room, the sender with the most makes some.
//!
//! A refused request may have been sent again before the refusal arrived. Its queue pair may by
//! then have sent a new request, so a repetition of a refused one is dropped, even if a listener
//! exists now.

use super::message_ends::Ends;
use omniverb_cm::{Mad, Message, ServiceId};
use omniverb_terms::{Gid, VnicId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long one is kept, in nanoseconds: long enough for a program that shares its processor to
/// listen, and over before the asker says it again (100 ms), as a rule.
const EARLY: u64 = 60_000_000;
/// How long one that was refused is known when it comes again, in nanoseconds.
const KNOWN: u64 = 5_000_000_000;
/// Budget: refused requests that are known of one vNIC's.
const KNOWN_MAX: usize = 64;
/// Budget: early requests that are kept for one vNIC.
const EARLY_MAX: usize = 16;
/// Budget: those of one sender, a host, to one vNIC.
const EARLY_OF_ONE: usize = 4;

/// One of them.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) ends: Ends,
    pub(super) mad: Mad,
    pub(super) until: u64,
}

/// One that was refused: its sender, the sender's names for it, and until when it is known.
#[derive(Debug)]
struct Refused {
    sender: Gid,
    name: Option<u32>,
    transaction: u64,
    until: u64,
}

/// All of them, for each vNIC in the order of their coming.
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    rows: BTreeMap<VnicId, VecDeque<Early>>,
    /// When the first one of each vNIC has been kept long enough.
    due: BTreeSet<(u64, VnicId)>,
    refused: BTreeMap<VnicId, VecDeque<Refused>>,
}

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

impl EarlyRequests {
    /// None is kept, and none remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.due.is_empty() && self.refused.is_empty()
    }

    /// Keeps one for a moment from now on. Which one is not kept, or no more, if there was no room.
    pub(super) fn keep(&mut self, ends: Ends, mad: Mad, now: u64) -> Option<Early> {
        let early = Early { ends, mad, until: now.saturating_add(EARLY) };
        self.change(ends.at, |rows| {
            if rows.iter().any(|other| other.ends == early.ends && other.mad == early.mad) {
                return None;
            }
            let sender = |early: &Early| early.ends.sender.host();
            let mut of = BTreeMap::<Gid, usize>::new();
            for other in rows.iter() {
                *of.entry(sender(other)).or_default() += 1;
            }
            let own = of.get(&sender(&early)).copied().unwrap_or(0);
            if own >= EARLY_OF_ONE {
                return Some(early);
            }
            let mut yields = None;
            if rows.len() >= EARLY_MAX {
                let (most, largest) = of.iter().map(|(largest, count)| (*count, *largest)).max()?;
                if most <= own + 1 {
                    return Some(early);
                }
                let oldest = rows.iter().position(|other| sender(other) == largest);
                yields = oldest.and_then(|at| rows.remove(at));
            }
            rows.push_back(early);
            yields
        })
    }

    /// Changes the requests kept for one vNIC.
    fn change<T>(&mut self, at: VnicId, change: impl FnOnce(&mut VecDeque<Early>) -> T) -> T {
        let rows = self.rows.entry(at).or_default();
        let before = rows.front().map(|early| early.until);
        let changed = change(rows);
        let after = rows.front().map(|early| early.until);
        if rows.is_empty() {
            self.rows.remove(&at);
        }
        if before != after {
            before.iter().for_each(|until| {
                self.due.remove(&(*until, at));
            });
            self.due.extend(after.map(|until| (until, at)));
        }
        changed
    }

    /// One is refused now, and known for a while when it comes again.
    pub(super) fn note_refused(&mut self, ends: Ends, mad: &Mad, now: u64) {
        let (name, transaction, until) = (name(mad), mad.transaction, now.saturating_add(KNOWN));
        let refused = self.refused.entry(ends.at).or_default();
        if refused.len() >= KNOWN_MAX {
            refused.pop_front();
        }
        refused.push_back(Refused { sender: ends.sender, name, transaction, until });
    }

    /// Whether this is one that was refused, again.
    pub(super) fn was_refused(&mut self, ends: Ends, mad: &Mad, now: u64) -> bool {
        let Some(refused) = self.refused.get_mut(&ends.at) else { return false };
        while refused.pop_front_if(|first| first.until <= now).is_some() {}
        let same = (ends.sender, name(mad), mad.transaction);
        refused.iter().any(|one| (one.sender, one.name, one.transaction) == same)
    }

    /// A vNIC is no more, nor what was kept or known for it.
    pub(super) fn forget(&mut self, vnic: VnicId) {
        self.take(vnic, |_| true);
        self.refused.remove(&vnic);
    }

    /// When the next one has been kept long enough.
    pub(super) fn due(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Takes out those that were kept long enough.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<Early> {
        let mut out = Vec::new();
        while let Some((_, at)) = self.due.first().copied().filter(|(until, _)| *until <= now) {
            out.extend(self.take(at, |early| early.until <= now));
        }
        out
    }

    /// Takes out those of a vNIC of which this holds.
    pub(super) fn take(&mut self, at: VnicId, which: impl Fn(&Early) -> bool) -> Vec<Early> {
        self.change(at, |rows| {
            let (out, rest) = std::mem::take(rows).into_iter().partition(which);
            *rows = rest;
            Vec::from_iter::<VecDeque<Early>>(out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::message_ends::Origin;
    use omniverb_cm::Resolve;
    use std::net::IpAddr;

    fn ask(early: &mut EarlyRequests, sender: u8, request: u32) -> Option<(u8, u32)> {
        let (partition_key, service, private) = (0xffff, 0x0106_0001, [0; 216]);
        let resolve = Resolve { request, partition_key, service, private };
        let message = Message::Resolve(resolve);
        let mad = Mad { transaction: 1, modifier: 0, message };
        let gid = |last| Gid::from(IpAddr::from([10, 0, 0, last]));
        let ends = Ends { at: VnicId(1), own: gid(1), sender: gid(sender), from: Origin::Network };
        let yields = early.keep(ends, mad, 0)?;
        let sender = (0..50).find(|last| yields.ends.sender == gid(*last))?;
        Some((sender, name(&yields.mad)?))
    }

    #[test]
    fn one_sender_has_few_and_the_largest_makes_room() {
        let mut early = EarlyRequests::default();
        for sender in [2, 3, 4, 5] {
            for request in 0..4 {
                assert_eq!(ask(&mut early, sender, request), None);
            }
            assert_eq!(ask(&mut early, sender, 4), Some((sender, 4)), "one too many");
            assert_eq!(ask(&mut early, sender, 3), None, "again");
        }
        let yields = ask(&mut early, 6, 0);
        assert!(yields.is_some_and(|(sender, request)| sender != 6 && request == 0), "{yields:?}");
        assert_eq!(early.rows[&VnicId(1)].len(), EARLY_MAX);
        // If all senders have as many, none yields.
        for sender in 7..50 {
            ask(&mut early, sender, 0);
        }
        assert_eq!(early.rows[&VnicId(1)].len(), EARLY_MAX);
    }
}
