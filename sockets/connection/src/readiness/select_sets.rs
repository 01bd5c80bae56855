//! Translates the three sets of `select` into a list for `poll`, and the answer back.

use super::poll_events::{ERR, HUP, IN, NVAL, OUT, PRI};

/// Descriptors that a set of the C library has room for (`FD_SETSIZE`).
pub const FDS: usize = 1024;
const WORDS: usize = FDS / 64;

/// What each of the three sets asks for: reading, writing, urgent data.
const ASKS: [i16; 3] = [IN, OUT, PRI];
/// What of that `poll` says makes it a yes in each.
const TELLS: [i16; 3] = [IN | HUP | ERR, OUT | ERR, PRI];

/// One of them is no descriptor (`EBADF`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDescriptor;

/// The sets of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdSets {
    /// Bits, as the C library has them: for reading, writing, urgent data.
    pub words: [[u64; WORDS]; 3],
}

impl FdSets {
    /// How many words of each set a call uses that is about descriptors below this.
    #[must_use]
    pub fn words_below(end: usize) -> usize {
        end.min(FDS).div_ceil(64)
    }

    fn has(&self, which: usize, fd: usize) -> bool {
        self.words[which].get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 != 0)
    }

    /// Descriptors below `end` that are asked about, in order, and what `poll` is to look for.
    pub fn requests(&self, end: usize) -> impl Iterator<Item = (usize, i16)> {
        let [read, write, except] = &self.words;
        let any = read.iter().zip(write).zip(except).map(|((a, b), c)| a | b | c).enumerate();
        any.flat_map(|(place, bits)| {
            let later =
                core::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)));
            later
                .take_while(|bits| *bits != 0)
                .map(move |bits| 64 * place + bits.trailing_zeros() as usize)
        })
        .take_while(move |fd| *fd < end)
        .map(|fd| {
            let asked = (0..3).filter(|which| self.has(*which, fd));
            (fd, asked.fold(0, |events, which| events | ASKS[which]))
        })
    }

    /// What `poll` has said of a descriptor is told by `select`, too. (Of one that is only asked
    /// for urgent data `poll` tells the end.)
    #[must_use]
    pub fn is_told(asked: i16, revents: i16) -> bool {
        let tells = ASKS.iter().zip(TELLS).filter(|(asks, _)| asked & **asks != 0);
        revents & tells.fold(NVAL, |all, (_, tells)| all | tells) != 0
    }

    /// The answer: which of those that were asked about are so, and how many.
    ///
    /// # Errors
    /// One is no descriptor.
    pub fn answer(
        &self,
        told: impl Iterator<Item = (usize, i16)>,
    ) -> Result<(Self, usize), BadDescriptor> {
        let (mut answer, mut count) = (Self::default(), 0);
        for (fd, revents) in told {
            if revents & NVAL != 0 {
                return Err(BadDescriptor);
            }
            for which in (0..3).filter(|which| revents & TELLS[*which] != 0) {
                if self.has(which, fd) {
                    answer.words[which][fd / 64] |= 1 << (fd % 64);
                    count += 1;
                }
            }
        }
        Ok((answer, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn sets(bits: &[(usize, usize)]) -> FdSets {
        let mut sets = FdSets::default();
        bits.iter().for_each(|(which, fd)| sets.words[*which][fd / 64] |= 1 << (fd % 64));
        sets
    }

    #[test]
    fn what_is_beyond_the_end_is_not_asked_about() {
        let all = sets(&[(0, 3), (1, 3), (2, 64), (0, 1023)]);
        assert_eq!(all.requests(1024).collect::<Vec<_>>(), [(3, IN | OUT), (64, PRI), (1023, IN)]);
        assert_eq!(all.requests(64).collect::<Vec<_>>(), [(3, IN | OUT)]);
        assert_eq!(all.requests(0).count(), 0);
        assert_eq!([0, 1, 64, 65, 1024, 5000].map(FdSets::words_below), [0, 1, 1, 2, 16, 16]);
    }

    #[test]
    fn an_end_is_readable_and_an_error_both() {
        let all = sets(&[(0, 5), (1, 5), (2, 5)]);
        assert_eq!(all.answer([(5, HUP)].into_iter()), Ok((sets(&[(0, 5)]), 1)));
        assert_eq!(all.answer([(5, ERR)].into_iter()), Ok((sets(&[(0, 5), (1, 5)]), 2)));
        assert_eq!(all.answer([(5, PRI)].into_iter()), Ok((sets(&[(2, 5)]), 1)));
    }

    #[test]
    fn the_end_is_not_told_to_a_call_for_urgent_data() {
        assert!(!FdSets::is_told(PRI, HUP | ERR) && FdSets::is_told(PRI, PRI));
        assert!(!FdSets::is_told(OUT, HUP) && FdSets::is_told(OUT, ERR));
        assert!(FdSets::is_told(PRI, NVAL));
    }

    #[test]
    fn one_bad_descriptor_fails_all() {
        let all = sets(&[(0, 5), (0, 6)]);
        assert_eq!(all.answer([(5, IN), (6, NVAL)].into_iter()), Err(BadDescriptor));
    }

    proptest! {
        /// Nothing is told that was not asked for, and all that was is if `poll` says all.
        #[test]
        fn the_answer_is_a_part_of_what_was_asked(
            bits in vec((0..3_usize, 0..FDS), 0..64),
            says in vec(0..64_i16, FDS),
        ) {
            let all = sets(&bits);
            let list: Vec<_> = all.requests(FDS).collect();
            prop_assert!(list.windows(2).all(|two| two[0].0 < two[1].0));
            let told = list.iter().map(|(fd, _)| (*fd, says[*fd] & !NVAL));
            let (answer, count) = all.answer(told).unwrap();
            let mut ones = 0;
            for (set, asked) in answer.words.iter().flatten().zip(all.words.iter().flatten()) {
                prop_assert_eq!(set & !asked, 0);
                ones += set.count_ones() as usize;
            }
            prop_assert_eq!(ones, count);
            let every = list.iter().map(|(fd, _)| (*fd, IN | OUT | PRI));
            prop_assert_eq!(all.answer(every).unwrap().0, all);
            // Both ways to ask agree whether there is anything.
            let is_any = list.iter().any(|(fd, asked)| FdSets::is_told(*asked, says[*fd] & !NVAL));
            prop_assert_eq!(is_any, count > 0);
        }
    }
}
