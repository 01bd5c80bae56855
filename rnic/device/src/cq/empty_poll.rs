//! Looks for news when a poll finds its CQ empty: at watched links, and at doorbells.
//!
//! A CQ *watches* a few links directly, the ones that had news lately: two loads each. All other
//! links announce themselves by a bit in a bell's ready map: one load per peer process, however
//! many QPs there are.
//!
//! Locks: a watch list may be held while *trying* for a QP, never while waiting for one; a QP may
//! be held while waiting for a watch list.

use super::poll_rate::PollRate;
use crate::cq::Cq;
use crate::cq::watched_links::{WatchList, WatchedLink};
use crate::limits::IDLE_LOOKS_MAX;
use crate::peer_doorbells::PeerDoorbell;
use crate::qp::PollOutcome;
use crate::verbs_constants::Wc;
use std::sync::Arc;

/// Bells looked at in one poll; with more peers than that, they take turns.
const BELLS_PER_POLL: usize = 8;
/// Looks at a link in one poll, where it is the only one that is watched. The lock is let go in
/// between, for the sake of other threads, and of speed: without an atomic operation between them
/// the processor runs loads ahead, and takes 20 ns to discard them when the line changes.
const LOOKS: u32 = 3;
/// Polls after which one looks for news also if it has a completion at once. A program that posts
/// one signalled request and takes one completion in turn may find one each time; the progress
/// thread leaves the looking to it, and peers, which see that it polls, do not wake it.
const HITS: u64 = 64;

impl Cq {
    /// Takes completions; if there are none, looks for news first. Returns how many.
    #[inline(always)]
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let polls = self.attendance.poll();
        let count = self.take(out);
        if count > 0 || out.is_empty() {
            self.attendance.took(count);
            self.look_besides(polls);
            return count;
        }
        let count = self.look(out);
        let count = if count > 0 { count } else { self.take(out) };
        self.attendance.took(count);
        if count == 0 && self.links.all_lead_to_engine() {
            self.pause();
        }
        count
    }

    /// Takes one completion of a stamped queue, and when it came, in nanoseconds of the host's
    /// clock; if there is none, looks for news first.
    pub fn poll_stamped(&self) -> Option<(Wc, u64)> {
        let polls = self.attendance.poll();
        if let Some(found) = self.take_stamped() {
            self.look_besides(polls);
            return Some(found);
        }
        // What is stamped goes through the queue.
        self.look(&mut []);
        self.take_stamped()
    }

    /// After a poll that had completions: looks for news all the same, now and then.
    #[inline(always)]
    fn look_besides(&self, polls: u64) {
        if polls.is_multiple_of(HITS) {
            self.look_into_queue();
        }
    }

    /// Looks for news; what comes goes through the queue.
    #[cold]
    fn look_into_queue(&self) {
        self.look(&mut []);
    }

    /// How many links an empty poll looks at, besides a few bells: what it costs.
    pub fn watched_links(&self) -> usize {
        self.watch.lock().links.len()
    }

    /// Looks for news. Returns how many completions went straight to the caller; others may be in
    /// the queue.
    #[inline(always)]
    fn look(&self, out: &mut [Wc]) -> usize {
        if self.links.some_lead_to_engine() {
            self.shared.host.poll_network();
        }
        let Some(mut guard) = self.watch.try_lock() else { return 0 };
        let list = &mut *guard;
        let (mut idle, mut count, mut news) = (None, 0, false);
        // A poll that watches one link is likely to wait for an answer, and every moment between
        // two looks delays it: one look more costs a third of what coming back here costs.
        let repeats = if list.links.len() == 1 { LOOKS } else { 1 };
        for _ in 0..repeats {
            for (at, watched) in list.links.iter().enumerate() {
                let Some(mut inner) = watched.qp.try_inner() else { continue };
                match inner.look(&watched.qp, watched.index, self, &mut out[count..]) {
                    PollOutcome::News(more) => {
                        news = true;
                        count += more;
                    }
                    PollOutcome::Quiet(looks) if looks > IDLE_LOOKS_MAX => idle = Some(at),
                    PollOutcome::Quiet(_) => {}
                }
            }
            if news {
                break;
            }
        }
        if let Some(at) = idle
            && list.links.len() > 1
            && list.links[at].unwatch()
        {
            list.links.swap_remove(at);
        }
        // A busy link must not keep others from being heard.
        list.looks = list.looks.wrapping_add(1);
        if count == 0 || list.looks.is_multiple_of(16) {
            self.look_at_bells(list);
        }
        count
    }

    #[inline(always)]
    fn look_at_bells(&self, list: &mut WatchList) {
        let count = list.renew_bells(&self.shared.bells);
        for _ in 0..count.min(BELLS_PER_POLL) {
            if let Some(bell) = list.next_bell() {
                self.answer(list, &bell);
            }
        }
    }

    /// Links of this bell have news.
    #[inline(never)]
    fn answer(&self, list: &mut WatchList, bell: &PeerDoorbell) {
        for (slot, qp, index) in bell.ready() {
            let Some(mut inner) = qp.try_inner() else {
                // Busy now: look again. The progress thread may have looked, and be about to sleep.
                bell.page.set_ready(slot);
                self.shared.host.attend();
                continue;
            };
            inner.pump_link(&qp, index);
            inner.advance(&qp);
            let ours = std::ptr::eq(&*qp.recv_cq, self) || std::ptr::eq(&*qp.send_cq, self);
            let known = list.links.iter().any(|w| Arc::ptr_eq(&w.qp, &qp) && w.index == index);
            if !known
                && ours
                && self.attendance.may_watch()
                && list.has_room()
                && inner.links.watch(index)
            {
                drop(inner);
                list.links.push(WatchedLink::new(qp, index));
            }
        }
    }

    /// Whether a poll looks for news just now.
    pub(super) fn is_looked_at(&self) -> bool {
        self.watch.try_lock().is_none()
    }

    /// For the progress thread: looks at the watched links, and stops watching them if polls
    /// do not serve them. True if there was news, or may have been.
    pub(super) fn look_for_progress(&self, polls: PollRate) -> bool {
        let Some(mut list) = self.watch.try_lock() else { return true };
        let mut news = false;
        for watched in &list.links {
            if let Some(mut inner) = watched.qp.try_inner() {
                let found = inner.look(&watched.qp, watched.index, self, &mut []);
                news |= matches!(found, PollOutcome::News(_));
            }
        }
        if polls != PollRate::Often {
            list.links.retain(|watched| !watched.unwatch());
            news |= !list.links.is_empty();
        }
        news
    }
}

/// For the progress thread: serves every link that announced itself. True if one did.
pub(crate) fn answer_all(bells: &[Arc<PeerDoorbell>]) -> bool {
    let mut news = false;
    for bell in bells.iter().filter(|bell| bell.page.has_ready()) {
        for (slot, qp, index) in bell.ready() {
            news = true;
            match qp.try_inner() {
                Some(mut inner) => {
                    inner.pump_link(&qp, index);
                    inner.advance(&qp);
                }
                None => bell.page.set_ready(slot),
            }
        }
    }
    news
}
