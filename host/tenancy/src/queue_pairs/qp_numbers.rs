//! Draws queue pair numbers, keys and tokens.

use omniverb_terms::{Qpn, Rkey};
use omniverb_vgid::{QpnRange, VirtualQpn};
use std::ops::RangeInclusive;

/// Where random numbers come from. The daemon asks the kernel; tests count.
pub trait Entropy {
    /// 64 random bits.
    fn next(&mut self) -> u64;
}

/// First ordinary queue pair number; 0 and 1 belong to management.
pub(crate) const QPN_FIRST: u32 = 2;
/// Last one; 0xffffff is multicast.
pub(crate) const QPN_LAST: u32 = 0x00ff_fffe;

/// True for a number that an ordinary queue pair may have.
pub(crate) fn is_qpn(number: Qpn) -> bool {
    (QPN_FIRST..=QPN_LAST).contains(&number.0)
}

/// Those that are given out. The quarter above is for a daemon that has just been started.
pub(crate) const QPN_ORDINARY: RangeInclusive<u32> = QPN_FIRST..=0x00bf_ffff;

/// Daemons in a row that draw from numbers of their own while they are new.
const GENERATIONS: u64 = 64;
/// Numbers that each of them has.
const APART: u32 = 0x40_0000 / GENERATIONS as u32;

/// The numbers that a daemon draws from as long as processes may announce numbers that it does not
/// know: of the earlier daemons only the 64th before it has drawn from there, when it was new.
pub(crate) fn apart(generation: u64) -> RangeInclusive<u32> {
    let first = QPN_ORDINARY.end() + 1 + (generation % GENERATIONS) as u32 * APART;
    first..=(first + APART - 1).min(QPN_LAST)
}

/// Parts that the upper quarter of a vNIC's own numbers has, for new daemons in a row.
const PARTS: u32 = 4;

/// Numbers of a vNIC that has a range of its own, in the order in which they are tried. The upper
/// quarter is for new daemons, as above; `generation`: of one that is new.
pub(crate) fn within(range: QpnRange, generation: Option<u64>) -> [Option<RangeInclusive<u32>>; 2] {
    let start = range.offset().number();
    let first = start + VirtualQpn::FIRST.qpn().0;
    let last = (start + range.count() - 1).min(QPN_LAST);
    let apart = start + range.count() / 4 * 3;
    let part = range.count() / 4 / PARTS;
    let new = generation.map(|generation| {
        let from = apart + (generation % u64::from(PARTS)) as u32 * part;
        from..=(from + part - 1).min(last)
    });
    // All of them, when those below are used up.
    [new.or(Some(first..=apart - 1)), Some(first..=last)]
}

/// Draws before a free number is looked for one by one: with half of them in use, all of these
/// fail once in 2^64.
const DRAWS: u32 = 64;

/// A bit for each 24-bit number: 2 MiB of address space, of which the kernel gives pages as they
/// are touched.
#[derive(Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new() -> Bits {
        Bits(vec![0; 1 << (24 - 6)])
    }

    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// True if it was not there before.
    fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.0.get_mut(number as usize / 64) else { return false };
        let before = *word;
        *word |= 1 << (number % 64);
        *word != before
    }
}

/// Hands out queue pair numbers, drawn at random, so that no process can tell another's number or
/// the next one. A number that was given does not come back before half of all have been.
#[derive(Debug)]
pub(crate) struct QpNumbers {
    /// Given since this was last emptied, which it is when half are in it.
    recent: Bits,
    count: u32,
    /// Given before that; there is none until then.
    before: Option<Bits>,
}

impl QpNumbers {
    pub(crate) fn new() -> QpNumbers {
        QpNumbers { recent: Bits::new(), count: 0, before: None }
    }

