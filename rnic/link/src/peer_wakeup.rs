//! Tells the peer of news, by its ready bit and a kick, if it asked for that; and what this end
//! asks for.

use crate::endpoint::{Doorbell, Endpoint};
use crate::layout::word;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use std::sync::Arc;

impl Endpoint {
    /// Whether we look at the rings by ourselves; if not, the peer sets our ready bit.
    pub fn set_watched(&mut self, watched: bool) {
        self.ours.store(word::WAKE, u64::from(!watched), Ordering::SeqCst);
    }

    /// We wait for the peer to consume, or no longer do. It notifies us while we do. True: it does
    /// from now on, and what it did just before we are to look for ourselves. (It publishes and
    /// then loads our word without a fence between, so once in a while both miss each other, for as
    /// long as its store takes: the progress thread looks a millisecond later, decision 0001.)
    #[inline(always)]
    pub fn set_blocked(&mut self, blocked: bool) -> bool {
        let changes = self.is_blocked != blocked;
        if changes {
            self.is_blocked = blocked;
            self.ours.store(word::BLOCKED, u64::from(blocked), Ordering::SeqCst);
        }
        changes && blocked
    }

    /// Something was published that the peer may be waiting for.
    #[inline(always)]
    pub(crate) fn notify(&mut self) {
        if self.theirs.load(word::WAKE, Ordering::Relaxed) != 0 {
            self.peer_page.set_ready(self.peer_slot);
        }
        if self.peer_page.take_kick() {
            self.has_kicked = true;
            self.doorbell.kick();
        }
    }

    /// Another process serves the peer's end from now on: this doorbell wakes it, by the bit
    /// `peer_slot` of its page, and does so at once, since news may lie in the link.
    pub fn switch_doorbell(&mut self, doorbell: Arc<dyn Doorbell>, peer_slot: u32) {
        self.peer_page = doorbell.page().clone();
        (self.doorbell, self.peer_slot) = (doorbell, peer_slot);
        self.notify_peer();
    }

    /// Wakes the peer, whether or not it asked for that, unless it was woken since
    /// [`Endpoint::content`].
    #[cold]
    pub fn insist(&mut self) {
        if !self.has_kicked {
            self.peer_page.set_ready(self.peer_slot);
            self.peer_page.take_kick();
            self.doorbell.kick();
        }
    }

    /// The peer consumes.
    pub fn content(&mut self) {
        self.has_kicked = false;
    }

    #[inline(always)]
    pub(crate) fn notify_blocked(&self) {
        if self.theirs.load(word::BLOCKED, Ordering::Relaxed) != 0 {
            self.notify_peer();
        }
    }

    #[cold]
    pub(crate) fn notify_peer(&self) {
        self.peer_page.set_ready(self.peer_slot);
        if self.peer_page.take_kick() {
            self.doorbell.kick();
        }
    }
}
