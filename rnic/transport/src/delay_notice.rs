//! Sends delay notices: an end that has a rate limit tells its peer that answers will take their
//! time.
//!
//! A requester cannot tell a peer that may send only a packet each second from one that is gone:
//! its timer (9.9.2.1.1) lets it ask again, for all that is to come once more, and at last give up.
//! Another Omniverb understands a notice, and neither asks again nor spends retries until the time
//! is over ([`crate::DelayNotices::Agreed`]). To everybody else nothing is said.
//!
//! The same is said of an application that takes its time: who asks again for what it has not
//! answered is told that the request has arrived. And a notice of no time at all says that a
//! receive is there that was missing: the requester need not wait for its RNR timer (9.7.5.2.8).

use crate::Time;

/// A notice covers so many times the delay at hand: one is enough for several packets.
const AHEAD: Time = 4;
/// No notice covers more, so that a peer that dies is not waited for much longer.
const MOST: Time = 10_000_000_000;

/// What a peer was told.
#[derive(Debug, Default)]
pub(crate) struct DelayMeter {
    told_at: Time,
    until: Time,
    /// Duplicates that had come by then.
    duplicates: u64,
}

impl DelayMeter {
    /// For how long the peer is to be patient, if it is to be told now that nothing can leave for
    /// `wait`. Duplicates say that it does not know; that is believed once in half of the time that
    /// was told of, so that a peer cannot have us spend all we may send on notices.
    pub(crate) fn tell(&mut self, now: Time, wait: Time, duplicates: u64) -> Option<Time> {
        let knows = self.until >= now.saturating_add(wait.min(MOST));
        let half = self.told_at + (self.until - self.told_at) / 2;
        if knows && (self.duplicates == duplicates || now < half) {
            return None;
        }
        let patience = wait.saturating_mul(AHEAD).min(MOST);
        *self = DelayMeter { told_at: now, until: now + patience, duplicates };
        Some(patience)
    }
}

#[cfg(test)]
mod tests {
    use super::{DelayMeter, MOST};

    #[test]
    fn delay_notices_are_as_frequent_as_needed() {
        let mut delays = DelayMeter::default();
        assert_eq!(delays.tell(100, 50, 0), Some(200));
        assert_eq!(delays.tell(200, 100, 0), None, "it knows");
        assert_eq!(delays.tell(150, 100, 1), None, "it asked before it knew");
        assert_eq!(delays.tell(200, 100, 1), Some(400), "it does not know");
        assert_eq!(delays.tell(550, 100, 1), Some(400), "not long enough");
        assert_eq!(delays.tell(600, 1 << 60, 1), Some(MOST));
    }
}
