//! The states of a queue pair: attributes, transitions, and what an error or a reset leaves.

use super::{Inner, Qp};
use crate::constants::{Wc, status, wc_opcode};
use crate::cq::Entry;
use crate::qp::attributes::{QpAttributes, QpMask, State};
use crate::queue::Receive;
use crate::requester::{Sources, Unresolved};
use crate::responder::Incoming;
use crate::shared::AsyncEvent;
use crate::work::PostError;
use std::sync::atomic::Ordering;

impl Qp {
    /// Changes attributes and state. What needs the daemon (a link) is the caller's business,
    /// before (to be refused) or after.
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
            return Err(PostError::Invalid);
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
                    (0..inner.links.len()).for_each(|index| inner.present(self, index));
                    inner.pump_all(self);
                }
                if to == State::Sqd {
                    inner.machine.wish_drained(mask.contains(QpMask::EN_SQD_ASYNC_NOTIFY));
                    inner.check_drained(self);
                }
            }
        }
        Ok(())
    }

    /// Gives up everything: no completion of this QP is left anywhere afterwards.
    pub fn destroy(&self) {
        {
            let mut inner = self.inner.lock();
            inner.pump_all(self);
            inner.reset(self);
        }
        self.send_cq.watch.forget(self.number);
        self.recv_cq.watch.forget(self.number);
        self.send_cq.use_by_one(false);
        self.recv_cq.use_by_one(false);
        if let Some(srq) = &self.srq {
            srq.use_by_one(false);
        }
    }
}

impl Inner {
    pub(crate) fn set_state(&mut self, qp: &Qp, state: State) {
        self.machine.go(state);
        self.choose_way(qp);
        self.meter.state(state);
        qp.state_hint.store(state as u32, Ordering::Release);
    }

    pub(crate) fn check_drained(&mut self, qp: &Qp) {
        let idle = self.machine.state() == State::Sqd && !self.sends.has_begun();
        if idle && self.machine.drained() {
            qp.event(AsyncEvent::SqDrained);
        }
    }

    /// To RESET: everything is forgotten, without completions.
    pub(super) fn reset(&mut self, qp: &Qp) {
        if let Some(srq) = &qp.srq {
            // A message was half received: its receive is gone, its place in the queue is not.
            for link in self.links.iter_mut() {
                if let Incoming::Send { .. } = std::mem::replace(&mut link.incoming, Incoming::Deaf)
                {
                    qp.shared.released(srq.slot).receives.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.drop_links(qp);
        self.sends.reset();
        self.waiting.end();
        self.receives.reset();
        self.unresolved = Unresolved::default();
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
        let mut reason = first;
        for entry in self.sends.take_all() {
            let why = reason.take().unwrap_or(status::WR_FLUSH_ERR);
            self.complete_order(qp, &entry.order, why);
        }
        self.waiting.end();
        for index in 0..self.links.len() {
            let incoming = std::mem::replace(&mut self.links[index].incoming, Incoming::Deaf);
            if let Incoming::Send { receive, .. } = incoming {
                self.complete_receive(qp, &receive, status::WR_FLUSH_ERR);
            }
            self.links[index].starved = None;
            self.links[index].endpoint.close();
            // Nobody takes it any more, and the application may do with its memory what it likes.
            self.links[index].sources = Sources::default();
        }
        self.grants.clear();
        if self.machine.take_lent() {
            qp.shared.host.qp_failed(qp.number);
        }
        self.flush_receives(qp);
        if qp.srq.is_some() {
            qp.event(AsyncEvent::QpLastWqeReached);
        }
    }

    pub(crate) fn flush_receives(&mut self, qp: &Qp) {
        while let Some(receive) = self.receives.take() {
            self.complete_receive(qp, &receive, status::WR_FLUSH_ERR);
        }
    }

    /// Completes a receive that failed.
    pub(crate) fn complete_receive(&mut self, qp: &Qp, receive: &Receive, status: u32) {
        let wc = Wc {
            wr_id: receive.wr_id,
            status,
            opcode: wc_opcode::RECV,
            qp_num: qp.number.0,
            ..Wc::default()
        };
        self.receives.complete(Entry { wc, release: qp.receive_release(), solicited: false });
        self.hand_over(qp);
    }
}
