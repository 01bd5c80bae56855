//! Lets one thread sleep until a doorbell rings or it is nudged.
//!
//! The thread hears as many doorbells as the kernel lets it sleep on; threads of a
//! [`DoorbellListener`] hear the others and nudge. What sleeps on descriptors, too, is another
//! thread's business.

use crate::doorbell_listener::{
    DoorbellGroup, DoorbellListener, GROUP, Spawn, WatchedDoorbell, sleep,
};
use crate::{clock, futex, lock};
use omniverb_ring::{DoorbellPage, Window};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A thread's sleep, which doorbells and its own process end.
pub struct DoorbellSleeper {
    nudges: Arc<AtomicU64>,
    /// Doorbells that the thread hears itself, by number.
    bells: DoorbellGroup,
    last: AtomicU64,
    /// Hears the doorbells that do not fit into one system call.
    rest: DoorbellListener,
    awake: Mutex<SleeperState>,
}

/// What the thread knows.
#[derive(Default)]
struct SleeperState {
    nudges: u32,
    changes: Option<u32>,
    bells: Vec<WatchedDoorbell>,
}

/// A number of the listener's, not of the sleeper's.
const RESTS: u64 = 1 << 63;

impl DoorbellSleeper {
    /// Without doorbells. `spawn` starts threads for those that the sleeping one cannot hear
    /// itself.
    pub fn new(spawn: Spawn) -> DoorbellSleeper {
        let nudges = Arc::new(AtomicU64::new(0));
        let theirs = nudges.clone();
        DoorbellSleeper {
            rest: DoorbellListener::new(spawn, move || nudge(&theirs)),
            nudges,
            bells: DoorbellGroup::default(),
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

    /// Is woken by the doorbell of this page, too, from now on, and at least once. The number it is
    /// to be [removed](Self::remove) by; no other ever has it.
    ///
    /// # Errors
    /// `EAGAIN` if there can be no thread for it.
    pub fn add(&self, page: DoorbellPage<Window>) -> io::Result<u64> {
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

    /// No longer hears doorbell `number`.
    pub fn remove(&self, number: u64) {
        if number & RESTS != 0 {
            return self.rest.remove(number & !RESTS);
        }
        if lock(&self.bells.bells).remove(&number).is_some() {
            self.bells.changes.fetch_add(1, Ordering::SeqCst);
            self.nudge();
        }
    }

    /// Sleeps until there was a nudge, a doorbell was rung, or `limit` is over; `false` for that.
    /// One thread at a time.
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
                let _new = self.bells.take_changes(&mut awake.bells);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell_listener::ring;
    use crate::mapping::Access;
    use crate::{Extent, memfd};

    const LONG: Option<Duration> = Some(Duration::from_secs(20));
    const SOON: Option<Duration> = Some(Duration::from_millis(30));

    fn thread(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
    }

    fn bell() -> (DoorbellPage<Window>, DoorbellPage<Window>) {
        let file = memfd::create("bell", 4096).unwrap();
        let view = || Extent::new(&file, 0, 4096).map(Access::ReadWrite).unwrap();
        (DoorbellPage::new(view()), DoorbellPage::new(view()))
    }

    /// More doorbells than it can hear itself, and one where each needs a thread.
    #[test]
    fn it_sleeps_until_a_nudge_a_bell_or_the_end_of_its_time() {
        for (room, count) in [(GROUP, GROUP + 5), (1, 9)] {
            let mut sleeper = DoorbellSleeper::new(thread);
            sleeper.rest.limit_room(room);
            let bells: Vec<_> = (0..count).map(|_| bell()).collect();
            let numbers: Vec<_> =
                bells.iter().map(|(ours, _)| sleeper.add(ours.clone()).unwrap()).collect();
            while sleeper.wait(SOON) {}
            for (_, theirs) in &bells {
                ring(theirs);
                assert!(sleeper.wait(LONG));
            }
            while sleeper.wait(SOON) {}
            sleeper.nudge();
            assert!(sleeper.wait(LONG) && !sleeper.wait(SOON));
            for index in [0, count - 1] {
                sleeper.remove(numbers[index]);
                while sleeper.wait(SOON) {}
                ring(&bells[index].1);
                assert!(!sleeper.wait(SOON), "heard after it was removed");
            }
            // The place of the first one is taken by another.
            let (ours, theirs) = bell();
            sleeper.add(ours).unwrap();
            while sleeper.wait(SOON) {}
            ring(&theirs);
            assert!(sleeper.wait(LONG));
        }
    }

    #[test]
    fn what_comes_while_it_falls_asleep_wakes_it() {
        const TURNS: u64 = 20_000;
        let sleeper = Arc::new(DoorbellSleeper::new(thread));
        let (ours, theirs) = bell();
        sleeper.add(ours).unwrap();
        let (news, heard) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (their_sleeper, their_news, their_heard) =
            (sleeper.clone(), news.clone(), heard.clone());
        let other = std::thread::spawn(move || {
            for turn in 1..=TURNS {
                their_news.store(turn, Ordering::SeqCst);
                if turn % 2 == 0 {
                    ring(&theirs)
                } else {
                    their_sleeper.nudge()
                }
                while turn % 5 == 0 && their_heard.load(Ordering::SeqCst) < turn {
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = 0;
        while seen < TURNS {
            assert!(sleeper.wait(LONG), "lost after {seen}");
            seen = news.load(Ordering::SeqCst);
            heard.store(seen, Ordering::SeqCst);
        }
        other.join().unwrap();
    }
}
