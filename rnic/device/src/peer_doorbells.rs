//! Keeps the doorbells by which peer processes announce which links have news.

use crate::qp::Qp;
use crate::spin_lock::lock;
use omniverb_ring::{DoorbellPage, Window};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Our page of the bell that we share with one peer process, and which link is which bit of its
/// ready map.
pub struct PeerDoorbell {
    /// Our page: the peer marks in it which links have news, we whether we want to be woken.
    pub page: DoorbellPage<Window>,
    links: Mutex<HashMap<u32, (Weak<Qp>, usize)>>,
}

impl PeerDoorbell {
    /// A bell without links.
    pub fn new(page: DoorbellPage<Window>) -> Arc<PeerDoorbell> {
        Arc::new(PeerDoorbell { page, links: Mutex::default() })
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
    pub(crate) fn ready(&self) -> Vec<(u32, Arc<Qp>, usize)> {
        let mut slots = Vec::new();
        self.page.take_ready(|slot| slots.push(slot));
        slots.into_iter().filter_map(|s| self.find(s).map(|(qp, index)| (s, qp, index))).collect()
    }
}

/// All bells of the process.
#[derive(Default)]
pub struct BellSource {
    generation: AtomicU64,
    list: Mutex<Arc<[Arc<PeerDoorbell>]>>,
}

impl BellSource {
    /// One more bell of the process; polls look at it from the next time on.
    pub fn add(&self, bell: Arc<PeerDoorbell>) {
        let mut list = lock(&self.list);
        *list = list.iter().cloned().chain([bell]).collect();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Removes a bell: its peer is gone.
    pub fn remove(&self, bell: &Arc<PeerDoorbell>) {
        let mut list = lock(&self.list);
        *list = list.iter().filter(|other| !Arc::ptr_eq(other, bell)).cloned().collect();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Moves whenever a bell comes or goes.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Asks all peers to wake this process when they ring. Says whether one of them would not have
    /// until now, and may just have missed that.
    pub fn want_kicks(&self) -> bool {
        let mut news = false;
        for bell in self.all().iter().filter(|bell| !bell.page.wants_kick()) {
            bell.page.want_kick();
            news = true;
        }
        news
    }

    /// All bells as they are now; it is not changed any more.
    pub fn all(&self) -> Arc<[Arc<PeerDoorbell>]> {
        lock(&self.list).clone()
    }
}
