//! Limits how long a thread polls before it sleeps.
//!
//! Only the time counts for which the thread itself has had the processor: while others had it they
//! did what was waited for, or something else that was to be done. So processes of which there are
//! more than processors yield to each other, and none of them sleeps, and has to be woken, for each
//! message. But the kernel lets a woken thread run before one that computes all the time, and does
//! not do so for one that only polls ([`super::cpu_contention`]).

use super::cpu_contention;
use super::yield_cpu::{self, RanThreads, Sleep};
use crate::tsc_clock;

/// So often others may have the processor before that counts. Where all have something to do what
/// is waited for has come by then; where all only look, none of them is to do it for long.
const TURNS: u32 = 4;

/// Budget: however much others have to do, or to read: a signal that comes meanwhile interrupts
/// nothing, and the program's own limit of time has to be kept.
const LONGEST: u64 = 1 << 23;

/// How long one look lasts.
pub(crate) struct SpinBudget {
    began: u64,
    longest: u64,
    since: u64,
    limit: u64,
    /// Others have had the processor for so long since then, and so often.
    away: u64,
    turns: u32,
    /// Others computed when it began; or were found to since.
    is_crowd: bool,
    is_late: bool,
    had: RanThreads,
}

impl SpinBudget {
    /// It begins, and is to last so long: in a crowd no longer than until something is not there.
    /// It may take longer, but not than `most`.
    pub(crate) fn of(limit: u64, most: u64) -> Self {
        let (began, is_crowd) = (tsc_clock::now(), cpu_contention::is_contended());
        Self {
            began,
            longest: most.min(LONGEST).max(limit),
            since: began,
            limit,
            away: 0,
            turns: 0,
            is_crowd,
            is_late: false,
            had: RanThreads::ThisThread,
        }
    }

    /// It is to last so long from now on, if it may.
    pub(crate) fn renew(&mut self, limit: u64) -> bool {
        (self.since, self.limit, self.away, self.turns) = (tsc_clock::now(), limit, 0, 0);
        !self.is_over()
    }

    /// It has come to an end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_crowd || self.took_long()
    }

    fn took_long(&self) -> bool {
        let away = if self.turns < TURNS { self.away } else { 0 };
        self.is_late
            || tsc_clock::is_over(self.since, self.limit.saturating_add(away))
            || tsc_clock::is_over(self.began, self.longest)
    }

    /// No other thread needs the processor, as far as can be told.
    pub(crate) fn is_alone(&self) -> bool {
        self.had == RanThreads::ThisThread
    }

    /// Lets others go first.
    pub(crate) fn yield_now(&mut self) {
        self.had = yield_cpu::yield_now(Sleep::May);
        if let RanThreads::Others(time) = self.had {
            self.away = self.away.saturating_add(time);
            self.turns += 1;
            self.is_late |= cpu_contention::is_contended();
        }
    }

    /// What was waited for has come. Whether in time: otherwise the kernel would have woken us
    /// before.
    pub(crate) fn was_in_time(&self) -> bool {
        yield_cpu::note_arrival(self.had);
        !self.took_long()
    }
}