    /// A number out of `range` that is not `taken`; `None` if all are. A tenant that is to have its
    /// numbers in one piece can be given a smaller range here.
    pub(crate) fn take(
        &mut self,
        range: RangeInclusive<u32>,
        entropy: &mut dyn Entropy,
        taken: impl Fn(Qpn) -> bool,
    ) -> Option<Qpn> {
        let (first, last) = (*range.start(), *range.end());
        // The bits that a number out of the range may differ in from its first one.
        let span = last.checked_sub(first)?.checked_add(1)?;
        let mask = span.checked_next_power_of_two().map_or(u32::MAX, |above| above - 1);
        // The source is asked once, since the kernel is one, and a small range may take all draws.
        let seed = entropy.next();
        for draw in 0..DRAWS {
            let drawn = spread(seed, draw) as u32 & mask;
            let number = match first <= QPN_FIRST {
                // The number itself, so that those of a repeatable source stay small.
                true => drawn,
                false => first + drawn,
            };
            if range.contains(&number) && !self.recent.has(number) && !taken(Qpn(number)) {
                self.note(Qpn(number));
                return Some(Qpn(number));
            }
        }
        // A small range, nearly used up: one that was given not long ago must do.
        let from = u32::try_from(spread(seed, DRAWS) % u64::from(span)).unwrap_or(0);
        let number = (0..span).map(|n| Qpn(first + (from + n) % span)).find(|n| !taken(*n))?;
        self.note(number);
        Some(number)
    }

    /// A number is in use now.
    pub(crate) fn note(&mut self, number: Qpn) {
        if !is_qpn(number) || !self.recent.insert(number.0) {
            return;
        }
        self.count += 1;
        if self.count > (QPN_LAST - QPN_FIRST) / 2 {
            let recent = std::mem::replace(&mut self.recent, Bits::new());
            self.count = 0;
            match &mut self.before {
                None => self.before = Some(recent),
                Some(before) => {
                    before.0.iter_mut().zip(recent.0).for_each(|(word, new)| *word |= new);
                }
            }
        }
    }

    /// True for a number that was given at some time: if there is no queue pair of that number,
    /// then there is none any more.
    pub(crate) fn was_given(&self, number: Qpn) -> bool {
        self.recent.has(number.0) || self.before.as_ref().is_some_and(|bits| bits.has(number.0))
    }
}

/// The seed itself, then numbers that are spread as if each were drawn anew (splitmix64).
fn spread(seed: u64, number: u32) -> u64 {
    if number == 0 {
        return seed;
    }
    let state = seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let once = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}

