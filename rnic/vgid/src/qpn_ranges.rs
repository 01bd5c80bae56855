//! Gives vNICs of a host ranges of QPNs: contiguous, without overlap, and not again for a while
//! after they were given back, while packets for their last owner may still be under way.

use crate::virtual_qpn::{QpnOffset, QpnRange};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The QPNs of a host that vNICs of tenants may have.
#[derive(Debug)]
pub struct QpnRanges {
    /// Gaps, by where they begin: one past their end.
    free: BTreeMap<u32, u32>,
    /// Ranges that are somebody's.
    taken: BTreeMap<QpnOffset, QpnRange>,
    /// Ranges that were given back, and when they may be given again; soonest first.
    resting: VecDeque<(u64, QpnRange)>,
    /// How long a range rests, in nanoseconds.
    quarantine: u64,
    /// Where the next range is looked for first: one that was given back comes late.
    next: u32,
}

impl QpnRanges {
    /// Ranges within these numbers, each of which rests so many nanoseconds when it is given back.
    #[must_use]
    pub fn new(numbers: Range<u32>, quarantine: u64) -> QpnRanges {
        let start = numbers.start.max(QpnOffset::GRANULE).next_multiple_of(QpnOffset::GRANULE);
        let end = numbers.end.min(0x00ff_ffff) / QpnOffset::GRANULE * QpnOffset::GRANULE;
        let free = if start < end { BTreeMap::from([(start, end)]) } else { BTreeMap::new() };
        QpnRanges {
            free,
            taken: BTreeMap::new(),
            resting: VecDeque::new(),
            quarantine,
            next: start,
        }
    }

    /// A range of so many QPNs or some more. `None`: there is none left, or nobody can have so
    /// many.
    pub fn take(&mut self, count: u32, now: u64) -> Option<QpnRange> {
        self.wake(now);
        let count = QpnRange::new(QpnOffset::new(QpnOffset::GRANULE)?, count)?.count();
        let fits = |start: u32, end: u32| (end.saturating_sub(start) >= count).then_some(start);
        // The gap that the place to look at is in, those behind it, those before it.
        let within = self.free.range(..=self.next).next_back();
        let within = within.and_then(|(start, end)| fits(self.next.max(*start), *end));
        let behind = || self.free.range(self.next..).find_map(|(start, end)| fits(*start, *end));
        let before = || self.free.range(..self.next).find_map(|(start, end)| fits(*start, *end));
        let start = within.or_else(behind).or_else(before)?;
        let range = QpnRange::new(QpnOffset::new(start)?, count)?;
        self.next = range.end();
        self.claim(range).then_some(range)
    }

    /// A range that somebody has already: a vNIC of before the daemon was started. False: it is not
    /// free.
    pub fn adopt(&mut self, range: QpnRange, now: u64) -> bool {
        self.wake(now);
        self.claim(range)
    }

    /// A range is nobody's any more. False: it was not somebody's.
    pub fn give_back(&mut self, range: QpnRange, now: u64) -> bool {
        if self.taken.get(&range.offset()) != Some(&range) {
            return false;
        }
        self.taken.remove(&range.offset());
        self.resting.push_back((now.saturating_add(self.quarantine), range));
        true
    }

    /// The range that a number is in.
    #[must_use]
    pub fn of(&self, number: crate::PhysicalQpn) -> Option<QpnRange> {
        let floor = number.qpn().0 / QpnOffset::GRANULE * QpnOffset::GRANULE;
        let (_, range) = self.taken.range(..=QpnOffset::new(floor)?).next_back()?;
        (number.qpn().0 < range.end()).then_some(*range)
    }

    fn claim(&mut self, range: QpnRange) -> bool {
        let (start, end) = (range.offset().number(), range.end());
        let gap = self.free.range(..=start).next_back().map(|(from, to)| (*from, *to));
        let Some((from, to)) = gap.filter(|(_, to)| end <= *to) else { return false };
        self.free.remove(&from);
        if from < start {
            self.free.insert(from, start);
        }
        if end < to {
            self.free.insert(end, to);
        }
        self.taken.insert(range.offset(), range);
        true
    }

