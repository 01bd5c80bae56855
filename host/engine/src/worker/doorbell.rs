//! Rings and reads the doorbell that a packet thread shares with one client process.

use crate::command::Memory;
use omniverb_link::Doorbell;
use omniverb_ring::{DoorbellPage, Window};
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{DoorbellListener, doorbell_listener, lock};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const PAGE_BYTES: usize = omniverb_ring::doorbell::PAGE_BYTES;

/// Numbers of doorbells that are to be rung at the end of a turn. Copies are the same.
pub(crate) type DueRings = Arc<Mutex<Vec<u64>>>;

/// Wakes the application, once for all that it is given in one turn of ours: woken for the first
/// record it would take our processor and find no other.
struct Ringer {
    number: u64,
    page: DoorbellPage<Window>,
    due: AtomicBool,
    all_due: DueRings,
}

impl Doorbell for Ringer {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        if !self.due.swap(true, Ordering::Relaxed) {
            lock(&self.all_due).push(self.number);
        }
    }
}

/// Our end of a doorbell.
pub(crate) struct Bell {
    page: DoorbellPage<Window>,
    ringer: Arc<Ringer>,
    /// The listener's name of our page.
    heard_as: u64,
    /// The index of a link, by its bit in our page.
    links: HashMap<u32, usize>,
    /// Tells applications of another kernel, which a futex does not reach.
    carrier: Option<Arc<UdpPort>>,
}

impl Bell {
    /// Over this memory: its two pages; ours is the second. `carrier`: the process that carries
    /// this port wakes applications of a machine, and gets a message when a doorbell was rung.
    pub(crate) fn new(
        number: u64,
        memory: &Memory,
        carrier: Option<Arc<UdpPort>>,
        (listener, due_rings): (&DoorbellListener, &DueRings),
    ) -> io::Result<Bell> {
        let memory = memory.map_exactly(2 * PAGE_BYTES)?;
        let page = |side: usize| {
            let part = memory.part(side * PAGE_BYTES, PAGE_BYTES);
            part.map(DoorbellPage::new)
                .ok_or_else(|| io::Error::other("the memory of a doorbell is too small"))
        };
        let (due, all_due) = (AtomicBool::new(false), due_rings.clone());
        let ringer = Arc::new(Ringer { number, page: page(0)?, due, all_due });
        let heard_as = listener.add(page(1)?)?;
        Ok(Bell { page: page(1)?, ringer, heard_as, links: HashMap::new(), carrier })
    }

    /// The listener's name of our page.
    pub(crate) fn heard_as(&self) -> u64 {
        self.heard_as
    }

    /// Has the application wake us when one of its links has news.
    pub(crate) fn want_kick(&self) {
        self.page.want_kick();
    }

    /// Whether one of them has.
    pub(crate) fn has_ready(&self) -> bool {
        self.page.has_ready()
    }

    /// The end of a turn: wakes the application if it is to be woken.
    pub(crate) fn ring(&self) {
        if self.ringer.due.load(Ordering::Relaxed) {
            self.ringer.due.store(false, Ordering::Relaxed);
            doorbell_listener::ring(&self.ringer.page);
            if let Some(carried) = self.carrier.as_deref().and_then(UdpPort::carried) {
                carried.say();
            }
        }
    }

    pub(crate) fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.ringer.clone()
    }

    /// Bit `slot` stands for link `index`.
    pub(crate) fn bind(&mut self, slot: u32, index: usize) {
        self.links.insert(slot, index);
    }

    /// The link at this bit is gone.
    pub(crate) fn unbind(&mut self, slot: u32, index: usize) {
        if self.links.get(&slot) == Some(&index) {
            self.links.remove(&slot);
        }
    }

    /// No link is left.
    pub(crate) fn is_unused(&self) -> bool {
        self.links.is_empty()
    }

    /// Takes the links that have news.
    pub(crate) fn ready(&self, mut each: impl FnMut(usize)) {
        self.page.take_ready(|slot| {
            if let Some(index) = self.links.get(&slot) {
                each(*index);
            }
        });
    }
}
