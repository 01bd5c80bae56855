//! Limits how much of the time importers may have pages moved: while they are, stores into them
//! wait, and so do a fork and the end of any region. Each process that imports has a purse, which
//! none empties for another; and there is one of all, since one program may be many processes.

use omniverb_sys::lock;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// So much may be used at once: dozens of gigabytes, or hundreds of small regions on a busy
/// machine. A process that imports what there is and gives it up again uses less.
const AT_ONCE: u64 = 10_000_000_000;
/// Of all time, so many parts of four: a process, and all of them. So one alone never empties what
/// all have together, and some time is left to the owner.
const EACH: u64 = 2;
const ALL: u64 = 3;
const PARTS: u64 = 4;

#[cfg(not(test))]
use omniverb_sys::clock::now;

#[cfg(test)]
thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(0) };
}

/// Tests say themselves what time it is.
#[cfg(test)]
pub(super) fn now() -> u64 {
    CLOCK.get()
}

#[cfg(test)]
pub(super) fn pass(time: u64) {
    CLOCK.set(CLOCK.get() + time);
}

thread_local! {
    /// What this thread has spent with moves, ever, in nanoseconds.
    static SPENT: Cell<u64> = const { Cell::new(0) };
}

/// Moves pages, and notes how long that takes.
pub(super) fn timed<R>(act: impl FnOnce() -> R) -> R {
    let begun = now();
    let result = act();
    SPENT.set(SPENT.get().saturating_add(now().saturating_sub(begun)));
    result
}

/// What has been used, in nanoseconds.
#[derive(Default)]
struct TimeUsed {
    time: u64,
    /// When that was so.
    at: u64,
}

impl TimeUsed {
    /// What is left of it now, if so many parts of the time are given.
    fn now(&mut self, parts: u64) -> u64 {
        let now = now();
        let given = (now.saturating_sub(self.at) / PARTS).saturating_mul(parts);
        (self.time, self.at) = (self.time.saturating_sub(given), now);
        self.time
    }

    fn took(&mut self, parts: u64, time: u64) {
        self.time = self.now(parts).saturating_add(time);
    }
}

/// What one process has used, by all its connections.
#[derive(Default)]
pub(super) struct ProcessMoveTime(Mutex<TimeUsed>);

/// What all importing processes have used together, and each by itself.
#[derive(Default)]
pub(super) struct MoveBudget {
    all: Mutex<TimeUsed>,
    /// By process. One that has left something to pay, and comes back, still has to.
    each: Mutex<HashMap<i32, Arc<ProcessMoveTime>>>,
}

impl MoveBudget {
    /// A process's. Those that we cannot distinguish have one.
    pub(super) fn of(&self, process: i32) -> Arc<ProcessMoveTime> {
        let mut each = lock(&self.each);
        each.retain(|_, purse| Arc::strong_count(purse) > 1 || lock(&purse.0).now(EACH) > 0);
        each.entry(process).or_default().clone()
    }

    /// Whether pages may be moved for it now.
    pub(super) fn may(&self, purse: &ProcessMoveTime) -> bool {
        lock(&purse.0).now(EACH) < AT_ONCE && lock(&self.all).now(ALL) < AT_ONCE
    }

    /// Does something for it, by this thread: what is moved meanwhile is moved for it.
    pub(super) fn spend<R>(&self, purse: &ProcessMoveTime, act: impl FnOnce() -> R) -> R {
        let before = SPENT.get();
        let result = act();
        let time = SPENT.get().saturating_sub(before);
        if time > 0 {
            lock(&purse.0).took(EACH, time);
            lock(&self.all).took(ALL, time);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn moves(pace: &MoveBudget, purse: &ProcessMoveTime, time: u64) {
        pace.spend(purse, || timed(|| pass(time)));
    }

    /// Moves as much as it may for a while; how long that was.
    fn uses(pace: &MoveBudget, purses: &[Arc<ProcessMoveTime>], seconds: u64) -> u64 {
        let (end, mut moving) = (now() + seconds * SECOND, 0);
        while now() < end {
            let Some(rich) = purses.iter().find(|purse| pace.may(purse)) else {
                pass(SECOND / 1000);
                continue;
            };
            moves(pace, rich, SECOND / 10);
            moving += SECOND / 10;
        }
        // So that there is nothing left for certain.
        moves(pace, &purses[0], SECOND);
        moving / SECOND
    }

    #[test]
    fn a_spent_burst_leaves_half_of_the_time() {
        let pace = MoveBudget::default();
        let purse = [pace.of(7)];
        assert!((59..62).contains(&uses(&pace, &purse, 100)));
        assert!(!pace.may(&purse[0]) && pace.may(&pace.of(8)), "others are not billed");
        pass(3 * AT_ONCE);
        assert!(lock(&purse[0].0).now(EACH) == 0, "what is not used is not saved");
    }

    #[test]
    fn many_leave_a_quarter_of_the_time() {
        let pace = MoveBudget::default();
        let purses = [(); 20].map(|()| Arc::<ProcessMoveTime>::default());
        assert!((309..312).contains(&uses(&pace, &purses, 400)));
        assert!(!pace.may(&pace.of(9)), "there is none left for anybody");
    }

    #[test]
    fn a_returning_client_owes_what_it_owed() {
        let pace = MoveBudget::default();
        uses(&pace, &[pace.of(7)], 50);
        assert!(!pace.may(&pace.of(7)));
        pass(3 * AT_ONCE);
        pace.of(8);
        assert_eq!(lock(&pace.each).len(), 1, "nobody is remembered for nothing");
    }
}
