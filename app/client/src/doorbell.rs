//! Our end of the bell that we share with one peer process.

use omniverb_device::poller::Bell;
use omniverb_link::Doorbell;
use omniverb_ring::{BellPage, Window};
use omniverb_sys::{Sleeper, Waker};
use std::sync::Arc;

/// Rings the peer.
pub(crate) struct PeerBell {
    page: BellPage<Window>,
    wake: Waker,
}

impl PeerBell {
    pub(crate) fn new(page: BellPage<Window>, wake: Waker) -> Arc<PeerBell> {
        Arc::new(PeerBell { page, wake })
    }
}

impl Doorbell for PeerBell {
    fn page(&self) -> &BellPage<Window> {
        &self.page
    }

    fn kick(&self) {
        self.wake.signal();
    }
}

/// One bell, both directions.
pub(crate) struct BellRecord {
    /// Our page.
    pub(crate) bell: Arc<Bell>,
    /// The peer's.
    pub(crate) peer: Arc<PeerBell>,
    /// Where we are woken.
    pub(crate) wake: Arc<Sleeper>,
    /// The peer is the daemon's engine.
    pub(crate) engine: bool,
}
