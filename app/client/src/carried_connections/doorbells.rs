//! Doorbells of a link both ends of which are in this process.

use super::network_thread_sleep::Waker;
use omniverb_link::Doorbell;
use omniverb_ring::{DoorbellPage, Window};
use omniverb_sys::doorbell_listener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes whatever serves the queue pairs, as an engine's end does.
pub(super) struct QueuePairBell {
    /// The queue pairs' page of the doorbell that they have in common with the engine.
    pub(super) page: DoorbellPage<Window>,
    pub(super) by_thread: Arc<ServedByThread>,
}

/// Whether the network thread is at work, which serves the queue pairs itself afterwards: no other
/// thread need be woken for them.
#[derive(Default)]
pub(super) struct ServedByThread {
    is_at_work: AtomicBool,
    is_due: AtomicBool,
}

impl ServedByThread {
    /// The thread does some work. True: queue pairs are to be served now.
    pub(super) fn work(&self, work: impl FnOnce()) -> bool {
        self.is_at_work.store(true, Ordering::Relaxed);
        work();
        self.is_at_work.store(false, Ordering::Relaxed);
        self.is_due.swap(false, Ordering::Relaxed)
    }
}

impl Doorbell for QueuePairBell {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        if self.by_thread.is_at_work.load(Ordering::Relaxed) {
            // The next one is to wake the sleeper still.
            self.page.want_kick();
            self.by_thread.is_due.store(true, Ordering::Relaxed);
        } else {
            doorbell_listener::ring(&self.page);
        }
    }
}

/// Tells that a queue pair did something, and wakes the network thread.
pub(super) struct NetworkBell {
    /// A page of this process alone: the engine's is for links that the engine serves.
    pub(super) page: DoorbellPage<Window>,
    pub(super) waker: Arc<Waker>,
}

impl Doorbell for NetworkBell {
    fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        self.waker.wake();
    }
}
