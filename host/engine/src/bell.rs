//! A bell shared with one client process: who of its links has news, and the way to wake it.

use crate::command::BellFiles;
use omniverb_link::Doorbell;
use omniverb_ring::{BellPage, Window};
use omniverb_sys::mapping::Access;
use omniverb_sys::{Sleeper, Waker, window};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE_BYTES: usize = omniverb_ring::bell::PAGE_BYTES;

/// Wakes the application, once for all that it is given in one turn of ours: woken for the first
/// record it would take our processor and find no other.
struct Ringer {
    page: BellPage<Window>,
    wake: Waker,
    due: AtomicBool,
}

impl Doorbell for Ringer {
    fn page(&self) -> &BellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        self.due.store(true, Ordering::Relaxed);
    }
}

/// Our end of a bell.
pub(crate) struct Bell {
    pub(crate) page: BellPage<Window>,
    ringer: Arc<Ringer>,
    /// Where we are woken.
    pub(crate) wait: Sleeper,
    /// Link by bit.
    links: HashMap<u32, usize>,
}

impl Bell {
    pub(crate) fn new(files: &BellFiles) -> io::Result<Bell> {
        let memory = window::map(files.memory.as_fd(), 2 * PAGE_BYTES, Access::ReadWrite)?;
        let page = |side: usize| {
            let part = memory.part(side * PAGE_BYTES, PAGE_BYTES);
            part.map(BellPage::new).ok_or_else(|| io::Error::other("a bell that is too small"))
        };
        let wake = Waker::received(files.wake.as_fd().try_clone_to_owned()?)?;
        let wait = Sleeper::received(files.wait.as_fd().try_clone_to_owned()?)?;
        let ringer = Arc::new(Ringer { page: page(0)?, wake, due: AtomicBool::new(false) });
        Ok(Bell { page: page(1)?, ringer, wait, links: HashMap::new() })
    }

    /// The end of a turn: wakes the application if it is to be woken.
    pub(crate) fn ring(&self) {
        if self.ringer.due.load(Ordering::Relaxed) {
            self.ringer.due.store(false, Ordering::Relaxed);
            self.ringer.wake.signal();
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
