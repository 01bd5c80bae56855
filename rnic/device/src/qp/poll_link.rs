//! Polls one link of a queue pair.

use super::link_table::Links;
use super::responder::Receives;
use super::{Inner, PollOutcome, Qp};
use crate::cq::{Cq, WatchedLink};
use crate::verbs_constants::Wc;
use omniverb_link::poller_sleep::PollerNap;
use omniverb_terms::Service;

impl Inner {
    /// Looks at one link.
    #[inline(always)]
    pub(crate) fn look(&mut self, qp: &Qp, index: usize, cq: &Cq, out: &mut [Wc]) -> PollOutcome {
        let Some(link) = self.links.get_mut(index) else { return PollOutcome::Quiet(u32::MAX) };
        if link.endpoint.has_news() {
            link.looks.found();
            let straight = std::ptr::eq(&*qp.recv_cq, cq) && cq.is_bypassable();
            let mut count = if straight { self.serve_straight(qp, index, out) } else { 0 };
            if count == 0 {
                count = self.serve_thoroughly(qp, index, cq, out);
            }
            self.advance(qp);
            return PollOutcome::News(count);
        }
        let idle = link.looks.found_nothing();
        if !self.sends.is_empty() {
            self.advance(qp);
            self.insist(qp);
        }
        PollOutcome::Quiet(idle)
    }

    /// Takes in whatever arrived. Returns how many completions went straight to the caller.
    #[inline(never)]
    fn serve_thoroughly(&mut self, qp: &Qp, index: usize, cq: &Cq, out: &mut [Wc]) -> usize {
        self.serve_link(qp, index);
        self.finish_sends(qp);
        hand_out(&mut self.receives, qp, cq, out)
    }
}

/// Gives fresh receives straight to the poll of their CQ, unless older completions or an event are
/// due first: it saves them the way through the queue.
#[inline(always)]
fn hand_out(receives: &mut Receives, qp: &Qp, cq: &Cq, out: &mut [Wc]) -> usize {
    let count = receives.completed();
    let straight = std::ptr::eq(&*qp.recv_cq, cq) && cq.is_bypassable();
    if count == 0 || count > out.len() || !straight {
        qp.hand_over(receives);
        return 0;
    }
    for (place, entry) in out.iter_mut().zip(receives.take_completed()) {
        *place = entry.wc;
    }
    qp.release_receives(receives, count as u64);
    count
}

impl Links {
    /// A request is on its way: polls of its CQ look at the peer from now on, also if only the
    /// progress thread heard of it before. A program that does not poll stops watching soon.
    pub(super) fn be_watched(&mut self, qp: &Qp) {
        let direct = qp.service != Service::Ud
            && self
                .first()
                .is_some_and(|link| !link.looks.are_made() && !link.peer.is_beyond_engine());
        if direct {
            qp.send_cq.try_watch(|| {
                let qp = qp.me.upgrade()?;
                self.watch(0).then(|| WatchedLink::new(qp, 0))
            });
        }
    }

    /// One more poll list looks at a link by itself. False: there is no such link.
    pub(crate) fn watch(&mut self, index: usize) -> bool {
        let Some(link) = self.get_mut(index) else { return false };
        link.looks.begin();
        link.endpoint.set_watched(true);
        true
    }

    /// One does no longer.
    pub(crate) fn unwatch(&mut self, index: usize) {
        let Some(link) = self.get_mut(index) else { return };
        link.looks.end();
        if !link.looks.are_made() {
            link.endpoint.set_watched(false);
        }
    }

    /// Bytes under way on a link. `None`: there is no such link, or it is broken.
    pub(crate) fn under_way(&mut self, index: usize) -> Option<u64> {
        self.get_mut(index)?.endpoint.under_way().ok()
    }

    /// Begins a nap until so many bytes more of a link have left.
    pub(crate) fn begin_nap(&mut self, index: usize, bytes: u64) -> Option<PollerNap> {
        self.get_mut(index)?.endpoint.begin_nap(bytes).ok()?
    }
}
