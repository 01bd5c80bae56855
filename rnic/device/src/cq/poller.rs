//! What a poll of an empty CQ looks at.
//!
//! A CQ *watches* a few links directly, the ones that had news lately: two loads each. All other
//! links announce themselves by a bit in a bell's ready map: one load per peer process, however
//! many QPs there are.
//!
//! Locks: a watch list may be held while *trying* for a QP, never while waiting for one; a QP may
//! be held while waiting for a watch list.

use crate::constants::Wc;
use crate::cq::Cq;
use crate::limits::{IDLE_LOOKS_MAX, WATCHED_MAX};
use crate::lock::Lock;
use crate::lock::lock;
use crate::qp::{Inner, Qp};
use omniverb_ring::{BellPage, Window};
use omniverb_terms::{Qpn, Service};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Bells looked at in one poll; with more peers than that, they take turns.
const BELLS_PER_POLL: usize = 8;
/// Looks at a link in one poll, where it is the only one that is watched. The lock is let go in
/// between, for the sake of other threads, and of speed: without an atomic operation between them
/// the processor runs loads ahead, and takes 20 ns to discard them when the line changes.
const LOOKS: u32 = 3;

/// What a look at a link found.
enum Look {
    /// Something; so many completions went straight to the caller.
    News(usize),
    /// Nothing, for so many looks.
    Quiet(u32),
}

/// Our page of the bell that we share with one peer process, and which link is which bit.
pub struct Bell {
    /// Our page.
    pub page: BellPage<Window>,
    links: Mutex<HashMap<u32, (Weak<Qp>, usize)>>,
}

impl Bell {
    /// A bell without links.
    pub fn new(page: BellPage<Window>) -> Arc<Bell> {
        Arc::new(Bell { page, links: Mutex::default() })
    }

    /// Bit `slot` stands for link `index` of `qp`.
    pub fn bind(&self, slot: u32, qp: &Arc<Qp>, index: usize) {
        lock(&self.links).insert(slot, (Arc::downgrade(qp), index));
    }

    /// Whether nothing can come by it any more, because all its links have ended.
    pub fn is_unused(&self) -> bool {
        let links: Vec<_> =
            lock(&self.links).iter().map(|(slot, link)| (*slot, link.clone())).collect();
        let over =
            |(qp, index): &(Weak<Qp>, usize)| qp.upgrade().is_none_or(|qp| !qp.listens_to(*index));
        let dead: Vec<_> = links.into_iter().filter(|(_, link)| over(link)).collect();
        let mut links = lock(&self.links);
        for (slot, _) in dead {
            links.remove(&slot);
        }
        links.is_empty()
    }

    fn find(&self, slot: u32) -> Option<(Arc<Qp>, usize)> {
        let (qp, index) = lock(&self.links).get(&slot)?.clone();
        Some((qp.upgrade()?, index))
    }

    /// Takes the links that have news.
    fn ready(&self) -> Vec<(u32, Arc<Qp>, usize)> {
        let mut slots = Vec::new();
        self.page.take_ready(|slot| slots.push(slot));
        slots.into_iter().filter_map(|s| self.find(s).map(|(qp, index)| (s, qp, index))).collect()
    }
}

/// All bells of the process.
#[derive(Default)]
pub struct BellSource {
    generation: AtomicU64,
    list: Mutex<Arc<[Arc<Bell>]>>,
}

impl BellSource {
    /// Adds a bell.
    pub fn add(&self, bell: Arc<Bell>) {
        let mut list = lock(&self.list);
        *list = list.iter().cloned().chain([bell]).collect();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Removes a bell: its peer is gone.
    pub fn remove(&self, bell: &Arc<Bell>) {
        let mut list = lock(&self.list);
        *list = list.iter().filter(|other| !Arc::ptr_eq(other, bell)).cloned().collect();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// All of them.
    pub fn all(&self) -> Arc<[Arc<Bell>]> {
        lock(&self.list).clone()
    }
}

pub(crate) struct Watched {
    pub(crate) qp: Arc<Qp>,
    pub(crate) index: usize,
}

#[derive(Default)]
pub(crate) struct WatchList {
    pub(crate) links: Vec<Watched>,
    bells: Arc<[Arc<Bell>]>,
    generation: u64,
    turn: usize,
}

/// The links a CQ watches.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) list: Lock<WatchList>,
}

impl Watch {
    /// Stops watching a QP's links: they are gone.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.list.lock().links.retain(|watched| watched.qp.number != qpn);
    }
}

