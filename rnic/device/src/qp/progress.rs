//! Moves a queue pair on: takes in what arrived, sends what waits, delivers completions to its CQs.

use super::poll_outcome::WaitOutcome;
use super::qp_attributes::State;
use super::responder::Receives;
use super::state_machine::StateMachine;
use super::xrc_relay_table::RELAYED;
use super::{Inner, Qp};
use crate::cq::SlotRelease;
use crate::platform::AsyncEvent;
use omniverb_link::Broken;
use std::sync::atomic::Ordering;

impl StateMachine {
    /// A message has come. The first one while in RTR is told to the application (specification
    /// 9.7.2.1: communication established).
    #[inline(always)]
    pub(super) fn note_traffic(&mut self, qp: &Qp) {
        if self.establish() && self.state() == State::Rtr && qp.service.is_reliable() {
            qp.event(AsyncEvent::CommunicationEstablished);
        }
    }
}

impl Inner {
    /// Takes in and sends out on all links; a peer that breaks the rules breaks the QP.
    pub(crate) fn pump_all(&mut self, qp: &Qp) {
        if qp.lost_completion.swap(false, Ordering::AcqRel) && self.machine.state() != State::Reset
        {
            self.enter_error(qp, None);
        }
        for index in 0..self.links.len() {
            self.pump_link(qp, index);
        }
        self.advance(qp);
    }

    /// Takes in what arrived on one link.
    pub(crate) fn pump_link(&mut self, qp: &Qp, index: usize) {
        self.serve_link(qp, index);
        self.finish_sends(qp);
        qp.hand_over(&mut self.receives);
    }

    /// As [`Self::pump_link`], but leaves the completions of receives where they are.
    pub(crate) fn serve_link(&mut self, qp: &Qp, index: usize) {
        if !self.machine.receives_messages() || index >= self.links.len() {
            let relayed = index == RELAYED && self.extended.relays.are_some();
            if relayed && self.machine.receives_messages() {
                // News from a process that requests were handed over to.
                self.serve_link(qp, 0);
            }
            return;
        }
        if let Err(Broken) = self.serve(qp, index) {
            qp.hand_over(&mut self.receives);
            self.broken(qp, index);
        }
    }

    /// Receives were posted while a message waited for one.
    #[cold]
    pub(crate) fn poll_starved_links(&mut self, qp: &Qp) {
        for index in 0..self.links.len() {
            if self.links[index].is_starved() {
                self.pump_link(qp, index);
            }
        }
    }
}

impl Qp {
    /// Puts the receives that completed into their CQ.
    #[inline(always)]
    pub(super) fn hand_over(&self, receives: &mut Receives) {
        if !receives.hand_over(|list| self.recv_cq.push_all(list)) {
            self.cq_overflowed();
        }
    }

    /// The application has these receives' completions, which were in no CQ. Those of a QP are
    /// counted under its lock, which is held; others may count an SRQ's at the same time.
    #[inline(always)]
    pub(super) fn release_receives(&self, receives: &mut Receives, count: u64) {
        match &self.srq {
            None => receives.release(count),
            Some(srq) => {
                let released = &self.shared.released(srq.slot()).receives;
                released.fetch_add(count, Ordering::Release);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn receive_release(&self) -> SlotRelease {
        SlotRelease::Receive { slot: self.srq.as_ref().map_or(self.slot, |srq| srq.slot()) }
    }
}

impl Qp {
    /// Has the progress thread look at this QP once more, on its next turn.
    #[cold]
    pub(crate) fn come_back(&self) {
        self.shared.look_again(&self.me);
        self.shared.host.attend();
    }

    /// Has it do that a moment later: what the peer did until now may not be visible yet.
    #[cold]
    pub(crate) fn come_back_later(&self) {
        self.shared.look_later(&self.me);
        self.shared.host.attend();
    }

    /// Does what can be done now, or has the next turn do it if another thread serves it.
    pub(crate) fn try_pump(&self) {
        match self.try_inner() {
            Some(mut inner) => inner.pump_all(self),
            None => self.shared.look_again(&self.me),
        }
    }

    /// Drives the timers of what waits.
    pub(crate) fn serve_wait(&self) -> WaitOutcome {
        let Some(mut inner) = self.try_inner() else {
            return WaitOutcome::On { moved: true, deadline: None };
        };
        let inner = &mut *inner;
        let before = inner.sends.mark();
        inner.pump_all(self);
        if inner.sends.is_empty() && !inner.links.is_starved(self.service) {
            inner.waiting.unlist();
            return WaitOutcome::Over;
        }
        let deadline = inner.waiting.deadline(&inner.links, self.service);
        WaitOutcome::On { moved: inner.sends.mark() != before, deadline }
    }
}
