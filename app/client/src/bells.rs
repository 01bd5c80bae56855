//! The bells that we share with peer processes, our end of each and theirs.

use omniverb_device::FarEnd;
use omniverb_device::bell::Bell;
use omniverb_link::Doorbell;
use omniverb_ring::{BellPage, Window};
use omniverb_sys::lock;
use omniverb_sys::{Sleeper, listener};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The page of a bell by which we announce news to the peer's process, and wake it.
pub(crate) struct PeerBell {
    page: BellPage<Window>,
}

impl PeerBell {
    /// `page`: the peer's.
    pub(crate) fn new(page: BellPage<Window>) -> Arc<PeerBell> {
        Arc::new(PeerBell { page })
    }
}

impl Doorbell for PeerBell {
    fn page(&self) -> &BellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        listener::ring(&self.page);
    }
}

/// The era of the daemon that made a bell, and the number it gave it: daemons count anew.
pub(crate) type BellName = (u64, u64);

/// What we share with one peer process.
struct Record {
    /// Our page, which the peer rings.
    bell: Arc<Bell>,
    /// The peer's page, which we ring.
    peer: Arc<PeerBell>,
    /// What our sleep calls our page; `None` while it has no links: then nobody is to wake us.
    heard_as: Option<u64>,
    /// Whether the peer's process rings ours, or the engine.
    far_end: FarEnd,
}

impl Record {
    fn hear(&mut self, sleep: &Sleeper) {
        if self.heard_as.is_none() {
            self.heard_as = sleep.add(self.bell.page.clone()).ok();
            self.bell.page.want_kick();
        }
    }

    fn hear_no_more(&mut self, sleep: &Sleeper) {
        if let Some(number) = self.heard_as.take() {
            sleep.remove(number);
        }
    }
}

/// All bells of the process, and how many daemons it has outlived.
#[derive(Default)]
pub(crate) struct Bells {
    era: AtomicU64,
    list: Mutex<HashMap<BellName, Record>>,
}

impl Bells {
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

    /// Adds a bell, which nobody listens to yet.
    pub(crate) fn add(
        &self,
        name: BellName,
        bell: Arc<Bell>,
        peer: Arc<PeerBell>,
        far_end: FarEnd,
    ) {
        lock(&self.list).insert(name, Record { bell, peer, heard_as: None, far_end });
    }

    /// Our end and the peer's.
    pub(crate) fn get(&self, name: BellName) -> Option<(Arc<Bell>, Arc<PeerBell>)> {
        let list = lock(&self.list);
        list.get(&name).map(|record| (record.bell.clone(), record.peer.clone()))
    }

    /// It has a link: it is to wake us.
    pub(crate) fn hear(&self, name: BellName, sleep: &Sleeper) {
        if let Some(record) = lock(&self.list).get_mut(&name) {
            record.hear(sleep);
        }
    }

    /// Bells with links are to wake us, those without no more. Takes those out that are of a daemon
    /// that is gone and have none: nobody will tell us of their peers' end.
    pub(crate) fn review(&self, sleep: &Sleeper) -> Vec<Arc<Bell>> {
        let era = self.era();
        let mut over = Vec::new();
        lock(&self.list).retain(|(of, _), record| {
            let unused = record.bell.is_unused();
            match unused {
                true => record.hear_no_more(sleep),
                // Where there was no thread for it, there may be one now.
                false => record.hear(sleep),
            }
            if unused && *of != era {
                over.push(record.bell.clone());
            }
            !unused || *of == era
        });
        over
    }

    /// Takes the one with this name out: its peer is gone.
    pub(crate) fn remove(&self, name: BellName, sleep: &Sleeper) -> Option<Arc<Bell>> {
        let mut record = lock(&self.list).remove(&name)?;
        record.hear_no_more(sleep);
        Some(record.bell)
    }

    /// Whether each may wake us.
    #[cfg(test)]
    pub(crate) fn heard(&self) -> Vec<bool> {
        lock(&self.list).values().map(|record| record.heard_as.is_some()).collect()
    }

    /// Takes all out that the engine rang.
    pub(crate) fn remove_engines(&self, sleep: &Sleeper) -> Vec<Arc<Bell>> {
        let mut list = lock(&self.list);
        let dead = list.extract_if(|_, record| record.far_end == FarEnd::Engine);
        let dead: Vec<_> = dead.map(|(_, record)| record).collect();
        drop(list);
        let silence = |mut record: Record| {
            record.hear_no_more(sleep);
            record.bell
        };
        dead.into_iter().map(silence).collect()
    }
}