impl Cq {
    /// Takes completions; if there are none, looks for news first. Returns how many.
    #[inline(always)]
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        // Only a hint for the progress thread: a lost count does no harm.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let count = self.take(out);
        if count > 0 || out.is_empty() {
            return count;
        }
        let count = self.look(out);
        let count = if count > 0 { count } else { self.take(out) };
        if count == 0 && self.links.all_lead_to_engine() {
            self.pause();
        }
        count
    }

    /// How many links an empty poll looks at, besides a few bells: what it costs.
    pub fn watched_links(&self) -> usize {
        self.watch.list.lock().links.len()
    }

    /// Looks for news. Returns how many completions went straight to the caller; others may be in
    /// the queue.
    #[inline(always)]
    fn look(&self, out: &mut [Wc]) -> usize {
        let Some(mut guard) = self.watch.list.try_lock() else { return 0 };
        let list = &mut *guard;
        let (mut idle, mut count, mut news) = (None, 0, false);
        // Who watches one link is likely to wait for an answer, and every moment between two looks
        // delays it: one look more costs a third of what coming back here costs.
        let repeats = if list.links.len() == 1 { LOOKS } else { 1 };
        for _ in 0..repeats {
            for (at, watched) in list.links.iter().enumerate() {
                let Some(mut inner) = watched.qp.try_inner() else { continue };
                match inner.look(&watched.qp, watched.index, self, &mut out[count..]) {
                    Look::News(more) => {
                        news = true;
                        count += more;
                    }
                    Look::Quiet(looks) if looks > IDLE_LOOKS_MAX => idle = Some(at),
                    Look::Quiet(_) => {}
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
        if count == 0 || self.polls.load(Ordering::Relaxed).is_multiple_of(16) {
            self.look_at_bells(list);
        }
        count
    }

    #[inline(always)]
    fn look_at_bells(&self, list: &mut WatchList) {
        let source = &self.shared.bells;
        let generation = source.generation.load(Ordering::Acquire);
        if generation != list.generation {
            list.generation = generation;
            list.bells = source.all();
        }
        let count = list.bells.len();
        for _ in 0..count.min(BELLS_PER_POLL) {
            list.turn = if list.turn + 1 < count { list.turn + 1 } else { 0 };
            if list.bells[list.turn].page.has_ready() {
                let bell = list.bells[list.turn].clone();
                self.answer(list, &bell);
            }
        }
    }

    /// Links of this bell have news.
    #[inline(never)]
    fn answer(&self, list: &mut WatchList, bell: &Bell) {
        for (slot, qp, index) in bell.ready() {
            let Some(mut inner) = qp.try_inner() else {
                bell.page.set_ready(slot); // busy now; look again
                continue;
            };
            inner.pump_link(&qp, index);
            inner.advance(&qp);
            let ours = std::ptr::eq(&*qp.recv_cq, self) || std::ptr::eq(&*qp.send_cq, self);
            let known = list.links.iter().any(|w| Arc::ptr_eq(&w.qp, &qp) && w.index == index);
            if !known && ours && list.links.len() < WATCHED_MAX && inner.watch(index) {
                drop(inner);
                list.links.push(Watched { qp, index });
            }
        }
    }

    /// For the progress thread: looks at the watched links, and stops watching them if nobody
    /// polls any more. True if there was news.
    pub(crate) fn look_for_progress(&self, nobody_polls: bool) -> bool {
        let Some(mut list) = self.watch.list.try_lock() else { return true };
        let mut news = false;
        for watched in &list.links {
            if let Some(mut inner) = watched.qp.try_inner() {
                let found = inner.look(&watched.qp, watched.index, self, &mut []);
                news |= matches!(found, Look::News(_));
            }
        }
        if nobody_polls {
            list.links.retain(|watched| !watched.unwatch());
            news |= !list.links.is_empty();
        }
        news
    }
}

impl Watched {
    /// From now on the peer must set our ready bit. It may have missed that just now, so the
    /// progress thread looks once more a moment later. False: the QP is busy, try again later
    /// (whoever holds it may be waiting for the watch list, which the caller holds).
    #[cold]
    fn unwatch(&self) -> bool {
        let Some(mut inner) = self.qp.try_inner() else { return false };
        inner.unwatch(self.index);
        inner.pump_link(&self.qp, self.index);
        inner.advance(&self.qp);
        inner.come_back(&self.qp);
        true
    }
}

impl Inner {
    /// Looks at one link.
    #[inline(always)]
    fn look(&mut self, qp: &Qp, index: usize, cq: &Cq, out: &mut [Wc]) -> Look {
        let Some(link) = self.links.get_mut(index) else { return Look::Quiet(u32::MAX) };
        if link.endpoint.has_news() {
            link.looks.found();
            let straight = std::ptr::eq(&*qp.recv_cq, cq) && cq.is_bypassable();
            let mut count = if straight { self.serve_straight(qp, index, out) } else { 0 };
            if count == 0 {
                count = self.serve_thoroughly(qp, index, cq, out);
            }
            self.advance(qp);
            return Look::News(count);
        }
        let idle = link.looks.found_nothing();
        if !self.sends.is_empty() {
            self.advance(qp);
            self.insist(qp);
        }
        Look::Quiet(idle)
    }

    /// Takes in whatever arrived. Returns how many completions went straight to the caller.
    #[inline(never)]
    fn serve_thoroughly(&mut self, qp: &Qp, index: usize, cq: &Cq, out: &mut [Wc]) -> usize {
        self.serve_link(qp, index);
        self.finish_sends(qp);
        self.hand_out(qp, cq, out)
    }

    /// Gives fresh receives straight to whoever polls their CQ, unless older completions or an
    /// event are due first: it saves them the way through the queue.
    #[inline(always)]
    fn hand_out(&mut self, qp: &Qp, cq: &Cq, out: &mut [Wc]) -> usize {
        let count = self.receives.completed();
        let straight = std::ptr::eq(&*qp.recv_cq, cq) && cq.is_bypassable();
        if count == 0 || count > out.len() || !straight {
            self.hand_over(qp);
            return 0;
        }
        for (place, entry) in out.iter_mut().zip(self.receives.take_completed()) {
            *place = entry.wc;
        }
        self.receives_taken(qp, count as u64);
        count
    }

    /// A request is on its way: polls of its CQ look at the peer from now on, also if only the
    /// progress thread heard of it before. Who does not poll stops watching soon.
    pub(crate) fn be_watched(&mut self, qp: &Qp) {
        let direct = qp.service != Service::Ud
            && self
                .links
                .first()
                .is_some_and(|link| !link.looks.are_made() && !link.peer.is_beyond_engine());
        let list = if direct { qp.send_cq.watch.list.try_lock() } else { None };
        if let Some(mut list) = list
            && list.links.len() < WATCHED_MAX
            && let Some(qp) = qp.me.upgrade()
            && self.watch(0)
        {
            list.links.push(Watched { qp, index: 0 });
        }
    }

    fn watch(&mut self, index: usize) -> bool {
        let Some(link) = self.links.get_mut(index) else { return false };
        link.looks.begin();
        link.endpoint.set_watched(true);
        true
    }

    fn unwatch(&mut self, index: usize) {
        if let Some(link) = self.links.get_mut(index)
            && link.looks.end()
        {
            link.endpoint.set_watched(false);
        }
    }
}

/// For the progress thread: serves every link that announced itself. True if one did.
pub(crate) fn answer_all(bells: &[Arc<Bell>]) -> bool {
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
