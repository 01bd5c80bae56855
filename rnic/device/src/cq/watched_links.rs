//! Keeps the links that polls of a CQ look at by themselves.

use crate::limits::WATCHED_MAX;
use crate::peer_doorbells::{BellSource, PeerDoorbell};
use crate::qp::Qp;
use crate::spin_lock::{Guard, Lock};
use omniverb_terms::Qpn;
use std::sync::Arc;

/// A link that is looked at.
pub(crate) struct WatchedLink {
    pub(super) qp: Arc<Qp>,
    pub(super) index: usize,
}

/// What an empty poll looks at.
#[derive(Default)]
pub(super) struct WatchList {
    /// At most [`WATCHED_MAX`].
    pub(super) links: Vec<WatchedLink>,
    /// All bells of the process, as they were at this generation of their source.
    bells: Arc<[Arc<PeerDoorbell>]>,
    generation: u64,
    /// The bell that was looked at last.
    turn: usize,
    /// How often polls have looked.
    pub(super) looks: u32,
}

/// The links a CQ watches.
#[derive(Default)]
pub(super) struct WatchedLinks {
    list: Lock<WatchList>,
}

impl WatchedLinks {
    /// The list, which may be waited for while a QP is locked.
    #[inline(always)]
    pub(super) fn lock(&self) -> Guard<'_, WatchList> {
        self.list.lock()
    }

    /// The list, unless another thread looks through it.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, WatchList>> {
        self.list.try_lock()
    }

    /// Watches one more link, if there is room and no poll looks just now.
    pub(super) fn try_add(&self, link: impl FnOnce() -> Option<WatchedLink>) {
        if let Some(mut list) = self.list.try_lock()
            && list.has_room()
            && let Some(link) = link()
        {
            list.links.push(link);
        }
    }

    /// Stops watching a QP's links: they are gone.
    pub(super) fn forget(&self, qpn: Qpn) {
        self.list.lock().links.retain(|watched| watched.qp.number != qpn);
    }
}

impl WatchList {
    /// Whether another link may be watched.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.links.len() < WATCHED_MAX
    }

    /// Takes note of bells that came or went; how many there are.
    #[inline(always)]
    pub(super) fn renew_bells(&mut self, source: &BellSource) -> usize {
        let generation = source.generation();
        if generation != self.generation {
            self.generation = generation;
            self.bells = source.all();
        }
        self.bells.len()
    }

    /// The next bell, if it rings: they take turns.
    #[inline(always)]
    pub(super) fn next_bell(&mut self) -> Option<Arc<PeerDoorbell>> {
        self.turn = if self.turn + 1 < self.bells.len() { self.turn + 1 } else { 0 };
        let bell = self.bells.get(self.turn)?;
        bell.page.has_ready().then(|| bell.clone())
    }
}

impl WatchedLink {
    /// Link `index` of a QP.
    pub(crate) fn new(qp: Arc<Qp>, index: usize) -> WatchedLink {
        WatchedLink { qp, index }
    }

    /// From now on the peer must set our ready bit. It may have missed that just now, so the
    /// progress thread looks once more a moment later. False: the QP is busy, try again later (the
    /// thread that holds it may be waiting for the watch list, which the caller holds).
    #[cold]
    pub(super) fn unwatch(&self) -> bool {
        let Some(mut inner) = self.qp.try_inner() else { return false };
        inner.links.unwatch(self.index);
        inner.pump_link(&self.qp, self.index);
        inner.advance(&self.qp);
        self.qp.come_back_later();
        true
    }
}
