//! Bounds the time that all calls of a process together spend on waiting for other processes.
//!
//! The budget refills slowly, up to its capacity. So a peer that keeps many connections waiting
//! delays the process no longer than a peer that does so with one.

/// How much time there is, and how fast it comes back. In any unit of time.
#[derive(Clone, Copy, Debug)]
pub struct TimeBudget {
    /// It never grows beyond this.
    pub capacity: u64,
    /// Of so much time that passes one part comes back.
    pub refill_divisor: u64,
}

/// What was spent by some time, less what has come back since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// How much was spent, and has not come back.
    pub time: u64,
    /// When that was so.
    pub at: u64,
}

impl TimeBudget {
    /// What is left at this time.
    #[must_use]
    pub fn remaining(self, spent: TimeSpent, now: u64) -> u64 {
        self.capacity.saturating_sub(self.at(spent, now).time)
    }

    /// Charges so much time, which was spent until now.
    #[must_use]
    pub fn charge(self, spent: TimeSpent, now: u64, time: u64) -> TimeSpent {
        let before = self.at(spent, now);
        TimeSpent { time: before.time.saturating_add(time), ..before }
    }

    fn at(self, spent: TimeSpent, now: u64) -> TimeSpent {
        let refilled = now.saturating_sub(spent.at) / self.refill_divisor.max(1);
        TimeSpent { time: spent.time.saturating_sub(refilled), at: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: TimeBudget = TimeBudget { capacity: 200, refill_divisor: 20 };

    #[test]
    fn a_spent_budget_refills_up_to_its_capacity() {
        let spent = BUDGET.charge(TimeSpent::default(), 1000, 150);
        assert_eq!((BUDGET.remaining(spent, 1000), BUDGET.remaining(spent, 1400)), (50, 70));
        let spent = BUDGET.charge(spent, 1400, 70);
        assert_eq!(BUDGET.remaining(spent, 1400), 0);
        assert_eq!(BUDGET.remaining(spent, 1400 + 20 * 200), 200);
        // It never is more than that.
        assert_eq!(BUDGET.remaining(spent, u64::MAX), 200);
    }

    proptest! {
        /// However calls follow each other, none spends more than there is, and in any time they
        /// spend no more than the bound and what has grown.
        #[test]
        fn spending_is_bounded_by_capacity_and_refill(
            waits in prop::collection::vec((0_u64..500, 0_u64..1000), 1..50),
        ) {
            let (mut spent, mut now, mut all) = (TimeSpent::default(), 5000, 0);
            let began = now;
            for (pause, wanted) in waits {
                now += pause;
                let time = BUDGET.remaining(spent, now).min(wanted);
                now += time;
                spent = BUDGET.charge(spent, now, time);
                all += time;
                prop_assert!(all <= BUDGET.capacity + (now - began) / BUDGET.refill_divisor + 1);
            }
        }
    }
}
