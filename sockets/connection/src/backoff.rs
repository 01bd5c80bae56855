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

/// After one failure more than `failures` in a row: how many that are, up to `most`, and how many
/// attempts are left out then.
#[must_use]
pub fn skip_after_failure(failures: u64, most: u64) -> (u64, u64) {
    let failures = (failures + 1).min(most);
    (failures, (1 << failures) - 1)
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
    fn failures_double_the_attempts_left_out() {
        let mut failures = 0;
        let skipped = [1, 3, 7, 15, 15].map(|wanted| {
            let found;
            (failures, found) = skip_after_failure(failures, 4);
            (found, wanted)
        });
        assert!(skipped.iter().all(|(found, wanted)| found == wanted), "{skipped:?}");
    }
}
