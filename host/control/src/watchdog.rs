//! Watches the other threads, and logs one that is stuck.
//!
//! In: pulses of the daemon's threads. Out: a line in the log when one is stuck, and one when it
//! goes on; what status shows; and signs of life for the service manager, which stop while a thread
//! is stuck that all depend on, so that the daemon is started afresh. Threads that the others can
//! do without for a while (the recorder, the thread that unmaps, the helper that looks into
//! tenants' namespaces) are logged, but no reason to end: a restart would not help. It also returns
//! memory that other threads have freed to the kernel.

use crate::daemon_log::{Journal, Level};
use omniverb_sys::heap_trim::Trimmer;
use omniverb_sys::thread_watchdog::{
    StuckThread, ThreadPulses, ThreadRank, ThreadWatchdog, WatchdogEvent,
};
use omniverb_sys::{clock, lock};
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// How often pulses are looked at, unless something is wanted more often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two looks.
const LOOK_AT_MOST: Duration = Duration::from_millis(10);

/// The sign of life for the service manager as long as no needed thread is stuck.
#[derive(Clone, Copy, Debug)]
pub struct SignOfLife {
    /// How often it wants to hear that, at least.
    pub every: Duration,
    /// Tells it. Must not wait.
    pub send: fn(),
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct PulseState {
    /// Threads that have not answered for too long now.
    pub(crate) stuck: Vec<StuckThread>,
    /// How often one was stuck, so far.
    pub(crate) total: u64,
}

/// The watchdog's handle; it ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    seen: Arc<Mutex<PulseState>>,
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    /// Starts the thread. Without `patience` no thread is watched, and signs of life are given all
    /// the time.
    pub(crate) fn start(
        pulses: &ThreadPulses,
        patience: Option<Duration>,
        sign: Option<SignOfLife>,
        journal: Journal,
    ) -> io::Result<Watchdog> {
        let (alive, ended) = mpsc::channel();
        let seen = Arc::new(Mutex::new(PulseState::default()));
        let watchdog = Watchdog { seen: seen.clone(), _alive: alive };
        let wanted = [patience.map(|patience| patience / 2), sign.map(|sign| sign.every)];
        let every = wanted.into_iter().flatten().fold(LOOK_EVERY, Duration::min).max(LOOK_AT_MOST);
        let step = 2 * nanoseconds(every);
        let watch =
            patience.map(|time| ThreadWatchdog::new(pulses.clone(), nanoseconds(time), step));
        let trimmer = Trimmer::default();
        let mut dog = Dog { watch, sign, signed: None, seen, journal, trimmer, trims: 0 };
        // The thread is not joined: it may be blocked in the log.
        std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            while ended.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
                dog.look(clock::now(), nanoseconds(every));
            }
        })?;
        Ok(watchdog)
    }

    pub(crate) fn seen(&self) -> PulseState {
        lock(&self.seen).clone()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

struct Dog {
    watch: Option<ThreadWatchdog>,
    sign: Option<SignOfLife>,
    /// When the last sign of life was given.
    signed: Option<u64>,
    seen: Arc<Mutex<PulseState>>,
    journal: Journal,
    trimmer: Trimmer,
    /// When memory is looked at next.
    trims: u64,
}

impl Dog {
    fn look(&mut self, now: u64, every: u64) {
        if now >= self.trims {
            self.trims = now + nanoseconds(LOOK_EVERY);
            self.trimmer.look();
        }
        let news = self.watch.as_mut().map(|watch| watch.look(now)).unwrap_or_default();
        let stuck = self.watch.as_ref().map(ThreadWatchdog::stuck).unwrap_or_default();
        if !stuck.iter().any(|stuck| stuck.rank == ThreadRank::Vital) {
            self.give_sign(now, every);
        }
        {
            let mut seen = lock(&self.seen);
            seen.stuck = stuck;
            seen.total +=
                news.iter().filter(|news| matches!(news, WatchdogEvent::Stuck(_))).count() as u64;
        }
        // Last, because it may wait.
        for news in news {
            let seconds = |stuck: &StuckThread| stuck.time as f64 / 1e9;
            match &news {
                WatchdogEvent::Stuck(stall) => self.journal.log(
                    Level::Error,
                    format_args!("{} has been stuck for {:.1} s", stall.thread, seconds(stall)),
                ),
                WatchdogEvent::GoesOn(stall) => self.journal.log(
                    Level::Warning,
                    format_args!("{} goes on after {:.1} s", stall.thread, seconds(stall)),
                ),
            }
        }
    }

    fn give_sign(&mut self, now: u64, every: u64) {
        let Some(sign) = self.sign else { return };
        // Rather early than late by one look.
        let due = |last: u64| now + every / 2 >= last + nanoseconds(sign.every);
        if self.signed.is_none_or(due) {
            self.signed = Some(now);
            (sign.send)();
        }
    }
}
