//! Holds what all objects of one opened device share.

use crate::cq::Cq;
use crate::limits::{LOOK_LATER, QP_SLOTS};
use crate::memory_region::Regions;
use crate::peer_doorbells::BellSource;
use crate::platform::Host;
use crate::qp::Qp;
use crate::resident_peer_pages::ResidencyGeneration;
use crate::spin_lock::lock;
use crate::weak_list::WeakList;
use omniverb_link::PeerPageAccess;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Counts what the application has taken back by polling; see [`crate::receive_ring`].
#[derive(Default)]
pub(crate) struct PolledPositions {
    /// Position behind the last send whose completion was polled.
    pub(crate) sends: AtomicU64,
    /// Receives whose completions were polled.
    pub(crate) receives: AtomicU64,
}

/// A queue pair that a turn of the progress thread is to look at once.
struct DueLook {
    qp: Weak<Qp>,
    /// Not before this time of the host's clock, in nanoseconds.
    due: u64,
}

/// Shared state of one opened device.
pub struct Shared {
    /// What the application registered, by its keys.
    pub regions: Regions,
    /// Clock, progress thread, daemon, and the application's events.
    pub host: Box<dyn Host>,
    /// Bells of all peer processes, by which they announce news.
    pub bells: BellSource,
    /// How far the process has gone through pages of peers.
    toll: ResidencyGeneration,
    released: Box<[PolledPositions]>,
    free_slots: Mutex<Vec<u32>>,
    cqs: Mutex<WeakList<Cq>>,
    /// QPs with timers or blocked sends: looked after in every turn of the progress thread.
    waiting: Mutex<Vec<Weak<Qp>>>,
    /// QPs that a turn is to look at once.
    again: Mutex<Vec<DueLook>>,
    /// Which daemon there is, or was last: its engine is at the far ends of links.
    daemon: AtomicU32,
    /// Engines that were at our pages when the link to them ended, and whose they are.
    late: Mutex<Vec<(u32, PeerPageAccess)>>,
}

impl Shared {
    /// A new device, which has no objects yet, in this process.
    pub fn new(host: Box<dyn Host>) -> Arc<Shared> {
        Arc::new(Shared {
            regions: Regions::default(),
            host,
            bells: BellSource::default(),
            toll: ResidencyGeneration::default(),
            released: (0..QP_SLOTS).map(|_| PolledPositions::default()).collect(),
            free_slots: Mutex::new((0..QP_SLOTS as u32).rev().collect()),
            cqs: Mutex::default(),
            waiting: Mutex::default(),
            again: Mutex::default(),
            daemon: AtomicU32::new(0),
            late: Mutex::default(),
        })
    }

    /// A slot for a new QP or SRQ, zeroed; `None` when there are too many.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let slot = lock(&self.free_slots).pop()?;
        self.released(slot).sends.store(0, Ordering::Relaxed);
        self.released(slot).receives.store(0, Ordering::Relaxed);
        Some(slot)
    }

    /// Gives a slot back that [`Self::take_slot`] gave.
    pub(crate) fn give_slot(&self, slot: u32) {
        lock(&self.free_slots).push(slot);
    }

    /// What the application took back of the QP or SRQ with this slot.
    #[inline(always)]
    pub(crate) fn released(&self, slot: u32) -> &PolledPositions {
        &self.released[slot as usize]
    }

    /// The same, of a number that may be none of ours: it was in memory of the program.
    #[inline(always)]
    pub(crate) fn find_released(&self, slot: u32) -> Option<&PolledPositions> {
        self.released.get(slot as usize)
    }

    /// How far the process has gone through pages of peers.
    #[inline(always)]
    pub(crate) fn toll(&self) -> &ResidencyGeneration {
        &self.toll
    }

    /// A CQ was made.
    pub(crate) fn add_cq(&self, cq: &Arc<Cq>) {
        lock(&self.cqs).add(cq);
    }

    /// All CQs that there are still.
    pub(crate) fn cqs(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).all()
    }

    /// Has the next turn of the progress thread look at this QP once: something was left there.
    pub(crate) fn look_again(&self, qp: &Weak<Qp>) {
        lock(&self.again).push(DueLook { qp: qp.clone(), due: 0 });
    }

    /// Has a turn look at this QP once, [`LOOK_LATER`] from now or after that. A flag of ours was
    /// set that the peer looks at after it has done something, without a fence in between, and what
    /// it did last may not be visible yet (decision 0001). Turns may follow each other at once, so
    /// the next one would be no later look.
    pub(crate) fn look_later(&self, qp: &Weak<Qp>) {
        let due = self.host.now().saturating_add(LOOK_LATER);
        lock(&self.again).push(DueLook { qp: qp.clone(), due });
    }

    /// Those that a turn is to look at once, `now`, in nanoseconds of the host's clock.
    pub(crate) fn take_again(&self, now: u64) -> Vec<Weak<Qp>> {
        let mut list = lock(&self.again);
        let (due, later): (Vec<_>, Vec<_>) = list.drain(..).partition(|again| again.due <= now);
        *list = later;
        due.into_iter().map(|again| again.qp).collect()
    }

    /// When a turn is to look at the first of those, in nanoseconds of the host's clock.
    pub(crate) fn again_due(&self) -> Option<u64> {
        lock(&self.again).iter().map(|again| again.due).min()
    }

    /// There is a daemon, of this number: one of another is no more, nor is its engine.
    pub fn set_daemon(&self, number: u32) {
        self.daemon.store(number, Ordering::Release);
    }

    /// The number of the daemon that there is, or was last.
    pub(crate) fn daemon(&self) -> u32 {
        self.daemon.load(Ordering::Acquire)
    }

    /// A link to the engine of this daemon's has ended, which is at our pages at this moment.
    pub(crate) fn leave_behind(&self, daemon: u32, engine: PeerPageAccess) {
        lock(&self.late).push((daemon, engine));
    }

    /// Whether the engine is at our pages still by a link that has ended. One whose daemon has
    /// ended is nowhere any more, whatever it said last.
    #[must_use]
    pub fn engine_is_late(&self) -> bool {
        let now = self.daemon();
        let mut late = lock(&self.late);
        late.retain(|(daemon, engine)| *daemon == now && engine.is_there());
        !late.is_empty()
    }

    /// Has every turn look after this QP from now on.
    pub(crate) fn look_after(&self, qp: &Weak<Qp>) {
        lock(&self.waiting).push(qp.clone());
    }

    /// Those to look after; they are to be [kept](Self::keep_waiting) or forgotten.
    pub(crate) fn take_waiting(&self) -> Vec<Weak<Qp>> {
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// These are to be looked after still.
    pub(crate) fn keep_waiting(&self, mut list: Vec<Weak<Qp>>) {
        lock(&self.waiting).append(&mut list);
    }
}