/// A random key that is neither 0 nor `taken`.
pub(crate) fn key(entropy: &mut dyn Entropy, taken: impl Fn(Rkey) -> bool) -> Option<Rkey> {
    // Quotas keep the table sparse, so the first draw nearly always fits.
    (0..64).map(|_| Rkey((entropy.next() >> 16) as u32)).find(|key| key.0 != 0 && !taken(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers that queue pairs may be given.
    const QPN_ALL: RangeInclusive<u32> = QPN_FIRST..=QPN_LAST;

    struct Fixed(u64);

    impl Entropy for Fixed {
        fn next(&mut self) -> u64 {
            self.0
        }
    }

    /// Not random, but well spread; counts how often it was asked.
    struct Spread {
        seed: u64,
        asked: u32,
    }

    impl Spread {
        fn new(seed: u64) -> Spread {
            Spread { seed, asked: 0 }
        }
    }

    impl Entropy for Spread {
        fn next(&mut self) -> u64 {
            self.asked += 1;
            spread(self.seed << 32, self.asked)
        }
    }

    #[test]
    fn numbers_have_no_order_and_do_not_come_back_soon() {
        let (mut numbers, mut source) = (QpNumbers::new(), Spread::new(1));
        let mut seen = std::collections::HashSet::new();
        let (mut last, mut ups, mut near) = (0, 0, 0);
        for _ in 0..100_000 {
            let number = numbers.take(QPN_ALL, &mut source, |_| false).unwrap();
            assert!(is_qpn(number) && seen.insert(number), "{number} twice");
            let number = number.0;
            ups += u32::from(number > last);
            near += u32::from(number.abs_diff(last) < 1 << 16);
            last = number;
        }
        assert!((45_000..55_000).contains(&ups), "{ups} went up");
        assert!(near < 2_000, "{near} were near the one before: a 128th expected");
        for number in &seen {
            assert!(numbers.was_given(*number));
        }
        let given = (QPN_FIRST..=QPN_LAST).filter(|n| numbers.was_given(Qpn(*n))).count();
        assert_eq!(given, seen.len(), "exactly those");
    }

    #[test]
    fn after_half_of_all_they_may_come_back_and_are_still_known() {
        let (mut numbers, mut source) = (QpNumbers::new(), Spread::new(2));
        for number in QPN_FIRST..=QPN_LAST / 2 + 1 {
            numbers.note(Qpn(number));
        }
        assert!(numbers.was_given(Qpn(QPN_FIRST)) && !numbers.was_given(Qpn(QPN_LAST)));
        let low = |n: &Qpn| n.0 <= QPN_LAST / 2;
        let next = (0..1000).filter_map(|_| numbers.take(QPN_ALL, &mut source, |_| false));
        assert!((400..600).contains(&next.filter(low).count()));
        assert!(numbers.was_given(Qpn(QPN_FIRST + 7)));
        assert!([0, 1, 0x00ff_ffff].iter().all(|n| !is_qpn(Qpn(*n))) && is_qpn(Qpn(QPN_FIRST)));
        for number in [0, 1, 0x00ff_ffff, u32::MAX].map(Qpn) {
            numbers.note(number);
            assert!(!numbers.was_given(number));
        }
    }

    #[test]
    fn a_range_of_ones_own_is_used_to_its_end() {
        let (mut numbers, mut source) = (QpNumbers::new(), Spread::new(3));
        let mut held = std::collections::HashSet::new();
        for _ in 0..300 {
            let number = numbers.take(5000..=5299, &mut source, |n| held.contains(&n)).unwrap();
            assert!((5000..=5299).contains(&number.0) && held.insert(number));
        }
        assert_eq!(numbers.take(5000..=5299, &mut source, |n| held.contains(&n)), None);
        assert!(held.remove(&Qpn(5123)));
        let again = numbers.take(5000..=5299, &mut source, |n| held.contains(&n));
        assert_eq!(again, Some(Qpn(5123)));
    }

    #[test]
    fn a_number_of_a_range_that_is_used_up_asks_the_source_once() {
        let (mut numbers, mut source) = (QpNumbers::new(), Spread::new(4));
        let mut found = std::collections::HashSet::new();
        for _ in 0..2_000 {
            found.extend(numbers.take(5000..=5299, &mut source, |_| false));
        }
        assert_eq!((source.asked, found.len()), (2_000, 300));
    }

    #[test]
    fn new_daemons_draw_unused_numbers() {
        let mut end = *QPN_ORDINARY.end();
        for generation in 0..GENERATIONS {
            let range = apart(generation);
            assert_eq!(*range.start(), end + 1);
            end = *range.end();
            assert_eq!(range, apart(generation + GENERATIONS));
            let (mut numbers, mut source) = (QpNumbers::new(), Spread::new(generation));
            for _ in 0..1000 {
                let number = numbers.take(range.clone(), &mut source, |_| false).unwrap();
                assert!(range.contains(&number.0));
            }
        }
        assert_eq!(end, QPN_LAST);
    }

    #[test]
    fn numbers_of_a_range_are_its_own_and_new_daemons_have_some_apart() {
        let offset = omniverb_vgid::QpnOffset::new(0x40_0000).unwrap();
        let range = QpnRange::new(offset, 1024).unwrap();
        assert_eq!(within(range, None), [Some(0x40_0002..=0x40_02ff), Some(0x40_0002..=0x40_03ff)]);
        let parts: Vec<_> =
            (0..5).map(|new| within(range, Some(new))[0].clone().unwrap()).collect();
        assert_eq!(
            (parts[0].clone(), parts[3].clone()),
            (0x40_0300..=0x40_033f, 0x40_03c0..=0x40_03ff)
        );
        assert_eq!(parts[4], parts[0]);
    }

    #[test]
    fn a_full_table_gives_nothing() {
        let mut numbers = QpNumbers::new();
        assert_eq!(numbers.take(2..=9, &mut Fixed(0), |_| true), None);
        assert_eq!(key(&mut Fixed(0), |_| false), None);
        assert_eq!(key(&mut Fixed(1 << 16), |_| false), Some(Rkey(1)));
        assert_eq!(key(&mut Fixed(1 << 16), |_| true), None);
    }
}
