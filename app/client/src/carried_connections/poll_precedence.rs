//! Decides whether the network thread reads the sockets, or leaves them to polls.
//!
//! A thread that wakes for each packet competes with a program that polls: both want the same
//! packet, the same lock and, on small machines, the same processor. So the thread leaves the
//! sockets alone while polls follow each other, looks again after a pause, and takes over once
//! none came during one. A pause is never longer than polls have gone on before it.

use std::time::Duration;

/// A poll this long ago, in nanoseconds, may be followed by another one at once.
const RECENT: u64 = 50_000;
/// The first pause, and the longest one.
pub(super) const PAUSE_FIRST: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// What the thread remembers of polls.
#[derive(Default)]
pub(super) struct PollPrecedence {
    /// How many there were when it looked last.
    polls: u64,
    pause: Option<Duration>,
}

impl PollPrecedence {
    /// So many polls there were, the last one `since` nanoseconds ago. For how long the thread is
    /// to leave the sockets to them; `None`: it is to serve.
    pub(super) fn pause(&mut self, polls: u64, since: u64) -> Option<Duration> {
        let more = polls != std::mem::replace(&mut self.polls, polls);
        let before = self.pause.take();
        if more && since < RECENT {
            let longer = before.map_or(PAUSE_FIRST, |pause| (pause * 2).min(PAUSE_MAX));
            self.pause = Some(longer);
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_polls_go_on_and_end_with_them() {
        let mut precedence = PollPrecedence::default();
        assert_eq!(precedence.pause(0, u64::MAX), None);
        let pauses = (1..9).map(|polls| precedence.pause(polls, 300).unwrap().as_micros());
        assert_eq!(pauses.collect::<Vec<_>>(), [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(precedence.pause(8, 1_000_000), None);
        assert_eq!(precedence.pause(9, RECENT), None, "a single one, a while ago");
        assert_eq!(precedence.pause(10, 0), Some(PAUSE_FIRST));
        assert_eq!(precedence.pause(10, 20_000), None, "none since");
    }
}
