//! XRC (annex A14): one end names a shared receive queue with each request, the other finds it in
//! its domain. What follows from that is here; everything else is as of RC.

use super::Qp;
use super::link_table::LinkEnd;
use super::responder::InboundState;
use super::xrc_relay_table::Relays;
use crate::cq::{Entry, SlotRelease, SolicitedEvent};
use crate::receive_ring::Receive;
use crate::shared_receive_queue::Srq;
use crate::verbs_constants::Wc;
use crate::xrc_domain::Domain;
use omniverb_link::{Broken, Request};
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a queue pair of XRC has beside what all have.
#[derive(Default)]
pub(super) struct XrcState {
    /// Where it receives, if it does.
    domain: Option<Arc<Domain>>,
    /// The SRQ that the peer was told its requests are for.
    named: Option<u32>,
    /// The SRQ that the peer's requests are for.
    target: Option<Arc<Srq>>,
    /// Whose receive the message goes into that is under way.
    taken_from: Option<Arc<Srq>>,
    /// The number of an SRQ of another process that the peer's requests are for.
    elsewhere: Option<u32>,
    /// The ways to other processes of the domain.
    pub(super) relays: Relays,
}

impl XrcState {
    /// One that receives in this domain, if there is one.
    pub(super) fn new(domain: Option<Arc<Domain>>) -> XrcState {
        XrcState { domain, ..XrcState::default() }
    }

    /// The queue pair has this SRQ no more, unless for the other of two purposes.
    fn release(&self, qp: &Qp, srq: Option<Arc<Srq>>) {
        let Some(srq) = srq else { return };
        let mut held = [&self.target, &self.taken_from].into_iter().flatten();
        if !held.any(|held| Arc::ptr_eq(held, &srq)) {
            srq.remove_holder(qp.number);
        }
    }

    /// The link is gone, and what was said on it.
    pub(super) fn unlink(&mut self, qp: &Qp) {
        (self.named, self.elsewhere) = (None, None);
        let (target, taken_from) = (self.target.take(), self.taken_from.take());
        self.release(qp, target);
        self.release(qp, taken_from);
    }
}

impl Qp {
    /// Whether its receives, if it has any, are those of others, too.
    #[inline(always)]
    pub(super) fn shares_receives(&self) -> bool {
        self.srq.is_some() || self.service == Service::XrcRecv
    }

    /// Where it receives, if it is the end of XRC that does.
    pub fn domain(&self) -> Option<Arc<Domain>> {
        self.inner().extended.domain.clone()
    }

    /// An SRQ of the domain is going: a message that has begun to go there ends in nothing.
    pub(crate) fn forget_srq(&self, srq: &Srq) {
        let mut guard = self.inner();
        let is_it =
            |held: &Option<Arc<Srq>>| held.as_ref().is_some_and(|s| std::ptr::eq(&**s, srq));
        if is_it(&guard.extended.target) {
            guard.extended.target = None;
        }
        if is_it(&guard.extended.taken_from) {
            guard.extended.taken_from = None;
            for link in guard.links.iter_mut() {
                if matches!(link.incoming, InboundState::Send { .. }) {
                    link.incoming = InboundState::Idle;
                }
            }
        }
        // What waits for a receive of it waits in vain, and is to be told so.
        if guard.links.iter().any(LinkEnd::is_starved) {
            self.come_back();
        }
    }
}

impl XrcState {
    /// Tells the peer which SRQ the next request is for, unless it knows. False: no room.
    pub(super) fn name_srq(&mut self, link: &mut LinkEnd, number: u32) -> Result<bool, Broken> {
        if self.named == Some(number) {
            return Ok(true);
        }
        let told = link.endpoint.send_request(&Request::ForSrq { number }, 0, [])?;
        if told {
            self.named = Some(number);
        }
        Ok(told)
    }

    /// The peer names an SRQ. One that is not there is what the next request fails for.
    pub(super) fn target_srq(&mut self, qp: &Qp, number: u32) {
        let domain = self.domain.as_ref();
        let other = domain.is_some_and(|domain| domain.is_elsewhere(number));
        self.elsewhere = other.then_some(number);
        let target = domain.and_then(|domain| domain.srq_for(qp, number));
        let before = std::mem::replace(&mut self.target, target);
        self.release(qp, before);
    }

    /// The SRQ of another process that the peer's requests are for.
    pub(super) fn target_elsewhere(&self) -> Option<u32> {
        self.elsewhere
    }

    /// Whether the peer's requests are for an SRQ that there is.
    pub(super) fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// Whether what follows in a message is for the SRQ that it began with.
    #[inline(always)]
    pub(super) fn stays_on_target(&self, qp: &Qp) -> bool {
        if qp.service != Service::XrcRecv {
            return true;
        }
        match (&self.target, &self.taken_from) {
            (Some(target), Some(from)) => Arc::ptr_eq(target, from),
            _ => false,
        }
    }

    /// Takes a receive of the SRQ that is named.
    pub(super) fn take_of_target(&mut self, qp: &Qp) -> Option<Receive> {
        let target = self.target.as_ref()?;
        let receive = target.take(&qp.me)?;
        self.taken_from = Some(target.clone());
        Some(receive)
    }

    /// The protection domain that receives are looked up in.
    #[inline(always)]
    pub(super) fn receive_pd(&self, qp: &Qp) -> u32 {
        match &self.target {
            None => qp.receive_pd,
            Some(srq) => srq.pd,
        }
    }

    /// The protection domain that remote keys are looked up in: that of the SRQ (A14.4).
    pub(super) fn key_pd(&self, qp: &Qp) -> u32 {
        self.target.as_ref().map_or(qp.pd, |srq| srq.pd)
    }

    /// A receive of an SRQ of the domain is complete: that has a completion queue of its own.
    #[cold]
    pub(super) fn complete_of_target(&mut self, qp: &Qp, wc: Wc, solicits: SolicitedEvent) {
        let Some(srq) = self.taken_from.take() else { return };
        if let Some(cq) = &srq.cq {
            let release = SlotRelease::Receive { slot: srq.slot() };
            let wc = qp.hidden.told(wc);
            if !cq.push(Entry::new(wc, release, solicits)) {
                qp.cq_overflowed();
            }
        }
        // Not before: the thread that ends the SRQ waits for those that have it, and then purges
        // its CQ.
        self.release(qp, Some(srq));
    }

    /// RESET: a receive that was taken is gone, its place in the queue is not.
    pub(super) fn leave_target(&mut self, qp: &Qp) {
        if let Some(srq) = self.taken_from.take() {
            qp.shared.released(srq.slot()).receives.fetch_add(1, Ordering::Release);
            self.release(qp, Some(srq));
        }
    }
}
