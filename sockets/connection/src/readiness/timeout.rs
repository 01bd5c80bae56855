//! Computes how long a call waits that is made in parts, in nanoseconds.

const MICROSECOND: i64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;

/// What a program has said of how long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// It does not.
    Zero,
    /// For so many nanoseconds, which are some.
    Within(u64),
    /// For as long as it takes.
    Forever,
}

/// Until when a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// It does not wait.
    Never,
    /// Until the clock shows this; `None`: for as long as it takes.
    Until(Option<u64>),
}

impl Timeout {
    fn of_nanoseconds(nanoseconds: u64) -> Self {
        if nanoseconds == 0 { Self::Zero } else { Self::Within(nanoseconds) }
    }

    /// As `poll` and `epoll_wait` say it: in milliseconds; less than 0: for ever.
    #[must_use]
    #[inline]
    pub fn of_milliseconds(asked: i32) -> Self {
        u64::try_from(asked)
            .map_or(Self::Forever, |asked| Self::of_nanoseconds(asked * MILLISECOND))
    }

    /// As `ppoll` says it. `None`: that is no time, which the kernel refuses.
    #[must_use]
    pub fn of_time(seconds: i64, nanoseconds: i64) -> Option<Self> {
        if nanoseconds < SECOND { Self::of_parts(seconds, nanoseconds) } else { None }
    }

    /// As `select` says it, for which many microseconds are some seconds.
    #[must_use]
    pub fn of_microseconds(seconds: i64, microseconds: i64) -> Option<Self> {
        let nanoseconds = microseconds.saturating_mul(MICROSECOND);
        Self::of_parts(seconds, nanoseconds)
    }

    fn of_parts(seconds: i64, nanoseconds: i64) -> Option<Self> {
        let is_time = seconds >= 0 && nanoseconds >= 0;
        let all = seconds.saturating_mul(SECOND).saturating_add(nanoseconds);
        is_time.then(|| Self::of_nanoseconds(all.unsigned_abs()))
    }

    /// No longer than this.
    #[must_use]
    pub fn at_most(self, nanoseconds: u64) -> Self {
        match self {
            Self::Forever => Self::of_nanoseconds(nanoseconds),
            Self::Zero => Self::Zero,
            Self::Within(asked) => Self::of_nanoseconds(asked.min(nanoseconds)),
        }
    }

    /// The rest of it after so many nanoseconds.
    #[must_use]
    pub fn after(self, nanoseconds: u64) -> Self {
        match self {
            Self::Within(asked) => Self::of_nanoseconds(asked.saturating_sub(nanoseconds)),
            other => other,
        }
    }

    /// The rest of it after so many milliseconds.
    #[must_use]
    pub fn after_milliseconds(self, milliseconds: u64) -> Self {
        self.after(milliseconds.saturating_mul(MILLISECOND))
    }

    /// For `epoll_wait`: in whole milliseconds, none of them too few; -1: for ever.
    #[must_use]
    #[inline]
    pub fn milliseconds(self) -> i32 {
        match self {
            Self::Zero => 0,
            Self::Within(asked) => i32::try_from(asked.div_ceil(MILLISECOND)).unwrap_or(i32::MAX),
            Self::Forever => -1,
        }
    }

    /// For `ppoll`: seconds and nanoseconds; `None`: for ever.
    #[must_use]
    #[inline]
    pub fn time(self) -> Option<(i64, i64)> {
        let parts = |all: u64| {
            let all = all.min(i64::MAX.unsigned_abs()).cast_signed();
            (all / SECOND, all % SECOND)
        };
        match self {
            Self::Zero => Some((0, 0)),
            Self::Within(asked) => Some(parts(asked)),
            Self::Forever => None,
        }
    }

    /// How long a call may poll before it sleeps, in ticks of a clock that makes so many in a
    /// second: a fourth of what the program has said.
    #[must_use]
    #[inline]
    pub fn polling_ticks(self, per_second: u64) -> u64 {
        match self {
            Self::Zero => 0,
            // A second has a little less than 2^30 nanoseconds.
            Self::Within(asked) => (asked >> 10).saturating_mul(per_second >> 22),
            Self::Forever => u64::MAX,
        }
    }

    /// Until when a call waits that begins now.
    #[must_use]
    pub fn deadline(self, now: u64) -> Deadline {
        match self {
            Self::Zero => Deadline::Never,
            Self::Within(asked) => Deadline::Until(Some(now.saturating_add(asked))),
            Self::Forever => Deadline::Until(None),
        }
    }
}

impl Deadline {
    /// The call waits no more at this time.
    #[must_use]
    pub fn is_over(self, now: u64) -> bool {
        match self {
            Self::Never => true,
            Self::Until(limit) => limit.is_some_and(|limit| now >= limit),
        }
    }

