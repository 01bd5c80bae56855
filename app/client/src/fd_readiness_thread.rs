//! Polls the daemon's socket, and descriptors of other libraries, for the progress thread, which
//! sleeps on doorbells and reads them itself.

use crate::errno_conversion::errno_of;
use crate::signal_free_thread::spawn_quietly;
use omniverb_sys::epoll::{Interest, Poller};
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// There is one socket at a time. The other numbers are those of watches.
const EVENTS: u64 = 0;

/// What the thread that listens shares with the one that takes.
pub(crate) struct FdReadinessThread {
    poller: Poller,
    heard: AtomicBool,
    /// Watches whose descriptors are ready; no more than there are, as each is reported once.
    watched: Mutex<Vec<u64>>,
    started: AtomicBool,
}

impl FdReadinessThread {
    pub(crate) fn new() -> Result<Arc<FdReadinessThread>, Errno> {
        let poller = Poller::new().map_err(|error| errno_of(&error))?;
        Ok(Arc::new(FdReadinessThread {
            poller,
            heard: AtomicBool::new(false),
            watched: Mutex::default(),
            started: AtomicBool::new(false),
        }))
    }

    /// Starts the thread, once, which calls `nudge` after there was something.
    pub(crate) fn start(
        self: &Arc<FdReadinessThread>,
        nudge: impl Fn() + Send + 'static,
    ) -> Result<(), Errno> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let daemon_listener = self.clone();
        let listening = spawn_quietly("omniverb-events", move || {
            let mut ready = Vec::new();
            while daemon_listener.poller.wait(None, &mut ready).is_ok() {
                if !ready.is_empty() {
                    let watched = ready.iter().filter(|token| **token != EVENTS);
                    lock(&daemon_listener.watched).extend(watched);
                    if ready.contains(&EVENTS) {
                        daemon_listener.heard.store(true, Ordering::Release);
                    }
                    nudge();
                }
            }
        });
        listening.inspect_err(|_| self.started.store(false, Ordering::Release))
    }

    /// Listens to this socket, too; whether it can.
    pub(crate) fn add(&self, socket: &OwnedFd) -> bool {
        self.poller.add_once(socket, EVENTS, Interest::Input).is_ok()
    }

    /// Listens to it, or watches it, no longer.
    pub(crate) fn remove(&self, socket: &OwnedFd) {
        let _ = self.poller.remove(socket);
    }

    /// Tells once more if there is, or comes, something in this socket, or room in it.
    pub(crate) fn again(&self, socket: &OwnedFd, interest: Interest) {
        let _ = self.poller.once_more(socket, EVENTS, interest);
    }

    /// Tells once when there is something in `file`, or room, as watch `number`, which is not 0.
    pub(crate) fn watch(
        &self,
        file: &OwnedFd,
        number: u64,
        interest: Interest,
    ) -> Result<(), Errno> {
        self.poller.add_once(file, number, interest).map_err(|error| errno_of(&error))
    }

    /// Tells once more of a watch.
    pub(crate) fn watch_on(&self, file: &OwnedFd, number: u64, interest: Interest) {
        let _ = self.poller.once_more(file, number, interest);
    }

    /// The watches that something is ready for.
    pub(crate) fn take_watched(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.watched))
    }

    /// Whether something was heard of the daemon since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.heard.swap(false, Ordering::Acquire)
    }
}
