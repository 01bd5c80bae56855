//! Sends a message again until it is answered, or its receiver is taken for gone.
//!
//! It is repeated sooner than its receiver's manager says that it may take to answer (12.9.8): a
//! message that was lost then costs a tenth of a second. One that was not is answered with a word
//! to that effect, if it is not known to be there already (MRA). How long all of it takes is what
//! kernels' managers take: sixteen times 4.6 s, but for a farewell.

use crate::mad::Mad;

const MILLISECOND: u64 = 1_000_000;
/// The first message is repeated after this time, and after twice the time each time after.
const FIRST: u64 = 100 * MILLISECOND;
/// It is never repeated less often.
const LAST: u64 = 4608 * MILLISECOND;
/// After so long nobody is there, in nanoseconds.
const OVER: u64 = 16 * LAST;
/// Nobody is there who could answer a farewell.
const OVER_OF_FAREWELL: u64 = 2 * LAST;
/// However often a peer asks for time, it does not get more.
const MOST: u64 = 600_000 * MILLISECOND;
/// Longest time that a peer can ask for at once: 4.096 us times two to this.
const SERVICE_TIMEOUT_MAX: u8 = 24;

/// A message under way.
#[derive(Clone, Debug)]
pub(crate) struct Retransmit {
    mad: Mad,
    begun: u64,
    pause: u64,
    due: u64,
    over: u64,
}

/// What is due.
#[allow(clippy::large_enum_variant)] // one at a time, on the stack
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetransmitDue {
    /// Nothing for now.
    Nothing,
    /// Send it again.
    Again(Mad),
    /// There is no answer.
    Over,
}

impl Retransmit {
    /// It is sent now.
    pub(crate) fn new(mad: Mad, now: u64) -> Retransmit {
        Retransmit::until(mad, now, now.saturating_add(OVER))
    }

    /// The same of a farewell (DREQ). Managers answer it without asking anybody, so who has not
    /// done so is gone; often his word was lost, and nobody is left there to say it again.
    pub(crate) fn farewell(mad: Mad, now: u64) -> Retransmit {
        Retransmit::until(mad, now, now.saturating_add(OVER_OF_FAREWELL))
    }

    fn until(mad: Mad, now: u64, over: u64) -> Retransmit {
        Retransmit { mad, begun: now, pause: FIRST, due: now.saturating_add(FIRST), over }
    }

    /// What is sent.
    pub(crate) fn mad(&self) -> &Mad {
        &self.mad
    }

    /// When something is due.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// The receiver has it, and asks for so much time (5 bits).
    pub(crate) fn wait(&mut self, service_timeout: u8, now: u64) {
        let until = now.saturating_add(4096 << service_timeout.min(SERVICE_TIMEOUT_MAX));
        if until > self.begun.saturating_add(MOST) {
            return;
        }
        self.pause = LAST;
        self.due = self.due.max(until);
        self.over = self.over.max(self.due.saturating_add(LAST));
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: u64) -> RetransmitDue {
        if now < self.due {
            return RetransmitDue::Nothing;
        }
        if now >= self.over {
            return RetransmitDue::Over;
        }
        self.pause = (self.pause * 2).min(LAST);
        self.due = now.saturating_add(self.pause).min(self.over);
        RetransmitDue::Again(self.mad.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Received};

    fn mad() -> Mad {
        let received = Received { communication: 1, remote: 2, private: [0; 224] };
        Mad { transaction: 1, modifier: 0, message: Message::Ready(received) }
    }

    fn times(repeat: &mut Retransmit) -> Vec<u64> {
        let mut times = Vec::new();
        loop {
            let due = repeat.due();
            assert_eq!(repeat.tick(due - 1), RetransmitDue::Nothing);
            match repeat.tick(due) {
                RetransmitDue::Again(again) => assert_eq!(again, mad()),
                RetransmitDue::Over => {
                    return times.into_iter().chain([due / MILLISECOND]).collect();
                }
                RetransmitDue::Nothing => panic!("nothing is due at {due}"),
            }
            times.push(due / MILLISECOND);
        }
    }

    #[test]
    fn soon_at_first_then_as_often_as_others_and_as_long() {
        let times = times(&mut Retransmit::new(mad(), 0));
        assert_eq!(times[..6], [100, 300, 700, 1500, 3100, 6300]);
        assert_eq!(times.last(), Some(&73_728));
        assert!(times.len() < 24);
    }

    #[test]
    fn a_farewell_is_soon_over() {
        let times = times(&mut Retransmit::farewell(mad(), 0));
        assert_eq!(times, [100, 300, 700, 1500, 3100, 6300, 9216]);
    }

    #[test]
    fn a_request_for_time_is_granted_but_not_for_ever() {
        let mut repeat = Retransmit::new(mad(), 0);
        repeat.wait(18, MILLISECOND);
        assert_eq!(repeat.due(), MILLISECOND + (4096 << 18));
        repeat.wait(255, MILLISECOND);
        assert_eq!(repeat.due(), MILLISECOND + (4096 << 24));
        let mut now = 0;
        for _ in 0..1000 {
            now = repeat.due();
            if repeat.tick(now) == RetransmitDue::Over {
                break;
            }
            repeat.wait(31, now);
        }
        assert!(now <= MOST + LAST, "it goes on for {now} ns");
    }
}
