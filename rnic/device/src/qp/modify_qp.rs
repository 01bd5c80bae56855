//! Modifies, resets and destroys queue pairs: checks attributes, makes transitions, and cleans up
//! after errors.

use super::requester::{SendQueue, UnresolvedDatagrams};
use super::responder::InboundState;
use super::state_machine::{StateMachine, WhenDrained};
use super::{Inner, Qp};
use crate::platform::AsyncEvent;
use crate::qp::qp_attributes::{QpAttributes, QpMask, State};
use crate::send_work_request::{PostError, PostFault};
use crate::verbs_constants::status;
use omniverb_terms::Service;
use std::sync::atomic::Ordering;

impl Qp {
    /// Changes those attributes that `mask` names, and the state. `current`: where the application
    /// believes the QP to be, if it says so. What needs the daemon (a link) is the caller's
    /// business, before (to be refused) or after.
    ///
    /// # Errors
    /// `Invalid` if the transition or its mask is not allowed.
    pub fn modify(
        &self,
        mask: QpMask,
        to: State,
        given: &QpAttributes,
        current: Option<State>,
    ) -> Result<(), PostError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if !inner.machine.may_go(self.service, to, mask, current) {
            return Err(PostError::Invalid(PostFault::State));
        }
        inner.machine.set_attributes(mask, given);
        match to {
            State::Reset => inner.reset(self),
            State::Err => {
                inner.pump_all(self);
                inner.enter_error(self, None);
            }
            _ => {
                inner.set_state(self, to);
                if to != State::Init {
                    let machine = &inner.machine;
                    inner.links.iter_mut().for_each(|link| link.present(self.service, machine));
                    inner.pump_all(self);
                }
                if to == State::Sqd {
                    inner.machine.begin_draining(
                        match mask.contains(QpMask::EN_SQD_ASYNC_NOTIFY) {
                            true => WhenDrained::Notify,
                            false => WhenDrained::Silent,
                        },
                    );
                    inner.machine.check_drained(self, &inner.sends);
                }
            }
        }
        Ok(())
    }

    /// Gives up everything: no completion of this QP is left anywhere afterwards, and memory that
    /// was lent is back, even if a thread still looks at this queue pair.
    pub fn destroy(&self) {
        let receives = {
            let mut inner = self.inner.lock();
            inner.pump_all(self);
            inner.reset(self);
            inner.receives.end()
        };
        // A lender is the program's code: it is not called under a lock.
        drop(receives);
        self.detach_counters();
        if let Some(domain) = self.domain() {
            domain.remove_qp(self);
        }
        self.send_cq.unwatch(self.number);
        self.recv_cq.unwatch(self.number);
        self.send_cq.end_use();
        self.recv_cq.end_use();
        if let Some(srq) = &self.srq {
            srq.end_use();
        }
    }
}

impl StateMachine {
    /// Tells the application that SQD is drained, if it is and is to be told.
    #[inline(always)]
    pub(super) fn check_drained(&mut self, qp: &Qp, sends: &SendQueue) {
        let idle = self.state() == State::Sqd && !sends.has_begun();
        if idle && self.take_drained_event() {
            qp.event(AsyncEvent::SqDrained);
        }
    }
}

impl Inner {
    pub(crate) fn set_state(&mut self, qp: &Qp, state: State) {
        self.machine.go(state);
        self.path.choose(&self.machine, qp.service, &self.counting);
        self.meter.state(state);
        qp.state_hint.store(state as u32, Ordering::Release);
    }

    /// To RESET: everything is forgotten, without completions.
    pub(super) fn reset(&mut self, qp: &Qp) {
        if let Some(srq) = &qp.srq {
            // A message was half received: its receive is gone, its place in the queue is not.
            for link in self.links.iter_mut() {
                if let InboundState::Send { .. } = link.deafen() {
                    qp.shared.released(srq.slot()).receives.fetch_add(1, Ordering::Release);
                }
            }
        }
        if qp.service == Service::XrcRecv {
            self.links.iter_mut().for_each(|link| drop(link.deafen()));
            self.extended.leave_target(qp);
        }
        self.drop_links(qp);
        if std::mem::take(&mut self.has_bound) {
            qp.shared.regions.end_windows_of(qp.number);
        }
        self.sends.reset();
        self.counting.forget();
        self.waiting.end_search();
        self.receives.reset();
        self.unresolved = UnresolvedDatagrams::default();
        qp.send_cq.purge(qp.number);
        qp.recv_cq.purge(qp.number);
        let released = qp.shared.released(qp.slot);
        released.sends.store(0, Ordering::Release);
        released.receives.store(0, Ordering::Release);
        self.machine.reset();
        self.set_state(qp, State::Reset);
    }

    /// To ERR: the oldest send completes with `first` (if given), all others and the receives are
    /// flushed (specification 10.3.1 and 11.6.2).
    pub(crate) fn enter_error(&mut self, qp: &Qp, first: Option<u32>) {
        if self.machine.state() == State::Err {
            return;
        }
        self.set_state(qp, State::Err);
        if let Some(why) = first.filter(|why| *why != status::WR_FLUSH_ERR) {
            self.meter.failed(why);
            qp.shared.host.request_failed(qp.number, why);
        }
        let mut reason = first;
        for entry in self.sends.take_all() {
            let why = reason.take().unwrap_or(status::WR_FLUSH_ERR);
            entry.order.complete((&mut self.counting, &mut self.meter), qp, why);
        }
        self.waiting.end();
        for index in 0..self.links.len() {
            if let InboundState::Send { receive, .. } = self.links[index].deafen() {
                self.deliveries().fail(qp, &receive, status::WR_FLUSH_ERR);
            }
            self.links[index].end_starving();
            self.links[index].endpoint.close();
            // No peer takes it any more, and the application may do with its memory what it likes.
            self.links[index].forget_sources();
        }
        self.extended.end_relays(qp);
        self.grants.clear();
        if self.machine.take_lent() {
            qp.shared.host.qp_failed(qp.number);
        }
        self.deliveries().flush(qp);
        if qp.srq.is_some() {
            qp.event(AsyncEvent::QpLastWqeReached);
        }
    }
}
