//! The sleep of one thread, ended by bells of other processes and by nudges of its own.
//!
//! The thread hears as many bells as the kernel lets it sleep on; threads of a [`Listener`] hear the
//! others and nudge. What sleeps on descriptors, too, is another thread's business.

use crate::listener::{Bell, GROUP, Group, Listener, Spawn, lock, sleep};
use crate::{clock, futex};
use omniverb_ring::{BellPage, Window};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A thread's sleep, which bells and its own process end.
pub struct Sleeper {
    nudges: Arc<AtomicU64>,
    /// Bells that the thread hears itself, by number.
    bells: Group,
    last: AtomicU64,
    /// The others.
    rest: Listener,
    awake: Mutex<Awake>,
}

/// What the thread knows.
#[derive(Default)]
struct Awake {
    nudges: u32,
    changes: Option<u32>,
    bells: Vec<Bell>,
}

/// A number of the listener's, not of the sleeper's.
const RESTS: u64 = 1 << 63;

impl Sleeper {
    /// Without bells. `spawn` starts threads for those that the sleeping one cannot hear itself.
    pub fn new(spawn: Spawn) -> Sleeper {
        let nudges = Arc::new(AtomicU64::new(0));
        let theirs = nudges.clone();
        Sleeper {
            rest: Listener::new(spawn, move || nudge(&theirs)),
            nudges,
            bells: Group::default(),
            last: AtomicU64::new(0),
            awake: Mutex::default(),
        }
    }

    /// Ends the present sleep, or the next one.
    pub fn nudge(&self) {
        nudge(&self.nudges);
    }

    /// What else may nudge.
    pub fn nudger(&self) -> impl Fn() + Send + Sync + 'static {
        let nudges = self.nudges.clone();
        move || nudge(&nudges)
    }

    /// Is woken by the bell of this page, too, from now on, and at least once. The number it is to
    /// be [removed](Self::remove) by; no other ever has it.
    ///
    /// # Errors
    /// `EAGAIN` if there can be no thread for it.
    pub fn add(&self, page: BellPage<Window>) -> io::Result<u64> {
        let mut bells = lock(&self.bells.bells);
        if self.rest.room == 1 || bells.len() >= GROUP {
            return Ok(self.rest.add(page)? | RESTS);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        bells.insert(number, page);
        self.bells.changes.fetch_add(1, Ordering::SeqCst);
        drop(bells);
        self.nudge();
        Ok(number)
    }

    /// No longer hears bell `number`.
    pub fn remove(&self, number: u64) {
        if number & RESTS != 0 {
            return self.rest.remove(number & !RESTS);
        }
        if lock(&self.bells.bells).remove(&number).is_some() {
            self.bells.changes.fetch_add(1, Ordering::SeqCst);
            self.nudge();
        }
    }

    /// Sleeps until there was a nudge, a bell was rung, or `limit` is over; `false` for that. One
    /// thread at a time.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let mut awake = lock(&self.awake);
        let awake = &mut *awake;
        let mut now = clock::now();
        let until = limit
            .map(|limit| now.saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        loop {
            let nudges = futex::low(&self.nudges);
            let nudged = std::mem::replace(&mut awake.nudges, nudges) != nudges;
            let changes = futex::low(&self.bells.changes);
            if awake.changes != Some(changes) {
                awake.changes = Some(changes);
                self.bells.take_changes(&mut awake.bells);
            }
            let rung = awake.bells.iter_mut().fold(false, |rung, bell| rung | bell.look(now));
            if nudged || rung {
                return true;
            }
            if until.is_some_and(|until| now >= until) {
                return false;
            }
            if self.rest.room > 1 {
                sleep(&mut awake.bells, (&self.nudges, nudges), now, until);
            } else {
                let limit = until.map_or(HOUR, |until| Duration::from_nanos(until - now));
                futex::wait(&self.nudges, nudges, limit);
            }
            now = clock::now();
        }
    }
}

fn nudge(nudges: &AtomicU64) {
    nudges.fetch_add(1, Ordering::SeqCst);
    futex::wake(nudges, 1);
}

const HOUR: Duration = Duration::from_secs(3600);
