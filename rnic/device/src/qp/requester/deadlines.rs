//! Times requests that wait for a receive, for a peer or for room: they fail after too long.

use super::request_state::{CompletionCondition, RequestHeader, TimeoutOutcome, WaitReason};
use super::wait_reason::{RequestWait, WaitState};
use super::{SendQueue, UnresolvedDatagrams};
use crate::limits::{ANSWER_WAIT, LINK_WAIT, RECEIVER_AWAY, RECEIVER_LATE, UNRELIABLE_WAIT};
use crate::link_peer::FarEnd;
use crate::qp::link_table::Links;
use crate::qp::qp_attributes::QpAttributes;
use crate::qp::statistics::Meter;
use crate::qp::{Inner, Qp};
use crate::verbs_constants::status;
use omniverb_link::Broken;
use omniverb_terms::Service;

/// How often a datagram may begin to wait for room anew, as long as no other waits behind it.
const DATAGRAM_WAITS: u8 = (RECEIVER_AWAY / UNRELIABLE_WAIT - 1) as u8;

/// How long a request waits for a receive before the first of its RNR retries. Each of the others
/// takes a timer, and without any left it fails. The peer is here, so its first "not ready" may as
/// well have been slow to come: a peer that only lost its processor is to lose no connection
/// (0034).
fn first_rnr_wait(timer: u64, retries: u8) -> u64 {
    let first = if retries == 0 { 0 } else { timer };
    let others = u64::from(retries.saturating_sub(1)) * timer;
    first.max(RECEIVER_LATE.saturating_sub(others))
}

/// What the wait of the oldest request depends on.
pub(super) struct OldestWait<'q> {
    sends: &'q SendQueue,
    links: &'q mut Links,
    waiting: &'q mut WaitState,
    unresolved: &'q mut UnresolvedDatagrams,
    meter: &'q mut Meter,
    attributes: &'q QpAttributes,
}

impl OldestWait<'_> {
    /// The oldest request waits. `Some`: it has waited too long.
    #[cold]
    pub(super) fn note(&mut self, qp: &Qp, why: WaitReason) -> Option<TimeoutOutcome> {
        let order = self.sends.oldest()?.order;
        let now = qp.shared.host.now();
        // What is longer than the ring, and begins without a receive, lacks that first.
        let why = match why {
            WaitReason::Room if qp.service.is_reliable() && self.links.peer_lacks_receive() => {
                WaitReason::Receive
            }
            other => other,
        };
        match self.waiting.now() {
            Some(wait) if wait.is_of(&order, why) => match wait.deadline {
                Some(deadline) if now >= deadline => self.expire(qp, &order, wait, now),
                _ => None,
            },
            _ => self.begin(qp, why, &order, now),
        }
    }

    fn begin(
        &mut self,
        qp: &Qp,
        why: WaitReason,
        order: &RequestHeader,
        now: u64,
    ) -> Option<TimeoutOutcome> {
        let (position, done) = (order.position, order.done);
        let reliable = qp.service.is_reliable();
        let retries = match qp.service {
            Service::Ud => DATAGRAM_WAITS,
            _ => self.attributes.rnr_retry & 7,
        };
        let deadline = match why {
            WaitReason::Receive => {
                let link = self.links.first();
                self.meter.count_missing_peer_receive(
                    link.map_or(FarEnd::Process, |link| link.peer.far_end),
                );
                let timer = link.map(|link| link.endpoint.peer_rnr_timer());
                timer.map(|timer| now + first_rnr_wait(timer, retries))
            }
            WaitReason::Peer if reliable => self.silence_deadline(now),
            WaitReason::Room
                if reliable || self.links.lead_to_engine(order.to.map(|to| to.destination)) =>
            {
                None
            }
            WaitReason::Order => None,
            // The peer is still being looked for. A queue pair that has waited long enough for it
            // does not begin to anew with each message.
            WaitReason::Peer if self.links.is_empty() => {
                Some((self.waiting.search(now) + LINK_WAIT).max(now + UNRELIABLE_WAIT))
            }
            WaitReason::Room => Some(now + self.unreliable_wait(qp, RECEIVER_AWAY)),
            // Both ends learn of their link through the daemon: it waits as one of RC does.
            WaitReason::Peer => Some(now + self.unreliable_wait(qp, LINK_WAIT)),
            WaitReason::Link => Some(now + ANSWER_WAIT),
        };
        self.waiting.begin(RequestWait { why, position, done, deadline, retries });
        if deadline.is_some() {
            // The progress thread may sleep, for longer than that or without a limit: it looks
            // after us since another wait, which has ended in between.
            qp.shared.host.attend();
        }
        None
    }

    /// How long a UC or UD message waits for room, or for a peer that has not opened the link.
    /// Behind a datagram those to other destinations may wait: it is looked at again. UC has one
    /// peer, here or in the engine, which may be kept from running: it is waited for longer,
    /// `away`, but with one message only until it takes something.
    fn unreliable_wait(&mut self, qp: &Qp, away: u64) -> u64 {
        let Some(link) = self.links.first_mut().filter(|_| qp.service == Service::Uc) else {
            return UNRELIABLE_WAIT;
        };
        let consumed = link.endpoint.requests_consumed().ok();
        let is_gone = link.endpoint.peer_has_closed();
        if is_gone || consumed.is_none() || self.waiting.gave_up_at() == consumed {
            return UNRELIABLE_WAIT;
        }
        away
    }

    /// A peer that closed, or has died, is silent for as long as the retries last, unless the
    /// daemon tells of its death before. One that was not there yet may be on its way: both ends
    /// learn of their link through the daemon, after they are RTR. The specification (9.7.6.1.3)
    /// allows four times the timeout.
    fn silence_deadline(&self, now: u64) -> Option<u64> {
        let silence = self.attributes.silence_max()?;
        Some(match self.links.first() {
            Some(link) if link.endpoint.peer_has_closed() || link.endpoint.peer_has_died() => {
                now + silence
            }
            _ => now + silence.max(LINK_WAIT),
        })
    }

    /// The deadline passed.
    fn expire(
        &mut self,
        qp: &Qp,
        order: &RequestHeader,
        wait: RequestWait,
        now: u64,
    ) -> Option<TimeoutOutcome> {
        match wait.why {
            WaitReason::Receive => {
                // Seven means for ever (specification 9.7.5.2.8).
                let retries = if wait.retries == 7 { 7 } else { wait.retries.saturating_sub(1) };
                if retries == 0 {
                    return Some(TimeoutOutcome::Fail(status::RNR_RETRY_EXC_ERR));
                }
                let timer = self.links.first().map(|link| link.endpoint.peer_rnr_timer());
                let deadline = timer.map(|timer| now + timer);
                self.waiting.begin(RequestWait { deadline, retries, ..wait });
                None
            }
            _ if qp.service.is_reliable() => Some(TimeoutOutcome::Fail(status::RETRY_EXC_ERR)),
            // Its receiver may be kept from running, and it holds up no other message.
            WaitReason::Room
                if qp.service == Service::Ud
                    && wait.retries > 0
                    && !self.sends.holds_up_others() =>
            {
                let deadline = Some(now + UNRELIABLE_WAIT);
                self.waiting.begin(RequestWait { deadline, retries: wait.retries - 1, ..wait });
                None
            }
            _ => {
                let destination = order.to.map(|to| to.destination);
                let index = destination.and_then(|to| self.links.to(&to));
                if let Some(link) = index.and_then(|index| self.links.get_mut(index)) {
                    link.lose_for_room();
                }
                if qp.service == Service::Uc
                    && let Some(link) = self.links.first_mut()
                {
                    self.waiting.give_up(link.endpoint.requests_consumed().ok());
                }
                // There was no answer; the next datagram asks again.
                if let Some(destination) = destination.filter(|_| wait.why == WaitReason::Link) {
                    self.unresolved.lose(&destination);
                }
                Some(TimeoutOutcome::Drop)
            }
        }
    }
}

