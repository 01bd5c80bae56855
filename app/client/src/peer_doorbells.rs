//! The bells that we share with peer processes, our end of each and theirs.

use crate::errno_conversion::errno_of;
use omniverb_device::FarEnd;
use omniverb_device::peer_doorbells::PeerDoorbell;
use omniverb_link::Doorbell;
use omniverb_ring::doorbell::{LIFE_OFFSET, PAGE_BYTES};
use omniverb_ring::{DoorbellPage, Window};
use omniverb_sys::lock;
use omniverb_sys::{DoorbellSleeper, Extent, ProcessLiveness, doorbell_listener};
use omniverb_terms::Errno;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of a bell: a page for each side.
pub(crate) const BELL_BYTES: usize = 2 * PAGE_BYTES;

/// The page of a bell by which we announce news to the peer's process, and wake it.
pub(crate) struct PeerBell {
    page: DoorbellPage<Window>,
}

impl PeerBell {
    /// `page`: the peer's.
    pub(crate) fn new(page: DoorbellPage<Window>) -> Arc<PeerBell> {
        Arc::new(PeerBell { page })
    }
}

impl Doorbell for PeerBell {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        doorbell_listener::ring(&self.page);
    }
}

/// The era of the daemon that made a bell, and the number it gave it: daemons count anew.
pub(crate) type BellName = (u64, u64);

/// What we share with one peer process.
struct Record {
    /// Our page, which the peer rings.
    bell: Arc<PeerDoorbell>,
    /// The peer's page, which we ring.
    peer: Arc<PeerBell>,
    /// The name of our page for our sleep; `None` while it has no links: then no peer is to wake
    /// us.
    heard_as: Option<u64>,
    /// It has links, and could not be listened to.
    is_unheard: bool,
    /// What `PeerDoorbells::life` calls the word in our page that tells of our end. `None`: nothing
    /// does.
    told_as: Option<u64>,
    /// Whether the peer's process rings ours, or the engine.
    far_end: FarEnd,
}

impl Record {
    fn hear(&mut self, sleep: &DoorbellSleeper) {
        if self.heard_as.is_none() {
            self.heard_as = sleep.add(self.bell.page.clone()).ok();
            self.is_unheard = self.heard_as.is_none();
            self.bell.page.want_kick();
        }
    }

    fn hear_no_more(&mut self, sleep: &DoorbellSleeper) {
        self.is_unheard = false;
        if let Some(number) = self.heard_as.take() {
            sleep.remove(number);
        }
    }
}

/// All bells of the process, and how many daemons it has outlived.
pub(crate) struct PeerDoorbells {
    era: AtomicU64,
    list: Mutex<HashMap<BellName, Record>>,
    /// By which peers see that the process has ended.
    life: Arc<ProcessLiveness>,
}

impl PeerDoorbells {
    pub(crate) fn new() -> Result<PeerDoorbells, Errno> {
        let life = ProcessLiveness::new(BELL_BYTES).map_err(|error| errno_of(&error))?;
        Ok(PeerDoorbells { era: AtomicU64::new(0), list: Mutex::default(), life: Arc::new(life) })
    }

    /// What the end of the thread tells that has it; only that adds and removes bells.
    pub(crate) fn life(&self) -> Arc<ProcessLiveness> {
        self.life.clone()
    }

    /// Daemons that this process has outlived.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Another daemon gives numbers from now on.
    pub(crate) fn begin_era(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// What the present daemon's bell `number` is called here.
    pub(crate) fn name(&self, number: u64) -> BellName {
        (self.era(), number)
    }

    /// Adds a doorbell, which no thread listens to yet. `memory`, `side`: all of it, and which page
    /// is ours.
    pub(crate) fn add(
        &self,
        name: BellName,
        (memory, side): (&Extent<OwnedFd>, usize),
        bell: Arc<PeerDoorbell>,
        peer: Arc<PeerBell>,
        far_end: FarEnd,
    ) {
        // Where the kernel tells nothing the peer hears of our end from the daemon alone.
        let told_as = self.life.tell(memory, side * PAGE_BYTES + LIFE_OFFSET).ok();
        let record = Record { bell, peer, heard_as: None, is_unheard: false, told_as, far_end };
        lock(&self.list).insert(name, record);
    }

    /// It is over.
    fn end(&self, mut record: Record, sleep: &DoorbellSleeper) -> Arc<PeerDoorbell> {
        record.hear_no_more(sleep);
        record.told_as.into_iter().for_each(|number| self.life.forget(number));
        record.bell
    }

    /// Our end and the peer's.
    pub(crate) fn get(&self, name: BellName) -> Option<(Arc<PeerDoorbell>, Arc<PeerBell>)> {
        let list = lock(&self.list);
        list.get(&name).map(|record| (record.bell.clone(), record.peer.clone()))
    }

    /// It has a link: it is to wake us.
    pub(crate) fn hear(&self, name: BellName, sleep: &DoorbellSleeper) {
        if let Some(record) = lock(&self.list).get_mut(&name) {
            record.hear(sleep);
        }
    }

    /// Doorbells with links are to wake us, those without no more. Takes those out that are of a
    /// daemon that is gone and have none: their peers' end will not be told.
    pub(crate) fn review(&self, sleep: &DoorbellSleeper) -> Vec<Arc<PeerDoorbell>> {
        let era = self.era();
        let mut list = lock(&self.list);
        let over = list.extract_if(|(of, _), record| {
            let unused = record.bell.is_unused();
            match unused {
                true => record.hear_no_more(sleep),
                // Where there was no thread for it, there may be one now.
                false => record.hear(sleep),
            }
            unused && *of != era
        });
        over.map(|(_, record)| self.end(record, sleep)).collect()
    }

    /// Whether a doorbell with links wakes no thread, for want of one: a sleeper has to look.
    pub(crate) fn are_some_unheard(&self) -> bool {
        lock(&self.list).values().any(|record| record.is_unheard)
    }

    /// Takes the one with this name out: its peer is gone.
    pub(crate) fn remove(
        &self,
        name: BellName,
        sleep: &DoorbellSleeper,
    ) -> Option<Arc<PeerDoorbell>> {
        let record = lock(&self.list).remove(&name)?;
        Some(self.end(record, sleep))
    }

    /// Whether each may wake us.
    #[cfg(test)]
    pub(crate) fn heard(&self) -> Vec<bool> {
        lock(&self.list).values().map(|record| record.heard_as.is_some()).collect()
    }

    /// Takes all out that the engine rang, but for those that are kept: this process rings them,
    /// too.
    pub(crate) fn remove_engines(
        &self,
        kept: &BTreeSet<BellName>,
        sleep: &DoorbellSleeper,
    ) -> Vec<Arc<PeerDoorbell>> {
        let mut list = lock(&self.list);
        let dead = list
            .extract_if(|name, record| record.far_end == FarEnd::Engine && !kept.contains(name));
        let dead: Vec<_> = dead.map(|(_, record)| record).collect();
        drop(list);
        dead.into_iter().map(|record| self.end(record, sleep)).collect()
    }
}