    /// How long a call may wait from now on.
    #[must_use]
    pub fn left(self, now: u64) -> Timeout {
        match self {
            Self::Never => Timeout::Zero,
            Self::Until(None) => Timeout::Forever,
            Self::Until(Some(limit)) => Timeout::of_nanoseconds(limit.saturating_sub(now)),
        }
    }

    /// Until when a sleep lasts of a call that looks again at `then`, if it has to.
    #[must_use]
    pub fn or_earlier(self, then: Option<u64>) -> Option<u64> {
        match self {
            Self::Until(limit) => limit.into_iter().chain(then).min(),
            Self::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_extremes_of_each_unit_are_kept() {
        assert_eq!(Timeout::of_milliseconds(0), Timeout::Zero);
        assert_eq!(Timeout::of_milliseconds(i32::MIN), Timeout::Forever);
        assert_eq!(Timeout::of_milliseconds(i32::MAX).milliseconds(), i32::MAX);
        assert_eq!(Timeout::of_time(0, 0), Some(Timeout::Zero));
        let longest = Timeout::of_time(i64::MAX, SECOND - 1).unwrap();
        assert_eq!(longest.milliseconds(), i32::MAX);
        assert_eq!(longest.time(), Some((i64::MAX / SECOND, i64::MAX % SECOND)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for (seconds, nanoseconds) in [(-1, 0), (0, -1), (1, SECOND), (i64::MIN, i64::MIN)] {
            assert_eq!(Timeout::of_time(seconds, nanoseconds), None);
        }
        assert_eq!(Timeout::of_microseconds(0, -1), None);
        assert_eq!(Timeout::of_microseconds(-1, 0), None);
    }

    #[test]
    fn many_microseconds_are_seconds() {
        let asked = Timeout::of_microseconds(1, 2_500_000);
        assert_eq!(asked.and_then(Timeout::time), Some((3, 500_000_000)));
    }

    #[test]
    fn a_part_of_a_millisecond_is_rounded_up() {
        assert_eq!(Timeout::Within(1).milliseconds(), 1);
        assert_eq!(Timeout::Within(MILLISECOND + 1).milliseconds(), 2);
    }

    #[test]
    fn for_ever_ends_only_by_a_limit() {
        assert_eq!(Timeout::Forever.after(u64::MAX), Timeout::Forever);
        assert_eq!(Timeout::Forever.at_most(MILLISECOND).milliseconds(), 1);
        assert!(!Timeout::Forever.deadline(0).is_over(u64::MAX));
        assert_eq!(Timeout::Forever.deadline(1).or_earlier(Some(5)), Some(5));
        assert!(Timeout::Zero.deadline(7).is_over(0));
    }

    proptest! {
        #[test]
        fn both_parts_together_are_what_was_asked(asked in 0..u64::MAX, first in 0..u64::MAX) {
            let all = Timeout::of_nanoseconds(asked);
            let sum = [all.at_most(first), all.after(first)].map(|part| match part {
                Timeout::Zero => 0,
                Timeout::Within(part) => part,
                Timeout::Forever => unreachable!(),
            });
            prop_assert_eq!(sum[0] + sum[1], asked);
        }

        #[test]
        fn no_part_is_cut_off_by_a_unit(asked_for in 1..i64::MAX as u64) {
            let asked = Timeout::Within(asked_for);
            let (seconds, nanoseconds) = asked.time().unwrap();
            prop_assert_eq!(Timeout::of_time(seconds, nanoseconds), Some(asked));
            let whole = asked.milliseconds();
            let is_enough = Timeout::of_milliseconds(whole).after(asked_for) == Timeout::Zero;
            prop_assert!(whole == i32::MAX || !is_enough || asked_for % MILLISECOND == 0);
        }

        #[test]
        fn a_call_ends_at_its_deadline(asked in 1..1_u64 << 40, now in 0..1_u64 << 60) {
            let deadline = Timeout::Within(asked).deadline(now);
            prop_assert!(!deadline.is_over(now + asked - 1) && deadline.is_over(now + asked));
            prop_assert_eq!(deadline.left(now), Timeout::Within(asked));
            prop_assert_eq!(deadline.or_earlier(None), Some(now + asked));
            prop_assert_eq!(deadline.or_earlier(Some(now)), Some(now));
        }

        #[test]
        fn polling_takes_about_a_fourth(milliseconds in 1..1_000_000_i32) {
            let asked = Timeout::of_milliseconds(milliseconds);
            let ticks = asked.polling_ticks(1 << 31);
            let all = (milliseconds as u64) * ((1 << 31) / 1000);
            prop_assert!(ticks <= all / 3 && ticks >= all / 5);
        }
    }
}
