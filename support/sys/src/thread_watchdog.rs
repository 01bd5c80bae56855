//! Detects stuck threads by pulses that running threads give.
//!
//! In: threads say when a turn of their loop begins, and when they sleep: an atomic of their own,
//! stored to twice a turn, without looking at a clock. Out: which threads have been within one and
//! the same turn for too long, as seen by an observer from time to time.

use crate::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What hangs on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRank {
    /// All others depend on it.
    Vital,
    /// Others can do without it for a while.
    Minor,
}

#[derive(Debug)]
struct ThreadBeat {
    name: String,
    rank: ThreadRank,
    /// Odd within a turn, even while the thread sleeps; never the same twice.
    turn: AtomicU64,
    over: AtomicBool,
}

/// A thread's own end. Dropped, the thread is not looked at any more.
#[derive(Debug)]
pub struct ThreadPulse(Arc<ThreadBeat>);

impl ThreadPulse {
    /// A turn begins.
    pub fn work(&self) {
        // No other thread stores.
        let turn = self.0.turn.load(Ordering::Relaxed);
        self.0.turn.store((turn | 1).wrapping_add(2), Ordering::Relaxed);
    }

    /// The thread is about to sleep until something comes.
    pub fn rest(&self) {
        let turn = self.0.turn.load(Ordering::Relaxed);
        self.0.turn.store((turn | 1).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for ThreadPulse {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// All pulses there are; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ThreadPulses(Arc<Mutex<Vec<Arc<ThreadBeat>>>>);

impl ThreadPulses {
    /// For a thread that all others depend on.
    #[must_use]
    pub fn vital(&self, name: &str) -> ThreadPulse {
        self.add(name, ThreadRank::Vital)
    }

    /// For one that others can do without for a while.
    #[must_use]
    pub fn minor(&self, name: &str) -> ThreadPulse {
        self.add(name, ThreadRank::Minor)
    }

    fn add(&self, name: &str, rank: ThreadRank) -> ThreadPulse {
        let beat = Arc::new(ThreadBeat {
            name: name.into(),
            rank,
            turn: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        lock(&self.0).push(beat.clone());
        ThreadPulse(beat)
    }

    /// Where the vital threads are now.
    #[must_use]
    pub fn mark(&self) -> PulseSnapshot {
        let vital = self.list().into_iter().filter(|beat| beat.rank == ThreadRank::Vital);
        PulseSnapshot(vital.map(|beat| (beat.turn.load(Ordering::Relaxed), beat)).collect())
    }

    fn list(&self) -> Vec<Arc<ThreadBeat>> {
        let mut list = lock(&self.0);
        list.retain(|beat| !beat.over.load(Ordering::Relaxed));
        list.clone()
    }
}

/// Where some threads were.
#[derive(Clone, Debug, Default)]
pub struct PulseSnapshot(Vec<(u64, Arc<ThreadBeat>)>);

impl PulseSnapshot {
    /// Whether each of them has had a whole turn since, or sleeps: what had come for it until then
    /// it has seen.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.0.iter().all(|(then, beat)| {
            let now = beat.turn.load(Ordering::Relaxed);
            now.is_multiple_of(2)
                || now.wrapping_sub(*then) >= 4
                || beat.over.load(Ordering::Relaxed)
        })
    }
}

/// A thread that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckThread {
    /// What it is called.
    pub thread: String,
    /// For how long, in nanoseconds, as far as was seen.
    pub time: u64,
    /// What hangs on it.
    pub rank: ThreadRank,
}

/// What is new since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchdogEvent {
    /// This thread is stuck.
    Stuck(StuckThread),
    /// It was, until now.
    GoesOn(StuckThread),
}

#[derive(Debug)]
struct PulseState {
    beat: Arc<ThreadBeat>,
    turn: u64,
    time: u64,
    stuck: bool,
}

impl PulseState {
    fn show(&self) -> StuckThread {
        StuckThread { thread: self.beat.name.clone(), time: self.time, rank: self.beat.rank }
    }
}

/// An observer of pulses.
#[derive(Debug)]
pub struct ThreadWatchdog {
    pulses: ThreadPulses,
    patience: u64,
    step: u64,
    seen: Vec<PulseState>,
    looked: Option<u64>,
}

impl ThreadWatchdog {
    /// A turn may last `patience` nanoseconds. A look is meant to follow another after half of
    /// `step` or so: if it comes later than `step`, we stood still too (a stopped process, a
    /// machine that was paused), and that time does not count.
    #[must_use]
    pub fn new(pulses: ThreadPulses, patience: u64, step: u64) -> ThreadWatchdog {
        ThreadWatchdog { pulses, patience, step, seen: Vec::new(), looked: None }
    }

