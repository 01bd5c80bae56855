//! Decides when a poll gives up the processor.
//!
//! News of a direct link come from a peer that has a processor of its own, or is woken. News of a
//! link to the engine come from a thread of this very machine: where there are few processors, a
//! program that polls for them without a pause keeps the engine from bringing them. So polls of a
//! CQ with links to the engine only, and nothing in it, yield after a while. If no other thread
//! wants the processor that costs a fraction of a microsecond; polls that may bring a direct peer's
//! news never pay it.
//!
//! If another thread did want it, and much is under way, yielding is not enough: the kernel gives
//! the polling thread its fair share all the same, a third of two processors for nothing. Then a
//! poll takes a nap (see `omniverb_link::poller_sleep`), until the engine has done a good part of
//! what is under way.

use crate::cq::Cq;
use omniverb_link::poller_sleep::PollerNap;

/// Empty polls in a row that are made without a pause.
const PATIENCE: u32 = 4;
/// As `PATIENCE`, where polls read the network themselves: so many take longer than an answer of an
/// idle host. On a busy one the processor is of more use to others, a peer on it among them.
const PATIENCE_CARRYING: u32 = 64;

/// Bytes under way on a link that are worth a nap: sending them takes longer than waking up.
const MUCH: u64 = 256 << 10;

impl Cq {
    /// Nothing came, and only the engine can bring something.
    #[cold]
    pub(crate) fn pause(&self) {
        let host = &self.shared.host;
        let carries = host.carries_connections();
        let patience = if carries { PATIENCE_CARRYING } else { PATIENCE };
        if !self.links.is_in_vain_again(self.attendance.polls(), patience) {
            return;
        }
        let before = host.now();
        std::thread::yield_now();
        let mut after = host.now();
        if self.links.had_to_share(before, after)
            && !carries
            && let Some(nap) = self.lie_down()
        {
            let (word, value) = nap.place();
            host.nap(word, value);
            after = host.now();
        }
        self.attendance.waited(after.saturating_sub(before));
    }

    /// Begins a nap, if much is under way on all links of this CQ, on the one with the least.
    fn lie_down(&self) -> Option<PollerNap> {
        let count = self.links.to_engine()?;
        let list = self.watch.try_lock()?;
        if list.links.len() != count {
            return None;
        }
        let mut least = None;
        for watched in &list.links {
            let bytes = watched.qp.try_inner()?.links.under_way(watched.index);
            let bytes = bytes.filter(|bytes| *bytes >= MUCH)?;
            if least.is_none_or(|(_, fewest)| bytes < fewest) {
                least = Some((watched, bytes));
            }
        }
        let (watched, bytes) = least?;
        watched.qp.try_inner()?.links.begin_nap(watched.index, bytes / 3)
    }
}
