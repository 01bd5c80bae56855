//! Keeps the time of links: it passes while their thread attends to them.
//!
//! A peer's answer is late only if this thread looked for it. On a busy machine the kernel takes a
//! packet thread's processor away for tens of milliseconds and more; counted against the peers,
//! that ends healthy connections, all of a thread at once. So time between two looks at the clock,
//! beyond the thread's own sleep, is not counted; and then the sockets are read before the timers
//! of any link.
//!
//! Limits of vNICs and delays of faults go by the clock.

/// Time between two looks that counts while the thread is busy, or late after a sleep, in
/// nanoseconds: longer than its iterations, shorter than any timer.
const LATE: u64 = 2_000_000;
/// Batches that are read from the sockets before the links' time goes on, if they do not end: what
/// lay there when the thread came back is far less.
const BATCHES_MAX: u32 = 64;

/// Now, by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of the monotonic clock.
    pub clock: u64,
    /// The links' time.
    pub links: u64,
}

/// How a thread attends.
pub struct LinkClock {
    /// When it looked at the clock last.
    looked: u64,
    /// Until when it sleeps if nothing happens, while it does.
    until: u64,
    /// How far the links' time is behind the clock.
    missed: u64,
    /// It was away, and may have answers unread.
    was_away: bool,
    /// Batches read since.
    batches: u32,
}

impl LinkClock {
    /// From now on.
    pub fn new(clock: u64) -> LinkClock {
        LinkClock { looked: clock, until: 0, missed: 0, was_away: false, batches: 0 }
    }

    /// The thread is going to sleep, until then if nothing happens. `None`: for ever.
    pub fn sleeps(&mut self, until: Option<u64>) {
        self.until = until.unwrap_or(u64::MAX);
    }

    /// The thread looks at the clock. Of several threads that share this, one may bring an older
    /// value: then no time has passed.
    pub fn look(&mut self, clock: u64) -> Now {
        let clock = clock.max(self.looked);
        let expected = self.looked.max(self.until).saturating_add(LATE);
        let missed = clock.saturating_sub(expected);
        self.missed += missed;
        self.was_away |= missed > 0;
        (self.looked, self.until) = (clock, 0);
        Now { clock, links: clock.saturating_sub(self.missed) }
    }

    /// The clock's value when it is `time` for links, if nothing is missed until then.
    pub fn clock_at(&self, time: u64) -> u64 {
        time.saturating_add(self.missed)
    }

    /// A batch was read from the sockets; there may be more.
    pub fn has_read(&mut self) {
        self.batches += u32::from(self.was_away);
    }

    /// Whether answers may lie unread in the sockets.
    pub fn is_behind(&self) -> bool {
        self.was_away && self.batches < BATCHES_MAX
    }

    /// The sockets are empty, or links' timers run all the same.
    pub fn is_back(&mut self) {
        (self.was_away, self.batches) = (false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn link_time_stops_while_the_thread_is_preempted() {
        let mut link_clock = LinkClock::new(1000 * MS);
        assert_eq!(link_clock.look(1002 * MS).links, 1002 * MS);
        // Kept from running for 198 ms.
        assert_eq!(link_clock.look(1200 * MS), Now { clock: 1200 * MS, links: 1004 * MS });
        assert!(link_clock.is_behind());
        assert_eq!(link_clock.clock_at(1010 * MS), 1206 * MS);
        // It sleeps as long as it wants to.
        link_clock.is_back();
        link_clock.sleeps(Some(1206 * MS));
        assert_eq!(link_clock.look(1206 * MS).links, 1010 * MS);
        link_clock.sleeps(None);
        assert_eq!(link_clock.look(5206 * MS).links, 5010 * MS);
        assert!(!link_clock.is_behind());
        // And half a second longer.
        link_clock.sleeps(Some(5300 * MS));
        assert_eq!(link_clock.look(5800 * MS).links, 5300 * MS + LATE - 196 * MS);
        assert!(link_clock.is_behind());
        // The end of a sleep says nothing of what comes after it.
        assert_eq!(link_clock.look(5900 * MS).links, 5300 * MS + 2 * LATE - 196 * MS);
    }

    /// Two threads, one of which was stopped for a minute after it had looked at the clock.
    #[test]
    fn an_older_look_misses_nothing_and_turns_nothing_back() {
        let mut link_clock = LinkClock::new(0);
        let mut before = link_clock.look(10 * MS).links;
        for clock in [70_000, 10, 70_000, 11, 70_001, 10, 70_002] {
            let now = link_clock.look(clock * MS);
            assert!(now.links >= before && now.clock >= clock * MS);
            before = now.links;
        }
        assert_eq!(before, 2 * LATE + 2 * MS, "a minute was missed, once");
    }

    #[test]
    fn a_thread_that_is_back_reads_first_but_not_for_ever() {
        let mut link_clock = LinkClock::new(0);
        for round in 0..200 {
            // A machine this busy takes the thread away in each of its turns.
            link_clock.look((round + 1) * 10 * MS);
            if !link_clock.is_behind() {
                link_clock.is_back();
                assert_eq!(round, u64::from(BATCHES_MAX));
                return;
            }
            link_clock.has_read();
        }
        panic!("a flood keeps links from their time");
    }
}