    /// Looks, at the time `now` in nanoseconds; says what has changed.
    pub fn look(&mut self, now: u64) -> Vec<WatchdogEvent> {
        let passed = now.saturating_sub(self.looked.replace(now).unwrap_or(now)).min(self.step);
        let mut news = Vec::new();
        let mut before = std::mem::take(&mut self.seen);
        for beat in self.pulses.list() {
            let turn = beat.turn.load(Ordering::Relaxed);
            let known = before.iter().position(|seen| Arc::ptr_eq(&seen.beat, &beat));
            let mut seen = match known {
                Some(place) => before.swap_remove(place),
                None => PulseState { beat, turn, time: 0, stuck: false },
            };
            if turn % 2 == 1 && turn == seen.turn {
                seen.time += if known.is_some() { passed } else { 0 };
                if seen.time >= self.patience && !seen.stuck {
                    seen.stuck = true;
                    news.push(WatchdogEvent::Stuck(seen.show()));
                }
            } else {
                if std::mem::take(&mut seen.stuck) {
                    news.push(WatchdogEvent::GoesOn(seen.show()));
                }
                (seen.turn, seen.time) = (turn, 0);
            }
            self.seen.push(seen);
        }
        // Those that ended had gone on.
        news.extend(
            before.iter().filter(|seen| seen.stuck).map(|seen| WatchdogEvent::GoesOn(seen.show())),
        );
        news
    }

    /// Which threads were found stuck by the last look.
    #[must_use]
    pub fn stuck(&self) -> Vec<StuckThread> {
        self.seen.iter().filter(|seen| seen.stuck).map(PulseState::show).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn stuck(thread: &str, seconds: u64, rank: ThreadRank) -> StuckThread {
        StuckThread { thread: thread.into(), time: seconds * SECOND, rank }
    }

    #[test]
    fn a_mark_is_passed_when_a_whole_turn_was_had() {
        let pulses = ThreadPulses::default();
        let (one, _minor) = (pulses.vital("one"), pulses.minor("other"));
        assert!(pulses.mark().is_passed(), "it sleeps");
        one.work();
        let mark = pulses.mark();
        assert!(!mark.is_passed());
        one.work();
        assert!(!mark.is_passed(), "the turn that it was in says nothing");
        one.work();
        assert!(mark.is_passed());
        let mark = pulses.mark();
        one.rest();
        assert!(mark.is_passed());
        one.work();
        let mark = pulses.mark();
        drop(one);
        assert!(mark.is_passed());
    }

    #[test]
    fn a_stuck_iteration_and_its_end_are_reported_once_each() {
        let pulses = ThreadPulses::default();
        let (one, other) = (pulses.vital("one"), pulses.minor("other"));
        let mut watch = ThreadWatchdog::new(pulses, 5 * SECOND, 2 * SECOND);
        one.work();
        for second in 0..5 {
            other.work(); // busy all the time, but going on
            assert_eq!(watch.look(second * SECOND), []);
        }
        other.work();
        assert_eq!(
            watch.look(5 * SECOND),
            [WatchdogEvent::Stuck(stuck("one", 5, ThreadRank::Vital))]
        );
        other.rest();
        assert_eq!(watch.look(6 * SECOND), []);
        assert_eq!(watch.stuck(), [stuck("one", 6, ThreadRank::Vital)]);
        one.work();
        assert_eq!(
            watch.look(7 * SECOND),
            [WatchdogEvent::GoesOn(stuck("one", 6, ThreadRank::Vital))]
        );
        assert!(watch.look(8 * SECOND).is_empty() && watch.stuck().is_empty());
    }

    #[test]
    fn a_sleeping_thread_is_not_stuck() {
        let pulses = ThreadPulses::default();
        let (asleep, new) = (pulses.vital("asleep"), pulses.vital("new"));
        asleep.work();
        asleep.rest();
        let mut watch = ThreadWatchdog::new(pulses, 5 * SECOND, 2 * SECOND);
        assert!((0..100).all(|second| watch.look(second * SECOND).is_empty()));
        // Twice the same is as good as once.
        new.rest();
        asleep.rest();
        assert!((100..200).all(|second| watch.look(second * SECOND).is_empty()));
    }

    #[test]
    fn time_without_a_look_counts_for_no_peer() {
        let pulses = ThreadPulses::default();
        let pulse = pulses.vital("one");
        let mut watch = ThreadWatchdog::new(pulses, 5 * SECOND, 2 * SECOND);
        pulse.work();
        assert!(watch.look(0).is_empty() && watch.look(600 * SECOND).is_empty());
        assert!(watch.look(601 * SECOND).is_empty() && watch.look(602 * SECOND).is_empty());
        assert_eq!(
            watch.look(603 * SECOND),
            [WatchdogEvent::Stuck(stuck("one", 5, ThreadRank::Vital))]
        );
        drop(pulse);
        assert_eq!(
            watch.look(604 * SECOND),
            [WatchdogEvent::GoesOn(stuck("one", 5, ThreadRank::Vital))]
        );
    }
}
