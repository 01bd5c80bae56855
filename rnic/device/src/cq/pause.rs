//! When a poll gives up the processor.
//!
//! News of a direct link come from a peer that has a processor of its own, or is woken. News of a
//! link to the engine come from a thread of this very machine: where there are few processors, who
//! polls for them without a pause keeps the engine from bringing them. So polls of a CQ with links
//! to the engine only, and nothing in it, let others go first after a while. Where nobody wants the
//! processor that costs a fraction of a microsecond; polls that may bring a direct peer's news
//! never pay it.
//!
//! Where somebody did want it, and much is under way, yielding is not enough: the kernel gives who
//! polls its fair share all the same, a third of two processors for nothing. Then a poll takes a
//! nap (see `omniverb_link::nap`), until the engine has done a good part of what is under way.

use crate::cq::Cq;
use crate::qp::FarEnd;
use omniverb_link::nap::Nap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Empty polls in a row that are made without a pause.
const PATIENCE: u32 = 4;
/// A yield that took longer let somebody else run, in nanoseconds.
const CONTENDED: u64 = 5_000;
/// How long that is remembered, in nanoseconds.
const REMEMBERED: u64 = 1_000_000;
/// Bytes under way on a link that are worth a nap: sending them takes longer than waking up.
const MUCH: u64 = 256 << 10;

/// Direct links are counted in units of this, links to the engine in units of one.
const DIRECT: u64 = 1 << 32;

/// What a link counts.
fn unit(far_end: FarEnd) -> u64 {
    match far_end {
        FarEnd::Process => DIRECT,
        FarEnd::Engine => 1,
    }
}

/// The links that hang on a CQ.
#[derive(Default)]
pub(crate) struct Links {
    counts: AtomicU64,
    /// The number of the poll that comes next, if it is in a row of empty ones; and the row.
    next: AtomicU64,
    row: AtomicU32,
    /// Until when others are believed to want this processor.
    contended_until: AtomicU64,
}

impl Links {
    pub(crate) fn add(&self, far_end: FarEnd) {
        self.counts.fetch_add(unit(far_end), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, far_end: FarEnd) {
        self.counts.fetch_sub(unit(far_end), Ordering::Relaxed);
    }

    /// Whether there are links to the engine, and no others.
    #[inline(always)]
    pub(crate) fn all_lead_to_engine(&self) -> bool {
        self.to_engine().is_some()
    }

    /// How many there are, if they are all links to the engine.
    #[inline(always)]
    fn to_engine(&self) -> Option<usize> {
        let count = self.counts.load(Ordering::Relaxed);
        (1..DIRECT).contains(&count).then_some(count as usize)
    }

    /// The processor was given away at one time and came back at another. True: others want it.
    fn had_to_share(&self, gave: u64, back: u64) -> bool {
        if back.saturating_sub(gave) >= CONTENDED {
            self.contended_until.store(back + REMEMBERED, Ordering::Relaxed);
        }
        back < self.contended_until.load(Ordering::Relaxed)
    }

    /// Poll `number` found nothing. True: enough of that. Several pollers at once merely miscount.
    pub(crate) fn had_nothing(&self, number: u64) -> bool {
        let in_a_row = self.next.swap(number.wrapping_add(1), Ordering::Relaxed) == number;
        let row = if in_a_row { self.row.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.row.store(row, Ordering::Relaxed);
        row >= PATIENCE
    }
}

impl Cq {
    /// Nothing came, and only the engine can bring something.
    #[cold]
    pub(crate) fn pause(&self) {
        if !self.links.had_nothing(self.polls.load(Ordering::Relaxed)) {
            return;
        }
        let host = &self.shared.host;
        let before = host.now();
        std::thread::yield_now();
        if self.links.had_to_share(before, host.now())
            && let Some(nap) = self.lie_down()
        {
            let (word, value) = nap.place();
            host.nap(word, value);
        }
    }

    /// Begins a nap, if much is under way on all links of this CQ, on the one with the least.
    fn lie_down(&self) -> Option<Nap> {
        let count = self.links.to_engine()?;
        let list = self.watch.list.try_lock()?;
        if list.links.len() != count {
            return None;
        }
        let mut least = None;
        for watched in &list.links {
            let bytes = watched.qp.try_inner()?.links.get_mut(watched.index)?.endpoint.under_way();
            let bytes = bytes.ok().filter(|bytes| *bytes >= MUCH)?;
            if least.is_none_or(|(_, fewest)| bytes < fewest) {
                least = Some((watched, bytes));
            }
        }
        let (watched, bytes) = least?;
        let mut inner = watched.qp.try_inner()?;
        inner.links.get_mut(watched.index)?.endpoint.begin_nap(bytes / 3).ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wire_links_all_lead_to_engine() {
        let links = Links::default();
        assert!(!links.all_lead_to_engine());
        links.add(FarEnd::Engine);
        links.add(FarEnd::Engine);
        assert!(links.all_lead_to_engine());
        links.add(FarEnd::Process);
        assert!(!links.all_lead_to_engine());
        links.remove(FarEnd::Engine);
        links.remove(FarEnd::Engine);
        assert!(!links.all_lead_to_engine());
        links.add(FarEnd::Engine);
        links.remove(FarEnd::Process);
        assert!(links.all_lead_to_engine());
    }

    #[test]
    fn a_long_yield_says_that_others_want_the_processor_for_a_while() {
        let links = Links::default();
        assert!(!links.had_to_share(1000, 1000 + CONTENDED - 1));
        assert!(links.had_to_share(2000, 2000 + CONTENDED));
        assert!(links.had_to_share(9000, 9001), "a moment ago");
        assert!(!links.had_to_share(REMEMBERED + 9000, REMEMBERED + 9001));
    }

    #[test]
    fn a_row_ends_with_a_poll_that_finds_something() {
        let links = Links::default();
        let first = |from: u64| (from..from + 1000).find(|poll| links.had_nothing(*poll));
        let patience = u64::from(PATIENCE);
        assert_eq!(first(10), Some(10 + patience));
        assert!(links.had_nothing(11 + patience));
        // Poll 12 + patience was not empty.
        assert_eq!(first(13 + patience), Some(13 + 2 * patience));
    }
}
