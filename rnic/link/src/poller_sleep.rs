//! Lets a polling program sleep until the far end has consumed a good part of what is under way,
//! while others want its processor.
//!
//! Each side writes words of its own page alone. The napping side writes up to where it waits, then
//! the number of the nap; the far end answers by writing that number into its own word, and wakes
//! it. Neither uses a fence between writing its word and reading the other's: a wake can be missed,
//! so every nap is short.

use crate::endpoint::Endpoint;
use crate::layout::word;
use omniverb_ring::shared_atomics::{AtomicU64, Ordering};
use omniverb_ring::{Broken, Window, WordMemory};

/// A nap; over when this is dropped.
pub struct PollerNap {
    ours: Window,
    theirs: Window,
    woken: u64,
}

impl PollerNap {
    /// The word to sleep on, while its low half is this.
    pub fn place(&self) -> (&AtomicU64, u32) {
        (self.theirs.word(word::WOKEN), self.woken as u32)
    }
}

impl Drop for PollerNap {
    fn drop(&mut self) {
        self.ours.store(word::NAP, 0, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Bytes of requests that the peer has not consumed.
    pub fn under_way(&mut self) -> Result<u64, Broken> {
        let position = self.requests_out.position();
        Ok(position - self.requests_out.consumed(position)?)
    }

    /// Asks to be woken when the peer has consumed another `bytes`, or gives us something. `None`:
    /// that has happened already.
    pub fn begin_nap(&mut self, bytes: u64) -> Result<Option<PollerNap>, Broken> {
        let until = self.requests_out.position() - self.under_way()? + bytes;
        let woken = self.theirs.load(word::WOKEN, Ordering::Acquire);
        // Never the number that the peer has answered already, and never zero.
        self.naps.number = (self.naps.number.max(woken).wrapping_add(1)).max(1);
        self.ours.store(word::NAP_UNTIL, until, Ordering::Relaxed);
        self.ours.store(word::NAP, self.naps.number, Ordering::SeqCst);
        let nap = PollerNap { ours: self.ours.clone(), theirs: self.theirs.clone(), woken };
        let over = self.has_news() || self.requests_out.consumed(until)? >= until;
        Ok((!over).then_some(nap))
    }

    /// At the engine's end: whether the peer naps, and has not been woken from this nap although it
    /// should be.
    pub fn nap_is_over(&mut self) -> bool {
        let sent = self.requests_out.position() + self.responses_out.position();
        let given = std::mem::replace(&mut self.naps.sent, sent) != sent;
        let nap = self.theirs.load(word::NAP, Ordering::Acquire);
        nap != 0
            && nap != self.naps.number
            && (given
                || self.requests_in.position()
                    >= self.theirs.load(word::NAP_UNTIL, Ordering::Relaxed))
    }

    /// At the engine's end: answers the nap. A sleeper on the word is to be woken then.
    pub fn answer_nap(&mut self) -> &AtomicU64 {
        self.naps.number = self.theirs.load(word::NAP, Ordering::Acquire);
        self.ours.store(word::WOKEN, self.naps.number, Ordering::Release);
        self.ours.word(word::WOKEN)
    }
}