impl Inner {
    pub(super) fn oldest_wait(&mut self) -> OldestWait<'_> {
        OldestWait {
            sends: &self.sends,
            links: &mut self.links,
            waiting: &mut self.waiting,
            unresolved: &mut self.unresolved,
            meter: &mut self.meter,
            attributes: self.machine.attributes(),
        }
    }

    /// Looks after the oldest request if it is on its way: does the peer still take it?
    pub(super) fn check_flight(&mut self, qp: &Qp) -> Result<(), (usize, Broken)> {
        let Some(oldest) = self.sends.oldest_started() else {
            if self.sends.is_empty() {
                self.waiting.end();
            }
            return Ok(());
        };
        let unconsumed = matches!(oldest.finish, CompletionCondition::Consumed(..));
        let Some(link) = self.links.first_mut() else { return Ok(()) };
        let why = if !link.takes_requests(qp.service) {
            WaitReason::Peer
        } else if unconsumed && link.endpoint.peer_lacks_receive().map_err(|broken| (0, broken))? {
            WaitReason::Receive
        } else {
            self.waiting.end();
            return Ok(());
        };
        match self.oldest_wait().note(qp, why) {
            Some(TimeoutOutcome::Fail(why)) => self.enter_error(qp, Some(why)),
            Some(TimeoutOutcome::Drop) => {
                self.sends.settle_oldest();
                self.reap(qp)?;
            }
            None => {}
        }
        Ok(())
    }

    /// After every change of the send queue: tells the peer whether we wait for it, and the
    /// progress thread whether to look after us. True: the peer has not told of what it did just
    /// before, which may be what we wait for.
    #[inline(always)]
    pub(crate) fn settle(&mut self, qp: &Qp) -> bool {
        let unfinished = !self.sends.is_empty();
        let mut untold = false;
        if qp.service != Service::Ud
            && let Some(link) = self.links.first_mut()
        {
            let answering = link.is_answering();
            untold = link.endpoint.set_blocked(unfinished || answering);
        }
        if !self.waiting.is_listed() && (unfinished || self.links.is_starved(qp.service)) {
            join_waiting_list(&mut self.waiting, &mut self.links, qp);
        }
        untold && unfinished
    }
}

impl WaitState {
    /// When the progress thread must look again, if nothing else happens.
    pub(crate) fn deadline(&self, links: &Links, service: Service) -> Option<u64> {
        let request = self.now().and_then(|wait| wait.deadline);
        [request, links.starves_until(service)].into_iter().flatten().min()
    }
}

#[inline(never)]
fn join_waiting_list(waiting: &mut WaitState, links: &mut Links, qp: &Qp) {
    waiting.list();
    links.be_watched(qp);
    qp.shared.look_after(&qp.me);
    qp.shared.host.attend();
}
