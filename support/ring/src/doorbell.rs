//! Implements one side's page of a doorbell, by which two processes report news.
//!
//! ```text
//! 0x00 kick      1: the owner may be asleep, wake it
//! 0x08 rung      how often the owner was woken; it sleeps on the low half of this
//! 0x10 life      the thread that the owner ends with; DIED: it has ended, says the kernel
//! 0x40 summary   bit w: word w of the map may have bits
//! 0x80 map       64 words of 64 bits, one bit per link
//! ```
//!
//! **Ordering of the map.** The ringer sets the link's bit, then the summary bit if it is not
//! there; the owner takes the summary, then the words it names. All are sequentially consistent
//! read-modify-writes (the look at the summary is a sequentially consistent load): if the ringer's
//! look finds the summary bit still set, that look precedes the owner's taking it, so the owner
//! takes the word after the link's bit was set. No bit is lost (SYNC: ready).
//!
//! **Ordering of kick.** The owner sets `kick` and looks at its rings once more before it sleeps;
//! the ringer publishes a record and then loads `kick`. Without a full fence on the ringer's side,
//! which the data path cannot afford, both may miss each other. The owner therefore looks again a
//! millisecond later before it sleeps without a limit: by then every store that preceded the
//! ringer's load has long left its core.
//!
//! **Ordering of rung.** The ringer that took the kick adds to `rung` and then wakes the sleeper on
//! it; the kernel compares `rung` with what the owner saw last as it puts the owner to sleep.
//! Between the two there is no gap in which a wake could be lost.
//!
//! **Ordering of life.** The kernel stores DIED while the owner's process ends, and before the end
//! can be seen: by a wait for the process, by a poll of a pidfd of it, or by the closed other end
//! of a socket. So a process that has seen the end, or was told by one that has, loads what the
//! kernel stored, or something later; a relaxed load is enough. `life` is in the line of `kick`,
//! which ringers look at anyway (decision 0040).

use crate::shared_atomics::{AtomicU64, Ordering};
use crate::word_memory::WordMemory;

const KICK: usize = 0x00;
const RUNG: usize = 0x08;
const LIFE: usize = 0x10;
const SUMMARY: usize = 0x40;
const MAP: usize = 0x80;

/// Links a page can tell apart.
pub const SLOTS: u32 = 64 * 64;
/// Where in a page `life` is, in bytes. The kernel looks at the low half, a futex.
pub const LIFE_OFFSET: usize = LIFE;
/// What the kernel leaves in `life` when the owner has ended: `FUTEX_OWNER_DIED`.
pub const DIED: u64 = 0x4000_0000;
/// Bytes a page needs.
pub const PAGE_BYTES: usize = 4096;

/// One side's page of a doorbell.
#[derive(Clone)]
pub struct DoorbellPage<M> {
    memory: M,
}

impl<M: WordMemory> DoorbellPage<M> {
    /// Over `PAGE_BYTES` bytes.
    pub fn new(memory: M) -> Self {
        assert!(memory.length() >= MAP + 64 * 8);
        Self { memory }
    }

    /// Ringer: link `slot` has news.
    pub fn set_ready(&self, slot: u32) {
        let (word, bit) = ((slot / 64) as usize & 63, 1u64 << (slot % 64));
        let map = self.memory.word(MAP + word * 8);
        // SYNC: ready
        if map.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return;
        }
        let summary = self.memory.word(SUMMARY);
        if summary.load(Ordering::SeqCst) & (1 << word) == 0 {
            summary.fetch_or(1 << word, Ordering::SeqCst);
        }
    }

    /// Ringer: whether the owner must be woken. True once per sleep.
    #[inline(always)]
    pub fn take_kick(&self) -> bool {
        let kick = self.memory.word(KICK);
        kick.load(Ordering::Relaxed) != 0 && kick.swap(0, Ordering::SeqCst) != 0
    }

    /// Ringer: counts one wake. A sleeper on [`rung`](Self::rung) is to be woken then.
    pub fn count_ring(&self) {
        self.memory.word(RUNG).fetch_add(1, Ordering::SeqCst);
    }

    /// The word the owner sleeps on.
    pub fn rung(&self) -> &AtomicU64 {
        self.memory.word(RUNG)
    }

    /// Ringer: whether the owner's process has ended. Says no if the kernel does not tell.
    #[inline(always)]
    pub fn owner_has_died(&self) -> bool {
        self.memory.load(LIFE, Ordering::Relaxed) & DIED != 0
    }

    /// Owner: I may sleep from now on.
    pub fn want_kick(&self) {
        self.memory.word(KICK).store(1, Ordering::SeqCst);
    }

    /// Owner: whether the next ringer will kick.
    pub fn wants_kick(&self) -> bool {
        self.memory.load(KICK, Ordering::Relaxed) != 0
    }

    /// Owner: whether any link may have news.
    #[inline(always)]
    pub fn has_ready(&self) -> bool {
        self.memory.load(SUMMARY, Ordering::Relaxed) != 0
    }

    /// Owner: takes all ready links and calls `each` with their slots.
    pub fn take_ready(&self, mut each: impl FnMut(u32)) {
        // SYNC: ready
        let mut words = self.memory.word(SUMMARY).swap(0, Ordering::SeqCst);
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let mut bits = self.memory.word(MAP + word as usize * 8).swap(0, Ordering::SeqCst);
            while bits != 0 {
                each(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}
