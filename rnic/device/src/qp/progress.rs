//! How a queue pair moves on: what arrived is taken in, what waits is sent, completions go to their
//! CQs.

use super::poll_outcome::Served;
use super::qp_attributes::State;
use super::xrc_relay_table::RELAYED;
use super::{Inner, Qp};
use crate::cq::{Entry, Release, Solicits};
use crate::platform::AsyncEvent;
use crate::verbs_constants::Wc;
use omniverb_link::Broken;
use omniverb_terms::Service;
use std::sync::atomic::Ordering;

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
        self.hand_over(qp);
    }

    /// As [`Self::pump_link`], but leaves the completions of receives where they are.
    pub(crate) fn serve_link(&mut self, qp: &Qp, index: usize) {
        if !self.machine.receives_messages() || index >= self.links.len() {
            if index == RELAYED && self.machine.receives_messages() {
                self.serve_relays(qp);
            }
            return;
        }
        if let Err(Broken) = self.serve(qp, index) {
            self.hand_over(qp);
            self.broken(qp, index);
        }
    }

    /// First traffic while in RTR (specification 9.7.2.1: communication established).
    #[inline(always)]
    pub(crate) fn note_traffic(&mut self, qp: &Qp) {
        if self.machine.note_traffic() && qp.service.is_reliable() {
            qp.event(AsyncEvent::CommunicationEstablished);
        }
    }

    /// A receive is complete.
    #[inline(always)]
    pub(crate) fn complete_one(&mut self, qp: &Qp, wc: Wc, solicits: Solicits) {
        self.count_received(&wc);
        match qp.service {
            Service::XrcRecv => self.complete_of_target(qp, wc, solicits),
            _ => {
                self.receives.complete(Entry::new(wc, qp.receive_release(), solicits));
            }
        }
    }

    /// Puts the receives that completed into their CQ.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, qp: &Qp) {
        if !self.receives.hand_over(|list| qp.recv_cq.push_all(list)) {
            qp.cq_overflowed();
        }
    }

    /// The application has these receives' completions, which were in no CQ. Those of a QP are
    /// counted under its lock, which is held; others may count an SRQ's at the same time.
    #[inline(always)]
    pub(crate) fn receives_taken(&mut self, qp: &Qp, count: u64) {
        match &qp.srq {
            None => self.receives.release(count),
            Some(srq) => {
                let released = &qp.shared.released(srq.slot()).receives;
                released.fetch_add(count, Ordering::Release);
            }
        }
    }

    /// Receives were posted while a message waited for one.
    #[cold]
    pub(crate) fn receives_arrived(&mut self, qp: &Qp) {
        for index in 0..self.links.len() {
            if self.links[index].is_starved() {
                self.pump_link(qp, index);
            }
        }
    }
}

impl Qp {
    #[inline(always)]
    pub(crate) fn receive_release(&self) -> Release {
        Release::Receive { slot: self.srq.as_ref().map_or(self.slot, |srq| srq.slot()) }
    }
}

impl Qp {
    /// Does what can be done now, or has the next turn do it if another thread serves it.
    pub(crate) fn try_pump(&self) {
        match self.try_inner() {
            Some(mut inner) => inner.pump_all(self),
            None => self.shared.look_again(&self.me),
        }
    }

    /// Drives the timers of what waits.
    pub(crate) fn serve_wait(&self) -> Served {
        let Some(mut inner) = self.try_inner() else {
            return Served::On { moved: true, deadline: None };
        };
        let before = inner.sends.mark();
        inner.pump_all(self);
        if inner.sends.is_empty() && !inner.is_starved(self) {
            inner.waiting.unlist();
            return Served::Over;
        }
        let deadline = inner.next_deadline(self);
        Served::On { moved: inner.sends.mark() != before, deadline }
    }
}
