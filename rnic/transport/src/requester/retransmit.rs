//! Sends requests again: timers, negative acknowledgements, and when to give up (9.7.8, 9.9.2.1).

use super::probe_after_timeout::ProbeWindow;
use super::{Requester, RequesterState};
use crate::work_request::Status;
use crate::{Config, Time};
use omniverb_wire::rnr_nanoseconds;

/// An answer is never waited for longer than this before it is asked for again.
const EARLY_MAX: Time = 200_000_000;
/// Time that a peer may ask for until it answers something: its word is all there is.
const PATIENCE_MAX: Time = 60_000_000_000;
/// Retries at most for what is missing before a packet that was refused. The peer may be in the
/// error state, and never answer: that is not waited for as long as if nobody were there.
const RETRIES_REFUSED: u8 = 2;
/// A receive that is only late is asked for again after this time at the soonest: the peer says by
/// itself when it is there.
const ASK_AGAIN: Time = 10_000_000;
/// "Without end" as a count of RNR retries (9.7.5.2.8).
const FOR_EVER: u8 = 7;

impl Requester {
    /// Whether an answer can be expected: one was asked for. What a responder need not answer
    /// (9.7.5.1.2 lets it, and us, choose) is not late, however long a rate limit keeps the packet
    /// back that will ask, or the layer above its payload: then nothing but that payload is waited
    /// for, whose owner is the owner of the request.
    fn expects(&self) -> bool {
        self.unacked < self.next && self.unacked < self.asked
    }

    /// Starts the timers that do not run yet, if they have something to wait for.
    pub(super) fn arm(&mut self, now: Time, config: &Config) {
        if !self.expects() {
            return;
        }
        self.silence.begin(now);
        if self.early.is_none() {
            // Where packets are known to get lost, what is sent again may be lost as well, and the
            // responder says nothing more: look sooner.
            let lossy = self.recovering.is_some() || self.probing.is_some_and(|p| p.found_loss());
            let sooner = if lossy { 4 } else { 1 };
            let floor = config.early_timeout / sooner;
            // A peer with a rate limit of its own answers late, and READ data come in drops.
            let overdue = self.round_trip.overdue(floor).max(2 * self.silence.lately());
            // It costs a packet, which may be lost like others: twice each before it is doubled.
            let time = overdue << (self.backoff / 2).min(10);
            // At least one more attempt before each retry is spent.
            let most = config.ack_timeout().map_or(EARLY_MAX, |timeout| timeout / 2);
            self.early = Some((now + time.min(most.min(EARLY_MAX))).max(self.patient_until));
        }
        if self.deadline.is_none() {
            let from = now.max(self.patient_until);
            self.deadline = config.patience().map(|patience| from + patience);
        }
    }

    /// The peer says that it is alive and that its answers may take so long
    /// ([`crate::Connection::poll_delay`]). As after an RNR NAK, retries begin anew (9.9.2.1.1 lets
    /// a requester wait longer than its timeout); and as for one, only so often. No time at all:
    /// the receive that was missing is there.
    pub(crate) fn delayed(&mut self, now: Time, config: &Config, time: Time) {
        if time == 0 {
            self.not_ready = None;
            return;
        }
        if self.standing == RequesterState::Failed || self.unacked == self.sent {
            return;
        }
        let most = *self.patient_since.get_or_insert(now) + PATIENCE_MAX;
        let until = now.saturating_add(time).min(most);
        if until <= now.max(self.patient_until) {
            return;
        }
        self.patient_until = until;
        (self.retries, self.retry_is_due) = (self.retries_anew(config), false);
        self.rearm(now, config);
    }

    /// Something is sent again that was waited for in vain: a retry is spent.
    pub(crate) fn has_retried(&self, config: &Config) -> bool {
        self.unacked != self.sent && self.retries < config.retry_count
    }

    /// Starts the timers afresh if they have something to wait for, else stops them.
    pub(super) fn rearm(&mut self, now: Time, config: &Config) {
        (self.early, self.deadline) = (None, None);
        self.arm(now, config);
    }

    /// The peer has answered something: how long to wait the next time begins anew, unless it was
    /// only late.
    pub(super) fn answered(&mut self, now: Time) {
        let usual = || self.round_trip.least().zip(self.round_trip.smoothed());
        if self.silence.end(now, usual) {
            self.backoff = 0;
        }
    }

    /// Sends everything that is not acknowledged again.
    pub(super) fn go_back(&mut self) {
        self.silence.expect_retransmission();
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
        self.probing = None;
        self.congestion.on_loss(now, self.round_trip.smoothed());
        self.retried += 1;
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

    /// The peer has no receive for the packet at `unacked`. Retries are not spent as long as those
    /// that are left would be over before it counts as more than late
    /// ([`Config::receiver_late`]).
    pub(super) fn receiver_not_ready(&mut self, now: Time, config: &Config, code: u8) {
        if self.not_ready.is_some() {
            return;
        }
        let mut timer = rnr_nanoseconds(code);
        if config.rnr_retry != FOR_EVER {
            let passed = now.saturating_sub(*self.unready_since.get_or_insert(now));
            if passed + u64::from(self.rnr_retries) * timer < config.receiver_late {
                timer = timer.max(ASK_AGAIN);
            } else if self.rnr_retries == 0 {
                self.fail(Status::RnrRetryExceeded);
                return;
            } else {
                self.rnr_retries -= 1;
            }
        }
        // The peer lives.
        self.retries = self.retries_anew(config);
        self.go_back();
        (self.recovering, self.probing) = (None, None);
        (self.early, self.deadline) = (None, None);
        self.not_ready = Some(now + timer);
    }

    /// How many retries there are after a sign of life.
    pub(super) fn retries_anew(&self, config: &Config) -> u8 {
        let most = if self.standing.refused().is_some() { RETRIES_REFUSED } else { u8::MAX };
        config.retry_count.min(most)
    }

    /// False: there was none left, and the connection failed.
    pub(super) fn spend_retry(&mut self) -> bool {
        if self.retries == 0 {
            // Who has refused something is there, and that is why it says nothing more.
            self.fail(self.standing.refused().map_or(Status::RetryExceeded, |(_, status)| status));
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
            if self.expects() {
                if !self.spend_retry() {
                    return;
                }
                self.overdue(now, config);
            } else {
                // Too late already, and what is to be sent again has not even left: a rate limit
                // keeps it back. That will be the retry.
                self.retry_is_due = self.unacked < self.sent;
            }
        }
        if passed(self.early) {
            self.early = None;
            if self.expects() {
                self.overdue(now, config);
            }
        }
    }

    /// An answer is overdue: the peer is asked for it anew.
    fn overdue(&mut self, now: Time, config: &Config) {
        // Without a timeout there is no other time to wait for.
        let is_last = self.standing.refused().is_some() && config.ack_timeout().is_none();
        if is_last && !self.spend_retry() {
            return;
        }
        self.backoff += 1;
        self.recovering = None;
        self.probing = Some(ProbeWindow::new(self.sent));
        self.congestion.on_timeout(now, self.round_trip.smoothed());
        self.retried += 1;
        self.go_back();
        self.early = None;
        self.arm(now, config);
    }
}
