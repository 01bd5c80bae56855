//! Tells packets that arrive the first time from those that arrived before (the sliding window of
//! ESP, RFC 4303, 3.4.3, in the form of RFC 6479).

const WORDS: usize = 32;
/// Numbers behind the highest that are told apart: what is older counts as seen. One word less than
/// there are, which is cleared while the window moves.
pub(crate) const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// What has arrived of one sequence of numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayWindow {
    /// One past the highest number.
    end: u64,
    /// A bit for each number, in a ring.
    seen: [u64; WORDS],
}

impl ReplayWindow {
    /// Notes that an authentic packet of this number has arrived. False: it did before, or is too
    /// old to tell.
    pub(crate) fn accept(&mut self, number: u64) -> bool {
        let Some(after) = number.checked_add(1) else { return false };
        if self.end.saturating_sub(after) >= WINDOW {
            return false;
        }
        if after > self.end {
            // Words that come into the window anew.
            let (old, new) = (self.end.div_ceil(64), after.div_ceil(64));
            for word in old.max(new.saturating_sub(WORDS as u64))..new {
                self.seen[word as usize % WORDS] = 0;
            }
            self.end = after;
        }
        let (word, bit) = (number / 64, 1 << (number % 64));
        let word = &mut self.seen[word as usize % WORDS];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_windows_edges_are_exact() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(0) && !window.accept(0));
        assert!(window.accept(WINDOW - 1) && !window.accept(0) && window.accept(1));
        assert!(window.accept(WINDOW + 1) && !window.accept(1) && window.accept(2));
        assert!(window.accept(u64::MAX - 1) && !window.accept(u64::MAX - 1));
        assert!(!window.accept(u64::MAX), "the last of all is never used");
        assert!(!window.accept(u64::MAX - 1 - WINDOW) && window.accept(u64::MAX - WINDOW));
    }

    proptest! {
        /// Against a set of all: nothing passes twice, and nothing within the window is refused.
        #[test]
        fn nothing_passes_twice(
            steps in proptest::collection::vec((0_u64..400, 0_u64..3000, any::<bool>()), 1..600),
        ) {
            let (mut window, mut all) = (ReplayWindow::default(), BTreeSet::new());
            let mut highest = 0_u64;
            for (forward, back, again) in steps {
                let near = (highest + 50).saturating_sub(back);
                let number = if again { near } else { highest + forward };
                let is_new = all.insert(number);
                let accepted = window.accept(number);
                prop_assert!(is_new || !accepted, "{} twice", number);
                highest = highest.max(number);
                if highest - number < WINDOW {
                    prop_assert_eq!(accepted, is_new);
                } else {
                    prop_assert!(!accepted);
                }
            }
        }
    }
}
