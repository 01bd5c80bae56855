//! Assigns doorbells to pairs of processes, and bits of their ready maps to links.

use crate::row_keys::SessionId;
use omniverb_session::limits::LINKS_PER_BELL;
use std::collections::{BTreeSet, HashMap};

/// Bits in use of one page's ready map, handed out in turn: a bit that was just given back may
/// still be set by a peer that is late to notice.
#[derive(Debug)]
struct Slots {
    words: [u64; LINKS_PER_BELL / 64],
    next: usize,
}

impl Slots {
    fn new() -> Slots {
        Slots { words: [0; LINKS_PER_BELL / 64], next: 0 }
    }

    fn take(&mut self) -> Option<u32> {
        for step in 0..LINKS_PER_BELL {
            let slot = (self.next + step) % LINKS_PER_BELL;
            let (word, bit) = (slot / 64, 1u64 << (slot % 64));
            if self.words[word] & bit == 0 {
                self.words[word] |= bit;
                self.next = slot + 1;
                return u32::try_from(slot).ok();
            }
        }
        None
    }

    fn free(&self) -> usize {
        self.words.iter().map(|word| word.count_zeros() as usize).sum()
    }

    fn give(&mut self, slot: u32) {
        let slot = slot as usize % LINKS_PER_BELL;
        self.words[slot / 64] &= !(1 << (slot % 64));
    }
}

/// Two sessions, the older first; the same twice for links within one process.
type Pair = (SessionId, SessionId);

#[derive(Debug)]
struct Bell {
    id: u64,
    /// One map per side; only the first is used within one process.
    slots: [Slots; 2],
}

/// The place of a link in a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BellSlot {
    /// Names the bell; no two have the same.
    pub(crate) bell: u64,
    /// The bell is made for this link, and there is none if that fails.
    pub(crate) is_new: bool,
    /// Page of the first and of the second end.
    pub(crate) sides: [u32; 2],
    /// Bit of each end in its own page.
    pub(crate) slots: [u32; 2],
}

/// All bells of the host.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    bells: HashMap<Pair, Bell>,
    /// The peers that each session has one with.
    of: BTreeSet<(SessionId, SessionId)>,
    last: u64,
}

fn pair(first: SessionId, second: SessionId) -> (Pair, bool) {
    if first <= second { ((first, second), false) } else { ((second, first), true) }
}

impl Bells {
    /// A place for a link between these two; `None` if their bell is full.
    pub(crate) fn take(&mut self, first: SessionId, second: SessionId) -> Option<BellSlot> {
        let (key, swapped) = pair(first, second);
        let is_new = !self.bells.contains_key(&key);
        if is_new {
            self.last += 1;
            self.of.extend([(first, second), (second, first)]);
        }
        let id = self.last;
        let bell = self
            .bells
            .entry(key)
            .or_insert_with(|| Bell { id, slots: [Slots::new(), Slots::new()] });
        let sides = match (first == second, swapped) {
            (true, _) => [0, 0],
            (false, false) => [0, 1],
            (false, true) => [1, 0],
        };
        let one = bell.slots[sides[0] as usize].take()?;
        let Some(other) = bell.slots[sides[1] as usize].take() else {
            bell.slots[sides[0] as usize].give(one);
            return None;
        };
        Some(BellSlot { bell: bell.id, is_new, sides, slots: [one, other] })
    }

    /// There is a place for a link between these two.
    pub(crate) fn has_room(&self, first: SessionId, second: SessionId) -> bool {
        let Some(bell) = self.bells.get(&pair(first, second).0) else { return true };
        match first == second {
            true => bell.slots[0].free() >= 2,
            false => bell.slots.iter().all(|slots| slots.free() >= 1),
        }
    }

    /// Gives a place back.
    pub(crate) fn give(&mut self, first: SessionId, second: SessionId, place: &BellSlot) {
        let Some(bell) = self.bells.get_mut(&pair(first, second).0) else { return };
        // A bell of the same pair may be another one by now.
        if bell.id == place.bell {
            for end in 0..2 {
                bell.slots[place.sides[end] as usize].give(place.slots[end]);
            }
        }
    }

    /// The daemon could not make this bell's memory: the next link tries anew.
    pub(crate) fn forget(&mut self, first: SessionId, second: SessionId) {
        self.remove(first, second);
    }

    fn remove(&mut self, first: SessionId, second: SessionId) -> Option<Bell> {
        self.of.remove(&(first, second));
        self.of.remove(&(second, first));
        self.bells.remove(&pair(first, second).0)
    }

    /// Removes all bells of a session that ended; says which other sessions had one with it.
    pub(crate) fn end(&mut self, session: SessionId) -> Vec<(SessionId, u64)> {
        let all = (session, SessionId(0))..=(session, SessionId(u64::MAX));
        let others: Vec<SessionId> = self.of.range(all).map(|(_, other)| *other).collect();
        let ended = others.into_iter().filter_map(|other| {
            let bell = self.remove(session, other)?;
            (other != session).then_some((other, bell.id))
        });
        ended.collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.bells.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn a_pair_shares_a_doorbell_and_bits_do_not_repeat_soon() {
        let mut bells = Bells::default();
        let one = bells.take(A, B).unwrap();
        assert_eq!((one.is_new, one.sides, one.slots), (true, [0, 1], [0, 0]));
        let two = bells.take(B, A).unwrap();
        assert_eq!((two.is_new, two.sides, two.slots, two.bell), (false, [1, 0], [1, 1], one.bell));
        bells.give(A, B, &one);
        assert_eq!(bells.take(A, B).unwrap().slots, [2, 2]);
        assert_eq!(bells.end(A), [(B, one.bell)]);
        assert_eq!(bells.count(), 0);
        bells.give(A, B, &two);
    }

    #[test]
    fn within_one_process_the_bits_differ_and_run_out() {
        let mut bells = Bells::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..LINKS_PER_BELL / 2 {
            let place = bells.take(A, A).unwrap();
            assert_eq!(place.sides, [0, 0]);
            assert!(seen.insert(place.slots[0]) && seen.insert(place.slots[1]));
        }
        assert!(!bells.has_room(A, A));
        assert_eq!(bells.take(A, A), None);
        assert_eq!(bells.end(A), []);
    }

    #[test]
    fn a_full_doorbell_gives_one_place_for_each_returned() {
        let mut bells = Bells::default();
        let places: Vec<_> = (0..LINKS_PER_BELL).map(|_| bells.take(A, B).unwrap()).collect();
        assert_eq!(bells.take(A, B), None);
        assert!(!bells.has_room(A, B));
        bells.give(A, B, &places[77]);
        assert!(bells.has_room(A, B));
        assert_eq!(bells.take(A, B).unwrap().slots, [77, 77]);
        assert_eq!(bells.take(A, B), None);
    }
}
