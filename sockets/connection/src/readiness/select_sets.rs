//! Translates the three sets of `select` into a list for `poll`, and the answer back.
//!
//! It does so word by word: a program may have made its sets as long as the call needs.

use super::poll_events::{ERR, HUP, IN, NVAL, OUT, PRI};

/// Descriptors of a word of a set.
pub const BITS: usize = 64;
/// Descriptors that a set of the C library has room for (`FD_SETSIZE`).
pub const FDS: usize = 1024;

/// What each of the three sets asks for: reading, writing, urgent data.
const ASKS: [i16; 3] = [IN, OUT, PRI];
/// What of that `poll` says makes it a yes in each.
const TELLS: [i16; 3] = [IN | HUP | ERR, OUT | ERR, PRI];

/// A word of each of the three sets, at the same place.
pub type Words = [u64; 3];

/// Descriptors that the words at a place ask about, in order, and what `poll` is to look for.
pub fn requests(place: usize, words: Words) -> impl Iterator<Item = (usize, i16)> {
    let any = words[0] | words[1] | words[2];
    let later = core::iter::successors(Some(any), |bits| Some(bits & bits.wrapping_sub(1)));
    later.take_while(|bits| *bits != 0).map(move |bits| {
        let bit = bits.trailing_zeros();
        let asked = words.iter().zip(ASKS).filter(|(word, _)| *word >> bit & 1 != 0);
        (BITS * place + bit as usize, asked.fold(0, |events, (_, asks)| events | asks))
    })
}

/// The bits of the words at `place` that are about descriptors below `end`.
#[must_use]
pub fn mask_below(end: usize, place: usize) -> u64 {
    match end.saturating_sub(BITS * place) {
        bits if bits < BITS => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// What of that which was asked for a descriptor is so, by what `poll` has said of it. (Of one that
/// is only asked for urgent data `poll` tells the end, and `select` tells nothing.)
#[must_use]
pub fn told(asked: i16, revents: i16) -> i16 {
    let is_told = |(asks, tells): &(i16, i16)| asked & asks != 0 && revents & tells != 0;
    ASKS.into_iter().zip(TELLS).filter(is_told).fold(0, |all, (asks, _)| all | asks)
}

/// `poll` has said that it is no descriptor.
#[must_use]
pub fn is_bad(revents: i16) -> bool {
    revents & NVAL != 0
}

/// Puts what is told of a descriptor in the words where its bits are. How many bits that were.
pub fn put(words: &mut Words, fd: usize, told: i16) -> usize {
    let yes = words.iter_mut().zip(ASKS).filter(|(_, asks)| told & asks != 0);
    yes.map(|(word, _)| *word |= 1 << (fd % BITS)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn descriptors_are_asked_about_in_order() {
        let words = [1 << 3 | 1 << 63, 1 << 3, 1];
        let all: Vec<_> = requests(2, words).collect();
        assert_eq!(all, [(128, PRI), (131, IN | OUT), (191, IN)]);
        assert_eq!(requests(0, [0; 3]).count(), 0);
    }

    #[test]
    fn what_is_beyond_the_end_is_masked() {
        assert_eq!([0, 1, 63].map(|end| mask_below(end, 0)), [0, 1, u64::MAX >> 1]);
        assert_eq!([64, 65, 1500].map(|end| mask_below(end, 0)), [u64::MAX; 3]);
        assert_eq!([64, 65, 128].map(|end| mask_below(end, 1)), [0, 1, u64::MAX]);
    }

    #[test]
    fn an_end_is_readable_and_an_error_both() {
        let all = IN | OUT | PRI;
        assert_eq!(told(all, HUP), IN);
        assert_eq!(told(all, ERR), IN | OUT);
        assert_eq!(told(all, PRI), PRI);
    }

    #[test]
    fn the_end_is_not_told_to_a_call_for_urgent_data() {
        assert!(told(PRI, HUP | ERR) == 0 && told(PRI, PRI) == PRI);
        assert!(told(OUT, HUP) == 0 && told(OUT, ERR) == OUT);
        assert!(is_bad(NVAL) && !is_bad(HUP | ERR) && told(IN | OUT | PRI, NVAL) == 0);
    }

    proptest! {
        /// Nothing is told that was not asked for, and all that was is if `poll` says all.
        #[test]
        fn the_answer_is_a_part_of_what_was_asked(
            words: [u64; 3], place in 0..100_usize, says in 0..64_i16,
        ) {
            let (mut answer, mut every, mut count) = ([0; 3], [0; 3], 0);
            let mut last = None;
            for (fd, asked) in requests(place, words) {
                prop_assert!(fd / BITS == place && Some(fd) > last);
                last = Some(fd);
                count += put(&mut answer, fd, told(asked, says));
                put(&mut every, fd, told(asked, IN | OUT | PRI));
            }
            prop_assert_eq!(every, words);
            prop_assert!(answer.iter().zip(words).all(|(told, asked)| told & !asked == 0));
            prop_assert_eq!(count, answer.iter().map(|word| word.count_ones() as usize).sum());
        }
    }
}
