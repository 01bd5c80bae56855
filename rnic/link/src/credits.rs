//! Counts receives of the peer that a sender may count on: as many as were ever posted, less those
//! that messages of ours took.

use crate::layout::{NO_CREDITS, word};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Window, WordMemory};

/// What is known of the peer's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// No receive is posted that is not taken already.
    None,
    /// At least one, of at least `floor` bytes: the message will be placed.
    Promised {
        /// The least capacity among the receives ever posted, in bytes.
        floor: u64,
    },
    /// The peer's receives are shared: whether there is one shows when the message is consumed.
    Unpromised,
}

/// What a sender keeps of them.
#[derive(Default)]
pub(crate) struct Credits {
    /// Messages that took one of the peer's receives, modulo 2^32.
    used: u32,
    /// The peer's CREDITS word as last seen.
    seen: u64,
}

impl Credits {
    /// What is known; the peer's words are looked at only if no receive was left.
    #[inline(always)]
    pub(crate) fn look(&mut self, theirs: &Window) -> Credit {
        if self.left() == 0 || self.seen == NO_CREDITS {
            self.seen = theirs.load(word::CREDITS, Ordering::Acquire);
        }
        if self.seen == NO_CREDITS {
            return Credit::Unpromised;
        }
        match self.left() {
            // A peer that claims more than half the number space is wrong, and harms itself only.
            0 | 0x8000_0000.. => Credit::None,
            _ => Credit::Promised { floor: self.seen >> 32 },
        }
    }

    #[inline(always)]
    fn left(&self) -> u32 {
        (self.seen as u32).wrapping_sub(self.used)
    }

    /// Receives used so far, modulo 2^32.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Goes on after so many. What the peer has is looked up at once.
    pub(crate) fn resume(&mut self, used: u32) {
        *self = Credits { used, seen: u64::from(used) };
    }

    /// A message that takes a receive was sent.
    #[inline(always)]
    pub(crate) fn spend(&mut self) {
        self.used = self.used.wrapping_add(1);
    }
}
