//! Limits the log lines that one source may cause: a burst, then a rate.
//!
//! In: the time. Out: whether a line is written, and how many were left out before it.

use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

/// Budget: lines of a log that are written at once, from all sources; then one a second, which is
/// some 10 MB a day.
pub const LINES: u32 = 100;
const EVERY: u64 = SECOND;
/// Budget: lines of a log that one source causes at once, a machine or a vNIC; then one a minute.
pub const LINES_OF_ONE: u32 = 10;
const EVERY_OF_ONE: u64 = 60 * SECOND;
/// Budget: sources of lines that are told apart. Others share what there is for all.
pub const SOURCES: usize = 256;

/// What is left of a budget that fills again.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    left: u32,
    most: u32,
    every: u64,
    filled: u64,
}

impl TokenBucket {
    fn full(most: u32, every: u64, now: u64) -> TokenBucket {
        TokenBucket { left: most, most, every, filled: now }
    }

    fn fill(&mut self, now: u64) {
        let more = now.saturating_sub(self.filled) / self.every;
        self.filled += more * self.every;
        self.left =
            self.most.min(self.left.saturating_add(u32::try_from(more).unwrap_or(self.most)));
    }

    fn is_full(&mut self, now: u64) -> bool {
        self.fill(now);
        self.left == self.most
    }
}

/// The budget of one log.
#[derive(Debug)]
pub struct LogBudget {
    all: TokenBucket,
    of: BTreeMap<String, TokenBucket>,
    left_out: u64,
}

impl LogBudget {
    /// Full, at this time.
    #[must_use]
    pub fn new(now: u64) -> LogBudget {
        LogBudget { all: TokenBucket::full(LINES, EVERY, now), of: BTreeMap::new(), left_out: 0 }
    }

    /// Takes one line; `source`: its cause, if that is one of many. `None`: it is left out. Else
    /// how many were before it, of whatever source.
    pub fn take(&mut self, source: Option<&str>, now: u64) -> Option<u64> {
        self.all.fill(now);
        let is_there_room = self.all.left > 0;
        let may = match source.and_then(|source| self.of_one(source, now)) {
            Some(one) => {
                let may = is_there_room && one.left > 0;
                one.left -= u32::from(may);
                may
            }
            None => is_there_room,
        };
        if !may {
            self.left_out += 1;
            return None;
        }
        self.all.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }

    fn of_one(&mut self, source: &str, now: u64) -> Option<&mut TokenBucket> {
        if !self.of.contains_key(source) {
            if self.of.len() >= SOURCES {
                self.of.retain(|_, bucket| !bucket.is_full(now));
            }
            if self.of.len() < SOURCES {
                let full = TokenBucket::full(LINES_OF_ONE, EVERY_OF_ONE, now);
                self.of.insert(source.to_owned(), full);
            }
        }
        let bucket = self.of.get_mut(source)?;
        bucket.fill(now);
        Some(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many lines at this time are written.
    fn written(lines: &mut LogBudget, source: Option<&str>, count: u32, now: u64) -> usize {
        (0..count).filter(|_| lines.take(source, now).is_some()).count()
    }

    #[test]
    fn one_source_leaves_the_log_to_others() {
        let mut lines = LogBudget::new(0);
        assert_eq!(written(&mut lines, Some("m1"), 100_000, 0), LINES_OF_ONE as usize);
        assert_eq!(lines.take(Some("m2"), 0), Some(100_000 - u64::from(LINES_OF_ONE)));
        assert_eq!(lines.take(None, 0), Some(0));
        assert_eq!(written(&mut lines, Some("m1"), 100, 59 * SECOND), 0);
        assert_eq!(written(&mut lines, Some("m1"), 100, 60 * SECOND), 1);
    }

    #[test]
    fn a_day_of_lies_is_a_bounded_log() {
        let mut lines = LogBudget::new(0);
        let day = 86_400_u32;
        let names: Vec<_> = (0..2 * SOURCES).map(|name| name.to_string()).collect();
        let mut all = 0;
        for second in 0..u64::from(day) / 1000 {
            for name in &names {
                all += written(&mut lines, Some(name), 2, second * SECOND);
            }
        }
        assert!(all <= (LINES + day / 1000) as usize, "{all}");
        assert!(lines.of.len() <= SOURCES);
        assert!(written(&mut lines, None, 1000, u64::from(day) * SECOND) == LINES as usize);
    }
}
