//! Slows a sender of unreliable messages when its receiver asks for it.
//!
//! All links of a UD queue pair to one address share one: a notification names no queue pair there,
//! and is heard once, not by each of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shortest and longest time that a sender pauses, in nanoseconds.
const PAUSE: std::ops::RangeInclusive<u64> = 100_000..=20_000_000;

/// A sender that pauses when it is asked to slow down: longer each time it is asked again at once,
/// shorter when it was left in peace.
#[derive(Debug, Default)]
pub struct Throttle {
    pause: AtomicU64,
    until: AtomicU64,
}

impl Throttle {
    /// The receiver asks.
    pub fn on_notification(&self, now: u64) {
        let (pause, until) =
            (self.pause.load(Ordering::Relaxed), self.until.load(Ordering::Relaxed));
        if now < until {
            return;
        }
        let peace = now - until;
        let pause = if peace > 4 * pause { pause / 2 } else { pause * 2 };
        let pause = pause.clamp(*PAUSE.start(), *PAUSE.end());
        self.pause.store(pause, Ordering::Relaxed);
        self.until.store(now + pause, Ordering::Relaxed);
    }

    /// When something may be sent again, if not now.
    pub fn due(&self, now: u64) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        (now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAUSE, Throttle};

    #[test]
    fn a_pause_grows_while_it_does_not_help_and_shrinks_when_it_does() {
        let throttle = Throttle::default();
        let mut now = 1_000_000_000;
        assert_eq!(throttle.due(now), None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            throttle.on_notification(now);
            let until = throttle.due(now).unwrap();
            pauses.push(until - now);
            throttle.on_notification(until - 1);
            assert_eq!(throttle.due(until - 1), Some(until), "asked during a pause");
            now = until;
        }
        assert!(pauses.is_sorted() && pauses[0] == *PAUSE.start());
        assert_eq!(pauses.last(), Some(PAUSE.end()));
        now += 1_000_000_000;
        throttle.on_notification(now);
        assert_eq!(throttle.due(now), Some(now + PAUSE.end() / 2));
    }
}
