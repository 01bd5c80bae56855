//! Whose turn it is to touch one end of a direction.
//!
//! A socket may have many holders: threads, processes that share it by `fork`. One at a time reads
//! a direction, and one writes it. The word says who; it is in the link's memory, changed by
//! compare-and-swap, and slept on as a futex. A holder is named by its *slot* in the link, by which
//! others see whether it lives (docs/decisions/0040). What it did before it died counts as far as
//! it was published: a position is the last thing that is stored.
//!
//! ```text
//! turns taken, modulo 2^31 : 31 | somebody waits : 1 | slot + 1 : 32    (0: nobody's)
//! ```
//!
//! In: the word, and what is to be done. Out: the word to be put in its place.

const WAITS: u64 = 1 << 32;
const COUNT_SHIFT: u32 = 33;

/// The word, as others may have left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turn(pub u64);

/// What becomes of the word when it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The turn is ours with this word.
    Ours(Turn),
    /// This slot has it. Whoever wants to sleep puts this word there before, and sleeps on it.
    Held {
        /// The slot of who has it.
        by: u32,
        /// With the note that somebody sleeps.
        asleep: Turn,
    },
}

impl Turn {
    /// The slot of who has it.
    #[must_use]
    pub fn holder(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }

    /// Somebody sleeps until it is given back.
    #[must_use]
    pub fn has_sleepers(self) -> bool {
        self.0 & WAITS != 0
    }

    /// For who wants it.
    #[must_use]
    pub fn take(self, slot: u32) -> Taken {
        match self.holder() {
            None => Taken::Ours(self.next(slot)),
            Some(by) => Taken::Held { by, asleep: Turn(self.0 | WAITS) },
        }
    }

    /// For who knows that its holder is dead: the next one's. Sleepers stay asleep, and so are
    /// noted.
    #[must_use]
    pub fn take_over(self, dead: u32, slot: u32) -> Option<Turn> {
        (self.holder() == Some(dead)).then(|| Turn(self.next(slot).0 | self.0 & WAITS))
    }

    /// For its holder: nobody's, and whether there are sleepers to wake: all of them, since the
    /// word knows of none any more. `None` if it is not his.
    #[must_use]
    pub fn give_back(self, slot: u32) -> Option<(Turn, bool)> {
        let nobodys = Turn(self.0 >> COUNT_SHIFT << COUNT_SHIFT);
        (self.holder() == Some(slot)).then_some((nobodys, self.has_sleepers()))
    }

    /// With one turn more, so that a word never comes again while somebody compares it.
    fn next(self, slot: u32) -> Turn {
        let count = (self.0 >> COUNT_SHIFT).wrapping_add(1) << COUNT_SHIFT;
        Turn(count | (u64::from(slot) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum State {
        Idle,
        Holds,
        Asleep(Turn),
        Dead,
    }

    proptest! {
        /// However steps of holders come, and whoever dies: one holder at a time, nobody sleeps for
        /// ever, and a dead one's turn goes on.
        #[test]
        fn one_at_a_time(steps in prop::collection::vec((0_u8..4, 0_usize..4), 1..200)) {
            let mut word = Turn::default();
            let mut all = [State::Idle; 4];
            for (what, who) in steps {
                let slot = who as u32;
                match (what, all[who]) {
                    (0 | 1, State::Idle) => match word.take(slot) {
                        Taken::Ours(new) => {
                            word = new;
                            all[who] = State::Holds;
                        }
                        Taken::Held { by, asleep } if all[by as usize] != State::Dead => {
                            word = asleep;
                            all[who] = State::Asleep(asleep);
                        }
                        Taken::Held { by, .. } => {
                            word = word.take_over(by, slot).unwrap();
                            all[who] = State::Holds;
                        }
                    },
                    (2, State::Holds) => {
                        let (new, has_sleepers) = word.give_back(slot).unwrap();
                        word = new;
                        all[who] = State::Idle;
                        if has_sleepers {
                            wake(&mut all);
                        }
                    }
                    // A death, which the kernel tells those who sleep.
                    (3, State::Holds) => {
                        all[who] = State::Dead;
                        wake(&mut all);
                    }
                    // A sleeper whose word is another wakes by itself when it begins to sleep.
                    (_, State::Asleep(on)) if on != word => all[who] = State::Idle,
                    _ => {}
                }
                prop_assert!(all.iter().filter(|one| **one == State::Holds).count() <= 1);
                if let Some(holder) = word.holder() {
                    let state = all[holder as usize];
                    prop_assert!(matches!(state, State::Holds | State::Dead), "{:?}", state);
                }
            }
        }
    }

    fn wake(all: &mut [State; 4]) {
        for one in all.iter_mut().filter(|one| matches!(one, State::Asleep(_))) {
            *one = State::Idle;
        }
    }

    #[test]
    fn a_turn_that_was_taken_over_cannot_be_given_back() {
        let Taken::Ours(word) = Turn::default().take(7) else { panic!("it was nobody's") };
        let word = word.take_over(7, 2).unwrap();
        assert_eq!(word.give_back(7), None);
        assert_eq!(word.take_over(7, 3), None);
        let (word, wake) = word.give_back(2).unwrap();
        assert_eq!((word.holder(), wake), (None, false));
    }
}
