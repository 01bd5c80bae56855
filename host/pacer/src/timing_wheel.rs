//! Keeps nodes by the time at which they are due: a timing wheel whose next slot is found by three
//! levels of bitmaps, in constant time. Its slots are the first of the [`Rings`] of its owner.
//!
//! A node is never handed out early, unless its time is beyond the horizon: the caller looks at its
//! time again and puts it back. A slot's nodes are in the order of their coming.

use crate::node_lists::{NONE, Rings};

/// Slots of the wheel.
pub(crate) const SLOTS: u64 = 1 << 14;
/// A slot is so many binary digits of nanoseconds long: 2 us, so that the horizon is 33 ms.
const SHIFT: u32 = 11;
const WORDS: usize = (SLOTS / 64) as usize;

/// The nodes that wait for time. Each is in one slot at most.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Which slots have nodes, which words of that have bits, which words of that have.
    low: Box<[u64; WORDS]>,
    middle: [u64; WORDS / 64],
    high: u64,
    /// The first slot that may have nodes, counted from time 0.
    current: u64,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel { low: Box::new([0; WORDS]), middle: [0; WORDS / 64], high: 0, current: 0 }
    }

    /// Puts in a node, which is in no ring, to be taken out at this time.
    pub(crate) fn insert(&mut self, slots: &mut Rings, node: u32, at: u64, now: u64) {
        if self.high == 0 {
            self.current = self.current.max(now >> SHIFT);
        }
        // The end of a slot is when it is taken out.
        let slot = at.div_ceil(1 << SHIFT).clamp(self.current, self.current + SLOTS - 1);
        let index = (slot % SLOTS) as usize;
        slots.push_back(index as u32, node);
        self.low[index / 64] |= 1 << (index % 64);
        self.middle[index / 4096] |= 1 << (index / 64 % 64);
        self.high |= 1 << (index / 4096);
    }

    /// Takes out a node, wherever it is.
    pub(crate) fn remove(&mut self, slots: &mut Rings, node: u32) {
        let index = slots.remove(node);
        if index != NONE {
            self.clear(slots, index as usize);
        }
    }

    /// Takes out the next node that is due.
    pub(crate) fn pop(&mut self, slots: &mut Rings, now: u64) -> Option<u32> {
        let slot = self.first_slot()?;
        if slot > now >> SHIFT {
            self.current = self.current.max(now >> SHIFT);
            return None;
        }
        self.current = slot;
        let index = (slot % SLOTS) as usize;
        let node = slots.pop_front(index as u32)?;
        self.clear(slots, index);
        Some(node)
    }

    /// When the first is due.
    pub(crate) fn first(&self) -> Option<u64> {
        Some(self.first_slot()? << SHIFT)
    }

    /// A slot has lost a node.
    fn clear(&mut self, slots: &Rings, index: usize) {
        if slots.front(index as u32) != NONE {
            return;
        }
        self.low[index / 64] &= !(1 << (index % 64));
        if self.low[index / 64] == 0 {
            self.middle[index / 4096] &= !(1 << (index / 64 % 64));
            if self.middle[index / 4096] == 0 {
                self.high &= !(1 << (index / 4096));
            }
        }
    }

    fn first_slot(&self) -> Option<u64> {
        let from = self.current % SLOTS;
        let found = self.first_from(from as usize);
        if let Some(index) = found {
            return Some(self.current - from + index as u64);
        }
        // The turn after this one.
        self.first_from(0).map(|index| self.current - from + SLOTS + index as u64)
    }

    /// The first slot with nodes, of those at or behind an index.
    fn first_from(&self, from: usize) -> Option<usize> {
        let above = |word: u64, bit: usize| {
            let rest = word.checked_shr(bit as u32).unwrap_or(0);
            (rest != 0).then(|| bit + rest.trailing_zeros() as usize)
        };
        if let Some(bit) = above(self.low[from / 64], from % 64) {
            return Some(from / 64 * 64 + bit);
        }
        let word = if let Some(bit) = above(self.middle[from / 4096], from / 64 % 64 + 1) {
            from / 4096 * 64 + bit
        } else {
            let middle = above(self.high, from / 4096 + 1)?;
            middle * 64 + self.middle[middle].trailing_zeros() as usize
        };
        Some(word * 64 + self.low[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The longest time that is waited for at once.
    const HORIZON: u64 = SLOTS << SHIFT;

    /// The slots of a wheel, for so many nodes.
    fn rings(nodes: usize) -> Rings {
        let mut rings = Rings::default();
        rings.grow_rings(SLOTS as usize);
        rings.grow_members(nodes);
        rings
    }

    proptest! {
        /// Against a sorted map: never early, never later than a slot's length, nothing lost.
        #[test]
        fn nodes_come_out_in_time(
            steps in proptest::collection::vec(
                (0_u32..64, 0_u64..2 * HORIZON, 0_u64..HORIZON / 8),
                1..400,
            ),
        ) {
            let (mut wheel, mut slots) = (Wheel::new(), rings(64));
            let mut model = BTreeMap::new();
            let mut now = 5_000_000_000_u64;
            for (node, wait, passes) in steps {
                if model.remove(&node).is_some() {
                    wheel.remove(&mut slots, node);
                } else {
                    wheel.insert(&mut slots, node, now + wait, now);
                    model.insert(node, now + wait);
                }
                now += passes;
                while let Some(node) = wheel.pop(&mut slots, now) {
                    let at = model[&node];
                    if at > now {
                        // Beyond the horizon.
                        prop_assert!(at + (1 << SHIFT) >= HORIZON);
                        wheel.insert(&mut slots, node, at, now);
                    } else {
                        model.remove(&node);
                    }
                }
                let late = model.values().find(|at| **at + (1 << SHIFT) <= now);
                prop_assert_eq!(late, None);
                let earliest = model.values().min().copied();
                prop_assert_eq!(wheel.first().is_some(), earliest.is_some());
                if let (Some(first), Some(at)) = (wheel.first(), earliest) {
                    prop_assert!(first < at + (1 << SHIFT), "{} {}", first, at);
                }
            }
        }
    }

    #[test]
    fn a_wheel_that_stood_still_starts_where_time_is() {
        let (mut wheel, mut slots) = (Wheel::new(), rings(2));
        assert_eq!((wheel.first(), wheel.pop(&mut slots, u64::MAX)), (None, None));
        wheel.insert(&mut slots, 1, 700_000_000_000, 699_999_000_000);
        assert_eq!(wheel.pop(&mut slots, 699_999_900_000), None);
        assert_eq!(wheel.pop(&mut slots, 700_000_002_048), Some(1));
        wheel.remove(&mut slots, 1);
        assert_eq!(wheel.first(), None);
    }
}