    /// Ranges that have rested long enough are free.
    fn wake(&mut self, now: u64) {
        while let Some((at, range)) = self.resting.front().copied()
            && at <= now
        {
            self.resting.pop_front();
            let (mut start, mut end) = (range.offset().number(), range.end());
            if let Some((from, to)) = self.free.range(..start).next_back().map(|(a, b)| (*a, *b))
                && to == start
            {
                self.free.remove(&from);
                start = from;
            }
            if let Some(to) = self.free.remove(&end) {
                end = to;
            }
            self.free.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PhysicalQpn;
    use omniverb_terms::Qpn;
    use proptest::prelude::*;

    #[test]
    fn a_range_rests_before_it_comes_back() {
        let mut ranges = QpnRanges::new(0..0x401, 100);
        let (one, two) = (ranges.take(256, 0).unwrap(), ranges.take(257, 0).unwrap());
        assert_eq!((one.offset().number(), two.count()), (0x100, 512));
        assert_eq!(ranges.take(1, 0), None, "all are taken");
        assert!(ranges.give_back(one, 5) && !ranges.give_back(one, 5));
        assert_eq!(ranges.take(1, 104), None);
        assert!(!ranges.adopt(one, 104));
        assert_eq!(ranges.take(1, 105), Some(one));
        assert!(ranges.give_back(two, 200) && ranges.adopt(two, 300) && !ranges.adopt(two, 300));
        assert_eq!(ranges.take(QpnRange::COUNT_MAX + 1, 1000), None);
        assert_eq!(QpnRanges::new(5..5, 0).take(1, 0), None);
        let number = |n| PhysicalQpn::new(Qpn(n)).unwrap();
        assert_eq!((ranges.of(number(0x1ff)), ranges.of(number(0x3ff))), (Some(one), Some(two)));
        assert_eq!((ranges.of(number(0xff)), ranges.of(number(0x400))), (None, None));
    }

    #[test]
    fn the_host_has_room_for_ten_thousand_vnics() {
        let mut ranges = QpnRanges::new(2..0x00c0_0000, 1);
        let all: Vec<_> = (0..10_000).map(|_| ranges.take(1000, 0).unwrap()).collect();
        assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].offset().number()));
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_nothing_is_lost(
            steps in proptest::collection::vec(
                (any::<bool>(), 1_u32..2000, 0_usize..20, 0_u64..40),
                1..300,
            ),
        ) {
            let (mut ranges, mut now) = (QpnRanges::new(300..20_000, 100), 0);
            let mut held: Vec<QpnRange> = Vec::new();
            let mut rests: Vec<(u64, QpnRange)> = Vec::new();
            for (takes, count, which, passes) in steps {
                now += passes;
                rests.retain(|(until, _)| *until > now);
                if takes {
                    let Some(range) = ranges.take(count, now) else { continue };
                    prop_assert!(range.count() >= count && range.offset().number() >= 300);
                    prop_assert!(range.end() <= 20_000);
                    let others = held.iter().chain(rests.iter().map(|(_, range)| range));
                    for other in others {
                        let apart = range.end() <= other.offset().number()
                            || other.end() <= range.offset().number();
                        prop_assert!(apart, "{range:?} {other:?}");
                    }
                    held.push(range);
                } else if which < held.len() {
                    let range = held.swap_remove(which);
                    prop_assert!(ranges.give_back(range, now));
                    rests.push((now + 100, range));
                }
            }
            for range in held.drain(..) {
                prop_assert!(ranges.give_back(range, now));
            }
            // All is one piece again.
            ranges.wake(now + 100);
            prop_assert_eq!(ranges.free.len(), 1);
            prop_assert_eq!(ranges.free.first_key_value(), Some((&512, &19_968)));
        }
    }
}
