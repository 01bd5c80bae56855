//! Measures how long the peer answers nothing, to know how long to wait the next time.

use crate::Time;

/// What was sent a second time since the peer answered last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RetransmitState {
    #[default]
    No,
    /// Something is to be. Which of the two is answered next, nobody knows then.
    WillLeave,
    /// The first of it left then.
    LeftAt(Time),
}

/// The silence that lasts, and those before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SilenceTimer {
    /// Since then an answer is expected and none has come.
    since: Option<Time>,
    again: RetransmitState,
    lately: Time,
}

impl SilenceTimer {
    /// An answer is expected from now on, if it is not already.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// What the peer may have is to be sent again.
    pub(super) fn expect_retransmission(&mut self) {
        self.again = RetransmitState::WillLeave;
    }

    /// A packet leaves that was sent before.
    pub(super) fn note_retransmission(&mut self, now: Time) {
        if self.again == RetransmitState::WillLeave {
            self.again = RetransmitState::LeftAt(now);
        }
    }

    /// The peer has answered something. `usual`: how long that takes at least, and as a rule.
    /// False: it was only late, and answered what it was sent first. Then the time to wait stays as
    /// long as it is, until an answer comes without our asking twice.
    pub(super) fn end(&mut self, now: Time, usual: impl FnOnce() -> Option<(Time, Time)>) -> bool {
        let since = self.since.take();
        let passed = match std::mem::take(&mut self.again) {
            RetransmitState::No => {
                let silence = since.map_or(0, |since| now.saturating_sub(since));
                self.lately = silence.max(self.lately - self.lately / 8);
                return true;
            }
            RetransmitState::WillLeave => 0,
            RetransmitState::LeftAt(at) => now.saturating_sub(at),
        };
        // By its time: what was sent again cannot be answered yet, or would have been long ago.
        usual().is_none_or(|(least, usual)| passed >= least && passed <= 4 * usual)
    }

    /// How long the peer was silent lately before it answered.
    pub(super) fn lately(&self) -> Time {
        self.lately
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Option<(Time, Time)> = Some((10, 20));

    #[test]
    fn a_long_silence_is_remembered_for_a_while() {
        let mut silence = SilenceTimer::default();
        silence.begin(100);
        silence.begin(150);
        assert!(silence.end(180, || USUAL));
        assert_eq!(silence.lately(), 80);
        silence.begin(200);
        assert!(silence.end(201, || USUAL));
        assert_eq!(silence.lately(), 70);
    }

    #[test]
    fn what_is_answered_is_known_by_its_time() {
        let answered = |left: Option<Time>, at| {
            let mut silence = SilenceTimer::default();
            silence.begin(0);
            silence.expect_retransmission();
            left.into_iter()
                .chain(left.map(|left| left + 5))
                .for_each(|at| silence.note_retransmission(at));
            (silence.end(at, || USUAL), silence.lately())
        };
        assert_eq!(answered(None, 100), (false, 0), "nothing had left again");
        assert_eq!(answered(Some(95), 100), (false, 0), "sooner than an answer can come");
        assert_eq!(answered(Some(80), 100), (true, 0));
        assert_eq!(answered(Some(10), 100), (false, 0), "much later");
    }
}
