//! Tells whether a side uses a peer's pages, so that pages can be taken back without losing
//! anything.
//!
//! A side that carries out an operation on granted pages says so in its REACHING word, and looks at
//! the owner's EPOCH after that. An owner that takes pages back from peers that may have them again
//! advances EPOCH first, waits a moment, and then until no linked peer is at its pages. There is no
//! memory fence between the word and the look, so either may be missed; but not for a millisecond
//! (the same as for sleeping: decision 0001). So a peer that goes to the pages after that has seen
//! the new EPOCH, and turns round; one that was there before is waited for.
//!
//! An owner does not wait for ever. When it has had enough it advances EPOCH once more: a peer that
//! comes back and finds that it moved by two may have been at pages that are not used any more.

use crate::endpoint::Endpoint;
use crate::layout::{state, word};
use omniverb_ring::shared_atomics::{Ordering, fence};
use omniverb_ring::{Window, WordMemory};
use std::sync::atomic::compiler_fence;

/// Where the peer of a link that has ended says whether it is at our pages. It keeps the link's
/// memory until it is not: what is there afterwards may be anything.
pub struct PeerPageAccess {
    ours: Window,
    theirs: Window,
}

impl PeerPageAccess {
    /// Whether it is.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let there = self.theirs.load(word::REACHING, Ordering::Acquire) != 0; // SYNC: reached
        there && self.ours.load(word::STATE, Ordering::Acquire) == state::CLOSED
    }
}

impl Endpoint {
    /// Before going to granted pages. False: what was granted at `epoch` is void.
    #[inline(always)]
    pub fn enter_pages(&self, epoch: u64) -> bool {
        self.ours.store(word::REACHING, 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst); // SYNC: reached
        let valid = self.peer_epoch() == epoch;
        if !valid {
            self.ours.store(word::REACHING, 0, Ordering::Relaxed);
        }
        valid
    }

    /// As [`enter_pages`](Self::enter_pages), for pages that stay where they are: an owner that
    /// takes them back waits for peers that are there, and the page may be anything afterwards. So
    /// this word is seen before ours reads that one, whatever that costs: either the owner sees
    /// that we are there, or we see that it takes its pages back.
    pub fn enter_pages_that_stay(&self, epoch: u64) -> bool {
        self.ours.store(word::REACHING, 1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC: stays
        let valid = self.peer_epoch() == epoch;
        if !valid {
            self.ours.store(word::REACHING, 0, Ordering::Release);
        }
        valid
    }

    /// After it. False: the owner did not wait for it.
    #[inline(always)]
    pub fn leave_pages(&self, epoch: u64) -> bool {
        self.ours.store(word::REACHING, 0, Ordering::Release); // SYNC: reached
        // What was read there was read before this: pages that are taken back are emptied.
        fence(Ordering::Acquire);
        self.peer_epoch().wrapping_sub(epoch) < 2
    }

    /// The peer's revocation count after we have used pages that it granted. If it is what it was
    /// before, what we wrote was there before the peer began to take its pages back, and what we
    /// read was its own memory still.
    #[inline(always)]
    pub fn peer_epoch_afterwards(&self) -> u64 {
        fence(Ordering::SeqCst); // SYNC: revoked
        self.theirs.load(word::EPOCH, Ordering::Acquire)
    }

    /// Whether the peer is at pages of ours that stay where they are ([`enter_pages_that_stay`]);
    /// to be asked at once after [`Endpoint::advance_epoch`], and until it is not: then it never
    /// will be by what was granted before.
    ///
    /// [`enter_pages_that_stay`]: Endpoint::enter_pages_that_stay
    #[must_use]
    pub fn peer_reaches_pages_that_stay(&self) -> bool {
        fence(Ordering::SeqCst); // SYNC: stays
        self.theirs.load(word::REACHING, Ordering::Acquire) != 0 // SYNC: reached
    }

    /// The peer's word that says so, for when this endpoint is closed and no more.
    #[must_use]
    pub fn stay(&self) -> PeerPageAccess {
        PeerPageAccess { ours: self.ours.clone(), theirs: self.theirs.clone() }
    }

    /// Whether the peer is at our pages; to be asked a moment after [`Endpoint::advance_epoch`].
    pub fn peer_reaches_pages(&self) -> bool {
        self.theirs.load(word::REACHING, Ordering::Acquire) != 0 // SYNC: reached
    }
}
