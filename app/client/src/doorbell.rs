//! Our end of the bell that we share with one peer process.

use omniverb_device::poller::Bell;
use omniverb_link::Doorbell;
use omniverb_ring::{BellPage, Window};
use omniverb_sys::listener;
use std::sync::Arc;

/// Rings the peer.
pub(crate) struct PeerBell {
    page: BellPage<Window>,
}

impl PeerBell {
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

/// One bell, both directions.
pub(crate) struct BellRecord {
    /// Our page.
    pub(crate) bell: Arc<Bell>,
    /// The peer's.
    pub(crate) peer: Arc<PeerBell>,
    /// What our sleep calls our page; `None` while it has no links: then nobody is to wake us.
    pub(crate) heard_as: Option<u64>,
    /// The peer is the daemon's engine.
    pub(crate) engine: bool,
}
