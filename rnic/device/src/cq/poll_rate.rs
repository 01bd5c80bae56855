//! Measures how often a CQ is polled, to decide whether its polls serve its links, or the progress
//! thread does.
//!
//! A NIC serves its peers whatever the program does. Polls that follow each other closely do that,
//! and peers need not wake the progress thread for it. Those of a program that polls now and then,
//! by a timer of its own, do not: its peers would wait for its next poll.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Polls that are farther apart than this on average, in nanoseconds, do not serve: to wake the
/// progress thread takes no longer.
const FAR_APART: u64 = 100_000;
/// How long one has to look to tell, in nanoseconds; the progress thread takes a turn twice as late
/// while something goes on.
const LOOK: u64 = 500_000;
/// While polls serve it does not sleep. If it had no turn for longer than this all the same, in
/// nanoseconds, it had no processor, nor may the polling thread have: then so many polls are enough
/// as would be in this time.
const LONGEST: u64 = 10_000_000;

/// How often the program polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollRate {
    /// Never, since the progress thread looked last, or that is not known.
    None,
    /// Too seldom to serve.
    Seldom,
    /// So often that polls serve.
    Often,
}

/// Counts the polls of a CQ.
#[derive(Default)]
pub(super) struct PollCounter {
    polls: AtomicU64,
    /// What counts as polls besides: those that would have had time in one that waited for
    /// something itself, and completions that came together.
    credit: AtomicU64,
    /// Polls of both kinds when it was last judged, and when that was.
    seen: AtomicU64,
    seen_at: AtomicU64,
    /// What was judged then, a [`PollRate`].
    judged: AtomicU8,
}

impl PollCounter {
    /// One more poll, and its number. Only a hint for the progress thread: a lost count does no
    /// harm.
    #[inline(always)]
    pub(super) fn poll(&self) -> u64 {
        let polls = self.polls().wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// Polls so far.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// A poll has waited so many nanoseconds for something to come.
    pub(super) fn waited(&self, time: u64) {
        self.credit(time / FAR_APART);
    }

    /// A poll had so many completions: bringing and using them takes time.
    #[inline(always)]
    pub(super) fn took(&self, count: usize) {
        if count > 1 {
            self.credit(count as u64);
        }
    }

    /// A lost one does no harm.
    #[inline(always)]
    fn credit(&self, polls: u64) {
        let credit = self.credit.load(Ordering::Relaxed).wrapping_add(polls);
        self.credit.store(credit, Ordering::Relaxed);
    }

    /// For the progress thread: how often the program polled since it judged last.
    pub(super) fn judge(&self, now: u64) -> PollRate {
        let polls = self.polls().wrapping_add(self.credit.load(Ordering::Relaxed));
        let more = polls.wrapping_sub(self.seen.load(Ordering::Relaxed));
        let elapsed = now.saturating_sub(self.seen_at.load(Ordering::Relaxed));
        let before = self.judged();
        if elapsed < LOOK && (more > 0 || before == PollRate::Seldom) {
            return before;
        }
        self.seen.store(polls, Ordering::Relaxed);
        self.seen_at.store(now, Ordering::Relaxed);
        let judged = match more {
            0 => PollRate::None,
            _ if before == PollRate::Often && more >= LONGEST / FAR_APART => PollRate::Often,
            _ if more < elapsed / FAR_APART => PollRate::Seldom,
            _ => PollRate::Often,
        };
        self.judged.store(judged as u8, Ordering::Relaxed);
        judged
    }

    /// Whether polls may look at links by themselves: not if peers would wait for them.
    pub(super) fn may_watch(&self) -> bool {
        self.judged() != PollRate::Seldom
    }

    /// What was judged last.
    fn judged(&self) -> PollRate {
        match self.judged.load(Ordering::Relaxed) {
            2 => PollRate::Often,
            1 => PollRate::Seldom,
            _ => PollRate::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PollRate::{None, Often, Seldom};
    use super::*;

    fn polls(attendance: &PollCounter, count: u64) {
        (0..count).for_each(|_| _ = attendance.poll());
    }

    #[test]
    fn polls_close_together_serve() {
        let attendance = PollCounter::default();
        let turn = |(count, at): (u64, u64)| {
            polls(&attendance, count);
            attendance.judge(at * 1_000_000)
        };
        let judged = [50_000, 10, 9, 2, 0, 10].into_iter().zip(1..).map(turn);
        assert_eq!(judged.collect::<Vec<_>>(), [Often, Often, Seldom, Seldom, None, Often]);
    }

    #[test]
    fn a_short_time_tells_only_that_no_thread_polls() {
        let attendance = PollCounter::default();
        polls(&attendance, 1);
        assert_eq!(attendance.judge(1000), None, "so far");
        assert_eq!(attendance.judge(1_000_000), Seldom);
        polls(&attendance, 1);
        assert_eq!(attendance.judge(1_001_000), Seldom, "one, in a microsecond");
        polls(&attendance, 10);
        assert_eq!(attendance.judge(2_001_000), Often);
        assert_eq!(attendance.judge(2_002_000), None);
    }

    /// The machine is so busy that either of the two runs now and then only.
    #[test]
    fn of_a_long_time_little_counts_if_polls_served_before() {
        let attendance = PollCounter::default();
        polls(&attendance, 200);
        assert_eq!(attendance.judge(1_000_000_000), Seldom, "it slept");
        polls(&attendance, 10);
        assert_eq!(attendance.judge(1_001_000_000), Often);
        polls(&attendance, 100);
        assert_eq!(attendance.judge(2_000_000_000), Often);
        polls(&attendance, 99);
        assert_eq!(attendance.judge(3_000_000_000), Seldom);
    }

    #[test]
    fn completions_that_come_together_count() {
        let attendance = PollCounter::default();
        attendance.judge(1_000_000_000);
        polls(&attendance, 3);
        (0..3).for_each(|_| attendance.took(64));
        assert_eq!(attendance.judge(1_001_000_000), Often);
    }

    #[test]
    fn a_poll_that_waits_serves_meanwhile() {
        let attendance = PollCounter::default();
        polls(&attendance, 1);
        attendance.waited(900_000);
        assert_eq!(attendance.judge(1_000_000), Often);
    }
}
