//! Retransmits DREQs of ids that are destroyed.
//!
//! A peer that misses them stays connected for ever, and most programs end a connection, or just
//! end, and forget it at once. So an unanswered DREQ is sent a few more times after the id is gone;
//! when the vNIC is about to go as well, at once. Rows are small, and bounded for each vNIC: beyond
//! the bound a DREQ is sent once.

use omniverb_cm::{Disconnect, Mad, Message};
use omniverb_terms::{Gid, Qpn, VnicId};
use std::collections::{BTreeMap, BTreeSet};

/// Budget: how many are remembered for one vNIC.
const FAREWELLS_MAX: usize = 4096;
/// How often each is said again.
const TIMES: u8 = 3;
/// When it is for the first time, in nanoseconds; then after ever longer pauses.
const FIRST: u64 = 100_000_000;
/// How many times as long each pause is as the one before.
const LONGER: u64 = 4;

/// The end of one connection, to be said again.
#[derive(Clone, Copy, Debug)]
struct Farewell {
    /// Our own name, and the peer's.
    ends: (Gid, Gid),
    transaction: u64,
    /// The peer's name for it.
    remote: u32,
    /// The peer's queue pair, which DREQ names.
    queue_pair: Qpn,
    left: u8,
    pause: u64,
    due: u64,
}

impl Farewell {
    /// For a DREQ that was just sent: it is due for the first time after a pause.
    fn new(ends: (Gid, Gid), transaction: u64, said: &Disconnect, now: u64) -> Farewell {
        let (remote, queue_pair) = (said.remote, said.queue_pair);
        let (left, pause, due) = (TIMES, FIRST, now.saturating_add(FIRST));
        Farewell { ends, transaction, remote, queue_pair, left, pause, due }
    }

    fn mad(&self, communication: u32) -> Mad {
        let Farewell { transaction, remote, queue_pair, .. } = *self;
        let private = [0; 220];
        let message = Disconnect { communication, remote, queue_pair, private };
        Mad { transaction, modifier: 0, message: Message::Disconnect(message) }
    }

    /// The row after another transmission; `None`: that was the last.
    fn again(self, now: u64) -> Option<Farewell> {
        let left = self.left.checked_sub(1).filter(|left| *left > 0)?;
        let pause = self.pause * LONGER;
        Some(Farewell { left, pause, due: now.saturating_add(pause), ..self })
    }
}

/// All of them, by our name for the connection, and in the order of their times.
#[derive(Debug, Default)]
pub(super) struct DreqRetransmissions {
    of: BTreeMap<VnicId, BTreeMap<u32, Farewell>>,
    order: BTreeSet<(u64, VnicId, u32)>,
}

impl DreqRetransmissions {
    /// Nothing is left to say.
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty() && self.order.is_empty()
    }

    /// This, which ends a connection, was just said by one end to the other.
    pub(super) fn add(&mut self, at: VnicId, ends: (Gid, Gid), mad: &Mad, now: u64) {
        if let Message::Disconnect(said) = &mad.message {
            let farewell = Farewell::new(ends, mad.transaction, said, now);
            self.put(at, said.communication, farewell);
        }
    }

    fn put(&mut self, at: VnicId, name: u32, farewell: Farewell) {
        self.remove(at, name);
        let rows = self.of.entry(at).or_default();
        if rows.len() < FAREWELLS_MAX {
            rows.insert(name, farewell);
            self.order.insert((farewell.due, at, name));
        }
    }

    fn remove(&mut self, at: VnicId, name: u32) -> Option<Farewell> {
        let rows = self.of.get_mut(&at)?;
        let farewell = rows.remove(&name);
        if rows.is_empty() {
            self.of.remove(&at);
        }
        if let Some(farewell) = &farewell {
            self.order.remove(&(farewell.due, at, name));
        }
        farewell
    }

    /// The peer of one, if it is between these ends, has heard it.
    pub(super) fn is_heard(&mut self, at: VnicId, ends: (Gid, Gid), name: u32) {
        let said = self.of.get(&at).and_then(|rows| rows.get(&name));
        if said.is_some_and(|said| said.ends == ends) {
            self.remove(at, name);
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.order.first().map(|(at, ..)| *at)
    }

    /// One that is due: of which vNIC, between which ends, what.
    pub(super) fn take_due(&mut self, now: u64) -> Option<(VnicId, (Gid, Gid), Mad)> {
        let (_, at, name) = *self.order.first().filter(|(due, ..)| *due <= now)?;
        let said = self.remove(at, name)?;
        if let Some(again) = said.again(now) {
            self.put(at, name, again);
        }
        Some((at, said.ends, said.mad(name)))
    }

    /// All that one vNIC had left to say.
    pub(super) fn take_all(&mut self, at: VnicId) -> Vec<((Gid, Gid), Mad)> {
        let rows = self.of.remove(&at).unwrap_or_default();
        self.order.retain(|(_, of, _)| *of != at);
        let round = |round| {
            let left = rows.iter().filter(move |(_, said)| said.left > round);
            left.map(|(name, said)| (said.ends, said.mad(*name)))
        };
        (0..TIMES).flat_map(round).collect()
    }

    /// Rows and their order are of the same farewells, and no vNIC has more than it may.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self) {
        assert_eq!(self.order.len(), self.of.values().map(BTreeMap::len).sum::<usize>());
        assert!(self.of.values().all(|rows| !rows.is_empty() && rows.len() <= FAREWELLS_MAX));
    }
}
