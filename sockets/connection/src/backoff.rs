//! Spaces out attempts that may fail, and learns how long something takes.
//!
//! Times are in any unit, as the caller's clock has it.

/// Doubled so often a pause is no longer made longer.
const DOUBLINGS_MAX: u64 = 6;
/// Failures are forgotten after so many pauses without one.
const FORGOTTEN_AFTER: u64 = 16;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has given back what it cost.
    Succeeded,
    /// It has cost more than it gave.
    Failed,
}

/// When something was tried last that is done at most every `first` units; the pause doubles with
/// each failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// How often in a row it was tried.
    pub times: u64,
    /// When that was last.
    pub last: u64,
}

impl Backoff {
    /// How long ago the last time was, seen from a time that may be a little before it.
    fn since(self, now: u64) -> u64 {
        now.wrapping_sub(self.last).cast_signed().max(0).cast_unsigned()
    }

    /// How long it has to be until the next time.
    fn pause(self, first: u64) -> u64 {
        first << self.times.saturating_sub(1).min(DOUBLINGS_MAX)
    }

    /// No attempt has failed for long.
    #[must_use]
    pub fn is_forgotten(self, now: u64, first: u64) -> bool {
        self.times == 0 || self.since(now) > FORGOTTEN_AFTER * self.pause(first)
    }

    /// It may be tried again.
    #[must_use]
    pub fn is_due(self, now: u64, first: u64) -> bool {
        self.times == 0 || self.since(now) > self.pause(first)
    }

    /// The state after an attempt that ended now.
    #[must_use]
    pub fn next(self, now: u64, first: u64, outcome: Outcome) -> Backoff {
        let is_new = outcome == Outcome::Succeeded || self.is_forgotten(now, first);
        let times = if is_new { 1 } else { (self.times + 1).min(DOUBLINGS_MAX + 1) };
        Backoff { times, last: now }
    }
}

/// How it went that a call looked for a moment before it slept, or did not look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookOutcome {
    /// Something was found.
    Well,
    /// It did not look, and something would have been found: so it is worth another look. What was
    /// in vain before still counts: where processes are many a sleep is short now and then.
    Missed,
    /// All the time was spent for nothing, or what was found came so late that the kernel would
    /// have woken the thread before.
    InVain,
}

/// How looks went of late: after some in vain calls leave theirs out, twice as many each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// How many in a row were in vain.
    pub vain: u64,
    /// How many calls are still to leave theirs out.
    pub skip: u64,
}

impl Looks {
    /// As many in a row count.
    pub const VAIN_MAX: u64 = 7;

    /// A call has left its look out.
    #[must_use]
    pub fn after_skip(self) -> Self {
        Self { skip: self.skip.saturating_sub(1), ..self }
    }

    /// After one that went so.
    #[must_use]
    pub fn after(self, how: LookOutcome) -> Self {
        match how {
            LookOutcome::Well => Self { vain: 0, ..self },
            LookOutcome::Missed => Self { skip: 0, ..self },
            LookOutcome::InVain => {
                let vain = self.vain.saturating_add(1).min(Self::VAIN_MAX);
                Self { vain, skip: (1 << vain) - 1 }
            }
        }
    }
}

/// Pauses of the processor before a reader looks at an empty ring, the fewest and the most.
const SPIN_PAUSES: (u64, u64) = (2, 64);

/// How many such pauses a reader makes that made so many when the ring was empty last. Where each
/// message is waited for these are few. Where more bytes came since (`came`) than a call takes
/// (`taken`), they are twice as many: more are to come at a time, since each look takes what the
/// other end writes to away from it.
#[must_use]
#[inline]
pub fn spin_pauses(before: u64, came: u64, taken: u64) -> u64 {
    let (fewest, most) = SPIN_PAUSES;
    if came > taken { before.saturating_mul(2).clamp(fewest, most) } else { fewest }
}

/// The next pause of something that is done seldom unless it helps: it was done `since` ago, when
/// it had to be `pause` ago at least. Between `least` and `most`.
#[must_use]
pub fn next_pause(since: u64, pause: u64, least: u64, most: u64) -> u64 {
    let has_helped = since >= (16 * pause).min(4 * most);
    if has_helped { least } else { (2 * pause).min(most) }
}

