//! The bells of all processes that have links here.

use super::bell::Bell;
use crate::command::Memory;
use omniverb_link::Doorbell;
use omniverb_sys::datagram::Port;
use omniverb_sys::{EventFd, Listener};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// By the control plane's numbers.
pub(super) struct Bells {
    bells: BTreeMap<u64, Bell>,
    /// Hears them while we sleep.
    listener: Listener,
    /// Signalled by it when one of them was rung.
    rung: Arc<EventFd>,
}

/// Starts a thread that hears bells.
fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Bells {
    pub(super) fn new() -> io::Result<Bells> {
        let rung = Arc::new(EventFd::new()?);
        let signal = rung.clone();
        let listener = Listener::new(spawn, move || signal.signal());
        Ok(Bells { bells: BTreeMap::new(), listener, rung })
    }

    /// Readable when one of them was rung while we slept.
    pub(super) fn rung(&self) -> &EventFd {
        &self.rung
    }

    /// A new one, over this memory: two pages, of which ours is the second. `carrier`: as in
    /// [`Bell::new`].
    pub(super) fn add(
        &mut self,
        number: u64,
        memory: &Memory,
        carrier: Option<Arc<Port>>,
    ) -> io::Result<()> {
        let bell = Bell::new(memory, carrier, &self.listener)?;
        self.bells.insert(number, bell);
        Ok(())
    }

    /// What the far end of a bell's links rings.
    pub(super) fn doorbell(&self, number: u64) -> Option<Arc<dyn Doorbell>> {
        self.bells.get(&number).map(Bell::doorbell)
    }

    /// A bell's bit stands for link `index`.
    pub(super) fn bind(&mut self, (number, slot): (u64, u32), index: usize) {
        if let Some(bell) = self.bells.get_mut(&number) {
            bell.bind(slot, index);
        }
    }

    /// The link at a bell's bit is gone.
    pub(super) fn unbind(&mut self, (number, slot): (u64, u32), index: usize) {
        if let Some(bell) = self.bells.get_mut(&number) {
            bell.unbind(slot, index);
        }
        self.drop_unused(number);
    }

    /// The control plane lets go of a bell with its last link; nobody would tell us later.
    pub(super) fn drop_unused(&mut self, number: u64) {
        if let Some(bell) = self.bells.get(&number).filter(|bell| bell.is_unused()) {
            bell.ring();
            self.listener.remove(bell.heard_as());
            self.bells.remove(&number);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bells.is_empty()
    }

    /// Has applications wake us.
    pub(super) fn want_kicks(&self) {
        self.bells.values().for_each(|bell| bell.want_kick());
    }

    /// Whether some link has news.
    pub(super) fn have_news(&self) -> bool {
        self.bells.values().any(|bell| bell.has_ready())
    }

    /// Takes the links that have news.
    pub(super) fn take_news(&self, mut each: impl FnMut(usize)) {
        for bell in self.bells.values().filter(|bell| bell.has_ready()) {
            bell.ready(&mut each);
        }
    }

    /// The end of a turn: wakes applications that are to be woken.
    pub(super) fn ring(&self) {
        self.bells.values().for_each(Bell::ring);
    }
}
