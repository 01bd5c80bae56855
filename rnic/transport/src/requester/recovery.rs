//! Sending again: timers, negative acknowledgements, and when to give up (9.7.8, 9.9.2.1).

use super::Requester;
use crate::work::Status;
use crate::{Config, Time};
use omniverb_wire::rnr_nanoseconds;

/// An answer is never waited for longer than this before it is asked for again.
const EARLY_MAX: Time = 200_000_000;
/// "Without end" as a count of RNR retries (9.7.5.2.8).
const FOR_EVER: u8 = 7;

impl Requester {
    /// Whether something is under way.
    fn waiting(&self) -> bool {
        self.unacked < self.next
    }

    /// Starts the timers that do not run yet.
    pub(super) fn arm(&mut self, now: Time, config: &Config) {
        if self.early.is_none() {
            // Where packets are known to get lost, what is sent again may be lost as well, and the
            // responder says nothing more: look sooner.
            let sooner = if self.recovering.is_some() { 4 } else { 1 };
            let floor = config.early_timeout / sooner;
            let time = self.round_trip.overdue(floor) << self.backoff.min(10);
            // At least one more attempt before each retry is spent.
            let most = config.ack_timeout().map_or(EARLY_MAX, |timeout| timeout / 2);
            self.early = Some(now + time.min(most.min(EARLY_MAX)));
        }
        if self.deadline.is_none() {
            self.deadline = config.ack_timeout().map(|timeout| now + timeout);
        }
    }

    /// Starts the timers afresh if anything is under way, else stops them.
    pub(super) fn rearm(&mut self, now: Time, config: &Config) {
        (self.early, self.deadline) = (None, None);
        if self.waiting() {
            self.arm(now, config);
        }
    }

    /// Sends everything that is not acknowledged again.
    fn go_back(&mut self) {
        self.next = self.unacked;
        self.asked = self.unacked;
        self.samples.clear();
        self.starved = false;
    }

    /// A sign of loss: the oldest unacknowledged packet, or its answer, is missing.
    pub(super) fn lost(&mut self, now: Time) {
        if self.not_ready.is_some() || self.recovering == Some(self.unacked) {
            return;
        }
        self.recovering = Some(self.unacked);
        self.congestion.on_loss(now, self.round_trip.smoothed());
        self.go_back();
        self.early = None;
    }

    /// The peer expects `unacked` and got something later (9.7.5.2.8). It spends a retry.
    pub(super) fn sequence_error(&mut self, now: Time, config: &Config) {
        // While an RNR timer runs this says nothing new: what followed the packet that was not
        // accepted is out of order by nature.
        if self.not_ready.is_some() || self.recovering == Some(self.unacked) {
            return;
        }
        if self.spend_retry() {
            self.lost(now);
            self.rearm(now, config);
        }
    }

    /// The peer has no receive for the packet at `unacked`.
    pub(super) fn receiver_not_ready(&mut self, now: Time, config: &Config, code: u8) {
        if self.not_ready.is_some() {
            return;
        }
        if config.rnr_retry != FOR_EVER {
            if self.rnr_retries == 0 {
                self.fail(Status::RnrRetryExceeded);
                return;
            }
            self.rnr_retries -= 1;
        }
        // The peer lives.
        self.retries = config.retry_count;
        self.go_back();
        self.recovering = None;
        (self.early, self.deadline) = (None, None);
        self.not_ready = Some(now + rnr_nanoseconds(code));
    }

    /// False: there was none left, and the connection failed.
    fn spend_retry(&mut self) -> bool {
        if self.retries == 0 {
            self.fail(Status::RetryExceeded);
            return false;
        }
        self.retries -= 1;
        true
    }

    /// The layer above has payload, or room, again.
    pub(crate) fn resume(&mut self, now: Time, config: &Config) {
        self.starved = false;
        if std::mem::take(&mut self.crowded) {
            self.recovering = None;
            self.go_back();
            self.rearm(now, config);
        }
    }

    /// The next time to look at the timers.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let pace = self.paced.then(|| self.congestion.due());
        [self.early, self.deadline, self.not_ready, pace].into_iter().flatten().min()
    }

    /// Looks at the timers.
    pub(crate) fn handle_timeout(&mut self, now: Time, config: &Config) {
        let passed = |timer: Option<Time>| timer.is_some_and(|time| time <= now);
        if self.paced && self.congestion.due() <= now {
            self.paced = false;
        }
        if passed(self.not_ready) {
            self.not_ready = None;
        }
        if passed(self.deadline) {
            self.deadline = None;
            if self.waiting() {
                if !self.spend_retry() {
                    return;
                }
                self.overdue(now, config);
            }
        }
        if passed(self.early) {
            self.early = None;
            if self.waiting() {
                self.overdue(now, config);
            }
        }
    }

    fn overdue(&mut self, now: Time, config: &Config) {
        self.backoff += 1;
        self.recovering = None;
        self.congestion.on_timeout(now, self.round_trip.smoothed());
        self.go_back();
        self.early = None;
        self.arm(now, config);
    }
}
