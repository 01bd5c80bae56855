//! How often something is tried that may be in vain, and for how long.
//!
//! Times are in any unit, as the caller's clock has it.

/// Doubled so often a pause is no longer made longer.
const DOUBLED: u64 = 6;
/// A pause is forgotten when nothing was in vain for so many times as long.
const FORGOTTEN: u64 = 16;

/// How it was with something that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// It has given back what it took.
    Well,
    /// It has taken more.
    InVain,
}

/// When something was tried last that is done at most every `first` units, and seldomer each time
/// that it was in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How often in a row it was tried.
    pub times: u64,
    /// When that was last.
    pub last: u64,
}

impl Pace {
    /// How long ago the last time was, seen from a time that may be a little before it.
    fn since(self, now: u64) -> u64 {
        now.wrapping_sub(self.last).cast_signed().max(0).cast_unsigned()
    }

    /// How long it has to be until the next time.
    fn pause(self, first: u64) -> u64 {
        first << self.times.saturating_sub(1).min(DOUBLED)
    }

    /// Nothing was in vain for long.
    #[must_use]
    pub fn is_forgotten(self, now: u64, first: u64) -> bool {
        self.times == 0 || self.since(now) > FORGOTTEN * self.pause(first)
    }

    /// It may be tried again.
    #[must_use]
    pub fn is_due(self, now: u64, first: u64) -> bool {
        self.times == 0 || self.since(now) > self.pause(first)
    }

    /// It is, or was found to be in vain.
    #[must_use]
    pub fn next(self, now: u64, first: u64, was: Was) -> Pace {
        let is_new = was == Was::Well || self.is_forgotten(now, first);
        Pace { times: if is_new { 1 } else { (self.times + 1).min(DOUBLED + 1) }, last: now }
    }
}

/// One more of something was in vain than `vain` in a row: how many that are, up to `most`, and how
/// many times it is left out then.
#[must_use]
pub fn in_vain(vain: u64, most: u64) -> (u64, u64) {
    let vain = (vain + 1).min(most);
    (vain, (1 << vain) - 1)
}

/// The next pause of something that is to be done seldom unless it helps: it was done `since` ago,
/// when it had to be `pause` ago at least. Between `least` and `most`.
#[must_use]
pub fn pause(since: u64, pause: u64, least: u64, most: u64) -> u64 {
    let has_helped = since >= (16 * pause).min(4 * most);
    if has_helped { least } else { (2 * pause).min(most) }
}

/// What something takes that `took` so long just now, and `was` taken to take so long. Grows more
/// slowly than it falls: some threads may have had no processor for a moment.
#[must_use]
pub fn learned(was: u64, took: u64) -> u64 {
    if took < was { was - (was - took) / 4 } else { was + (took - was) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_seldom() {
        let (mut pace, mut now, mut tries) = (Pace::default(), 1, 0);
        for _ in 0..100_000 {
            now += 1;
            if pace.is_due(now, 10) {
                pace = pace.next(now, 10, Was::InVain);
                tries += 1;
            }
        }
        // 10, 20, 40 ... 640, and every 640 from then on.
        assert!((150..=165).contains(&tries), "{tries}");
    }

    #[test]
    fn what_was_well_is_tried_soon() {
        let last = Pace { times: 3, last: 100 };
        assert!(!last.is_due(99, 10) && !last.is_forgotten(99, 10));
        let vain = (0..20).fold(Pace::default(), |pace, now| pace.next(now, 10, Was::InVain));
        assert!(!vain.is_due(19 + 640, 10) && vain.is_due(20 + 640, 10));
        let well = vain.next(700, 10, Was::Well);
        assert!(!well.is_due(710, 10) && well.is_due(711, 10));
        // And so is what was not in vain for long.
        let long = vain.next(19 + 16 * 640 + 1, 10, Was::InVain);
        assert_eq!(long.times, 1);
    }

    #[test]
    fn what_does_not_help_is_done_seldom() {
        // It was needed again at once, for ever.
        assert_eq!((0..100).fold(4, |last, _| pause(last + 1, last, 4, 500)), 500);
        // It was not, for long.
        assert_eq!(pause(2000, 500, 4, 500), 4);
    }

    #[test]
    fn what_it_takes_is_learned_and_forgotten() {
        let slow = (0..40).fold(0, |was, _| learned(was, 1000));
        assert!((950..=1000).contains(&slow), "{slow}");
        let fast = (0..40).fold(slow, |was, _| learned(was, 100));
        assert!((100..150).contains(&fast), "{fast}");
    }

    #[test]
    fn what_is_in_vain_is_left_out() {
        let mut vain = 0;
        let skipped = [1, 3, 7, 15, 15].map(|wanted| {
            let found;
            (vain, found) = in_vain(vain, 4);
            (found, wanted)
        });
        assert!(skipped.iter().all(|(found, wanted)| found == wanted), "{skipped:?}");
    }
}
