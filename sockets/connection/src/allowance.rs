//! Time that all calls of a process together may spend on what others are to do: it grows slowly,
//! up to a bound. So who keeps many connections waiting keeps the process waiting no longer than
//! who does so with one.

/// How much there may be, and how long it takes until there is one more. In any unit of time.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// It never grows beyond this.
    pub most: u64,
    /// Of so much time that passes one part is added.
    pub one_of: u64,
}

/// What was spent by some time, less what has grown since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How much was, and has not grown again.
    pub time: u64,
    /// When that was so.
    pub at: u64,
}

impl Allowance {
    /// What is left of it.
    #[must_use]
    pub fn left(self, spent: Spent, now: u64) -> u64 {
        self.most.saturating_sub(self.at(spent, now).time)
    }

    /// So much was spent, until now.
    #[must_use]
    pub fn spend(self, spent: Spent, now: u64, time: u64) -> Spent {
        let before = self.at(spent, now);
        Spent { time: before.time.saturating_add(time), ..before }
    }

    fn at(self, spent: Spent, now: u64) -> Spent {
        let grown = now.saturating_sub(spent.at) / self.one_of.max(1);
        Spent { time: spent.time.saturating_sub(grown), at: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OURS: Allowance = Allowance { most: 200, one_of: 20 };

    #[test]
    fn it_is_used_up_and_grows_again() {
        let spent = OURS.spend(Spent::default(), 1000, 150);
        assert_eq!((OURS.left(spent, 1000), OURS.left(spent, 1400)), (50, 70));
        let spent = OURS.spend(spent, 1400, 70);
        assert_eq!(OURS.left(spent, 1400), 0);
        assert_eq!(OURS.left(spent, 1400 + 20 * 200), 200);
        // It never is more than that.
        assert_eq!(OURS.left(spent, u64::MAX), 200);
    }

    proptest! {
        /// However calls follow each other, none spends more than there is, and in any time they
        /// spend no more than the bound and what has grown.
        #[test]
        fn who_keeps_to_it_spends_little(
            waits in prop::collection::vec((0_u64..500, 0_u64..1000), 1..50),
        ) {
            let (mut spent, mut now, mut all) = (Spent::default(), 5000, 0);
            let began = now;
            for (pause, wanted) in waits {
                now += pause;
                let time = OURS.left(spent, now).min(wanted);
                now += time;
                spent = OURS.spend(spent, now, time);
                all += time;
                prop_assert!(all <= OURS.most + (now - began) / OURS.one_of + 1);
            }
        }
    }
}