/// A moving average of durations, after one of `took`. Rises more slowly than it falls: some
/// threads may have had no processor for a moment.
#[must_use]
pub fn moving_average(average: u64, took: u64) -> u64 {
    if took < average { average - (average - took) / 4 } else { average + (took - average) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn failures_double_the_pause() {
        let (mut backoff, mut now, mut tries) = (Backoff::default(), 1, 0);
        for _ in 0..100_000 {
            now += 1;
            if backoff.is_due(now, 10) {
                backoff = backoff.next(now, 10, Outcome::Failed);
                tries += 1;
            }
        }
        // 10, 20, 40 ... 640, and every 640 from then on.
        assert!((150..=165).contains(&tries), "{tries}");
    }

    #[test]
    fn a_success_resets_the_pause() {
        let last = Backoff { times: 3, last: 100 };
        assert!(!last.is_due(99, 10) && !last.is_forgotten(99, 10));
        let failed =
            (0..20).fold(Backoff::default(), |backoff, now| backoff.next(now, 10, Outcome::Failed));
        assert!(!failed.is_due(19 + 640, 10) && failed.is_due(20 + 640, 10));
        let succeeded = failed.next(700, 10, Outcome::Succeeded);
        assert!(!succeeded.is_due(710, 10) && succeeded.is_due(711, 10));
        // And so does a long time without a failure.
        let long = failed.next(19 + 16 * 640 + 1, 10, Outcome::Failed);
        assert_eq!(long.times, 1);
    }

    #[test]
    fn a_pause_grows_unless_it_helped() {
        // It was needed again at once, for ever.
        assert_eq!((0..100).fold(4, |last, _| next_pause(last + 1, last, 4, 500)), 500);
        // It was not, for long.
        assert_eq!(next_pause(2000, 500, 4, 500), 4);
    }

    #[test]
    fn the_average_follows_durations() {
        let slow = (0..40).fold(0, |was, _| moving_average(was, 1000));
        assert!((950..=1000).contains(&slow), "{slow}");
        let fast = (0..40).fold(slow, |was, _| moving_average(was, 100));
        assert!((100..150).contains(&fast), "{fast}");
    }

    #[test]
    fn a_stream_is_looked_at_less_often() {
        let stream = [0; 7].iter().scan(0, |pauses, _| {
            *pauses = spin_pauses(*pauses, 9, 8);
            Some(*pauses)
        });
        assert!(stream.eq([2, 4, 8, 16, 32, 64, 64]));
        assert_eq!((spin_pauses(64, 8, 8), spin_pauses(u64::MAX, 9, 8)), (2, 64));
    }

    #[test]
    fn looks_in_vain_double_the_looks_left_out() {
        let mut looks = Looks::default();
        for skip in [1, 3, 7, 15, 31, 63, 127, 127] {
            looks = looks.after(LookOutcome::InVain);
            assert_eq!(looks.skip, skip);
        }
        // A short sleep is worth one look, and no more than that.
        let missed = looks.after(LookOutcome::Missed);
        assert_eq!((missed.skip, missed.after(LookOutcome::InVain).skip), (0, 127));
        assert_eq!(missed.after(LookOutcome::Well), Looks::default());
    }

    proptest! {
        /// However memory was written, and whatever comes, looks begin again after some calls.
        #[test]
        fn no_history_ends_looking_for_ever(
            vain: u64,
            outcomes in prop::collection::vec(0..3, 0..20),
        ) {
            let mut looks = Looks { vain, skip: 0 };
            for outcome in outcomes {
                looks = looks.after(match outcome {
                    0 => LookOutcome::Well,
                    1 => LookOutcome::Missed,
                    _ => LookOutcome::InVain,
                });
                prop_assert!(looks.skip < 1 << Looks::VAIN_MAX);
            }
            for _ in 0..1 << Looks::VAIN_MAX {
                looks = looks.after_skip();
            }
            prop_assert_eq!(looks.skip, 0);
        }
    }
}
