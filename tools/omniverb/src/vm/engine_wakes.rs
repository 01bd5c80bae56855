//! Carries wakes between a machine's processes and the host, whose futexes are of different
//! kernels.
//!
//! Processes of the machine share doorbells with the engine of its host. In: the doorbells that
//! their processes get. A thread of ours listens for wakes of the engine and sends it a message;
//! the engine sends one when it has rung any doorbell, and threads that sleep on it are woken here.
//! The message is empty: the receiver checks the counters of all doorbells, so that none is lost
//! when several become one.

use omniverb_ring::{DoorbellPage, Window};
use omniverb_session::Message;
use omniverb_session::body::{Extent as Said, LinkReady};
use omniverb_sys::{Access, DoorbellListener, EventFd, Extent, futex};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of one side's page.
const PAGE: usize = omniverb_ring::doorbell::PAGE_BYTES;
/// Doorbells with the engine that a process has at a time: one, and one that takes its place.
const BELLS_MAX: usize = 4;

/// A doorbell between a process and the engine.
struct Bell {
    /// The listener's name of the engine's page.
    heard_as: u64,
    /// Where the process is woken.
    page: DoorbellPage<Window>,
    /// Its counter, when it was looked at last.
    seen: u32,
}

/// Those of all processes.
pub(super) struct Wakes {
    listener: DoorbellListener,
    rung: Arc<EventFd>,
    /// By session and the daemon's number.
    bells: BTreeMap<(u32, u64), Bell>,
}

/// Starts a thread that hears doorbells.
pub(super) fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Wakes {
    pub(super) fn new() -> io::Result<Wakes> {
        let rung = Arc::new(EventFd::new()?);
        let signal = rung.clone();
        let listener = DoorbellListener::new(spawn, move || signal.signal());
        Ok(Wakes { listener, rung, bells: BTreeMap::new() })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.bells.len()
    }

    /// Readable when the engine is to be woken.
    pub(super) fn rung(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }

    /// Forgets that it was to be.
    pub(super) fn take(&self) {
        self.rung.take();
    }

    /// Takes a message to a process: if it is about a doorbell with the engine, that is listened to
    /// from now on, or no longer.
    ///
    /// # Errors
    /// If it cannot be listened to: no room for mappings, or threads. The process would sleep on.
    pub(super) fn told(
        &mut self,
        session: u32,
        message: &Message,
        window: &Arc<OwnedFd>,
    ) -> io::Result<()> {
        match message {
            Message::LinkReady(ready) if ready.engine != 0 && ready.bell_new != 0 => {
                let bell = self.bell(ready, window)?;
                self.forget((session, ready.bell));
                self.bells.insert((session, ready.bell), bell);
                let of_session = self.bells.range((session, 0)..=(session, u64::MAX));
                if of_session.count() > BELLS_MAX {
                    let oldest = self.bells.range((session, 0)..).next().map(|(key, _)| *key);
                    oldest.into_iter().for_each(|key| self.forget(key));
                }
            }
            Message::BellClosed(closed) => self.forget((session, closed.bell)),
            _ => {}
        }
        Ok(())
    }

    fn bell(&self, ready: &LinkReady, window: &Arc<OwnedFd>) -> io::Result<Bell> {
        let Said { offset, length } = ready.bell_memory;
        let memory = Extent::new(window.clone(), offset, length);
        let memory = memory.map_exactly(2 * PAGE, Access::ReadWrite)?;
        let page = |side: u32| {
            let part = memory.part(side as usize % 2 * PAGE, PAGE);
            part.map(DoorbellPage::new).ok_or(io::ErrorKind::InvalidData)
        };
        let (own, engine) = (page(ready.bell_side)?, page(ready.bell_side ^ 1)?);
        // Whatever was rung before is looked at when a word comes next, or is seen by the process
        // itself, which has not slept on it yet.
        let seen = futex::low(own.rung());
        Ok(Bell { heard_as: self.listener.add(engine)?, page: own, seen })
    }

    fn forget(&mut self, key: (u32, u64)) {
        if let Some(bell) = self.bells.remove(&key) {
            self.listener.remove(bell.heard_as);
        }
    }

    /// A process is gone.
    pub(super) fn gone(&mut self, session: u32) {
        let of_session = self.bells.range((session, 0)..=(session, u64::MAX));
        let keys: Vec<_> = of_session.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }

    /// No doorbell is listened to any more: a new proxy knows no session.
    pub(super) fn clear(&mut self) {
        let keys: Vec<_> = self.bells.keys().copied().collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }

    /// The engine may have rung: wakes threads that sleep on doorbells it has rung.
    pub(super) fn wake(&mut self) {
        for bell in self.bells.values_mut() {
            let before = std::mem::replace(&mut bell.seen, futex::low(bell.page.rung()));
            if before != bell.seen {
                futex::wake(bell.page.rung(), 1);
            }
        }
    }
}
