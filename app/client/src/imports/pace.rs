//! How much of the time an importer may have pages moved: while they are, whoever stores into them
//! waits, and so do a fork and the end of any region.

use omniverb_sys::{clock, lock};
use std::sync::Mutex;

/// So much may be used at once: some gigabytes, or dozens of small regions.
const AT_ONCE: u64 = 1_000_000_000;
/// Of all time, one part in so many.
const SHARE: u64 = 2;

/// What all importers of the process have used together, in nanoseconds.
#[derive(Default)]
pub(super) struct Pace(Mutex<Used>);

#[derive(Default)]
struct Used {
    time: u64,
    /// When that was so.
    at: u64,
}

impl Used {
    fn pass(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        (self.time, self.at) = (self.time.saturating_sub(passed / SHARE), now);
    }

    fn may(&mut self, now: u64) -> bool {
        self.pass(now);
        self.time < AT_ONCE
    }

    fn took(&mut self, begun: u64, now: u64) {
        self.pass(now);
        self.time = self.time.saturating_add(now.saturating_sub(begun));
    }
}

impl Pace {
    /// Whether pages may be moved for an importer now.
    pub(super) fn may(&self) -> bool {
        lock(&self.0).may(clock::now())
    }

    /// Does something for an importer that takes time.
    pub(super) fn spend<R>(&self, act: impl FnOnce() -> R) -> R {
        let begun = clock::now();
        let result = act();
        lock(&self.0).took(begun, clock::now());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_used_a_second_has_half_of_the_time() {
        let mut used = Used::default();
        let mut now = 10 * AT_ONCE;
        let mut moving = 0;
        let end = now + 100 * AT_ONCE;
        while now < end {
            if used.may(now) {
                let begun = now;
                now += AT_ONCE / 10;
                moving += now - begun;
                used.took(begun, now);
            } else {
                now += AT_ONCE / 1000;
            }
        }
        assert!((50 * AT_ONCE..53 * AT_ONCE).contains(&moving), "{moving}");
        assert!(used.may(now + 3 * AT_ONCE) && used.time == 0, "what is not used is not saved");
    }
}
