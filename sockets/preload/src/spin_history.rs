//! Remembers of a link, of a set and of light connections whether looks before a sleep paid off.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::backoff::{LookOutcome, Looks};

/// Where the history of looks is kept ([`Looks`]), which threads share. Of two that write at the
/// same time one is forgotten.
#[derive(Clone, Copy)]
pub(crate) struct LookHistory<'a> {
    pub(crate) vain: &'a AtomicU64,
    pub(crate) skip: &'a AtomicU64,
}

impl LookHistory<'_> {
    fn read(self) -> Looks {
        Looks { vain: self.vain.load(Ordering::Acquire), skip: self.skip.load(Ordering::Acquire) }
    }

    /// This call is one that looks; those after some in vain do not.
    pub(crate) fn is_due(self) -> bool {
        let looks = self.read();
        if looks.skip > 0 {
            self.skip.store(looks.after_skip().skip, Ordering::Release);
        }
        looks.skip == 0
    }

    /// How looking, or not looking, went.
    pub(crate) fn record(self, how: LookOutcome) {
        let Looks { vain, skip } = self.read().after(how);
        self.vain.store(vain, Ordering::Release);
        self.skip.store(skip, Ordering::Release);
    }
}
