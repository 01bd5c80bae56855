//! Counts the links of a CQ, and tells when its polls may let others go first; see `pause`.

use crate::link_peer::FarEnd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A yield that took longer let another thread run, in nanoseconds.
const CONTENDED: u64 = 5_000;
/// How long that is remembered, in nanoseconds.
const REMEMBERED: u64 = 1_000_000;
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
pub(super) struct LinkCount {
    counts: AtomicU64,
    /// The number of the poll that comes next, if it is in a row of empty ones; and the row.
    next: AtomicU64,
    row: AtomicU32,
    /// Until when others are believed to want this processor.
    contended_until: AtomicU64,
}

impl LinkCount {
    pub(super) fn add(&self, far_end: FarEnd) {
        self.counts.fetch_add(unit(far_end), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, far_end: FarEnd) {
        self.counts.fetch_sub(unit(far_end), Ordering::Relaxed);
    }

    /// Whether there are links to the engine, and no others.
    #[inline(always)]
    pub(super) fn all_lead_to_engine(&self) -> bool {
        self.to_engine().is_some()
    }

    /// Whether there are links to the engine.
    #[inline(always)]
    pub(super) fn some_lead_to_engine(&self) -> bool {
        !self.counts.load(Ordering::Relaxed).is_multiple_of(DIRECT)
    }

    /// How many there are, if they are all links to the engine.
    #[inline(always)]
    pub(super) fn to_engine(&self) -> Option<usize> {
        let count = self.counts.load(Ordering::Relaxed);
        (1..DIRECT).contains(&count).then_some(count as usize)
    }

    /// The processor was given away at one time and came back at another, in nanoseconds: whether
    /// others want it.
    pub(super) fn had_to_share(&self, gave: u64, back: u64) -> bool {
        if back.saturating_sub(gave) >= CONTENDED {
            self.contended_until.store(back + REMEMBERED, Ordering::Relaxed);
        }
        back < self.contended_until.load(Ordering::Relaxed)
    }

    /// Poll `number` found nothing: whether that was one more than so many in a row. Pollers that
    /// poll at once merely miscount.
    pub(super) fn is_in_vain_again(&self, number: u64, patience: u32) -> bool {
        let in_a_row = self.next.swap(number.wrapping_add(1), Ordering::Relaxed) == number;
        let row = if in_a_row { self.row.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.row.store(row, Ordering::Relaxed);
        row >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wire_links_all_lead_to_engine() {
        let links = LinkCount::default();
        assert!(!links.all_lead_to_engine() && !links.some_lead_to_engine());
        links.add(FarEnd::Engine);
        links.add(FarEnd::Engine);
        assert!(links.all_lead_to_engine() && links.some_lead_to_engine());
        links.add(FarEnd::Process);
        assert!(!links.all_lead_to_engine() && links.some_lead_to_engine());
        links.remove(FarEnd::Engine);
        links.remove(FarEnd::Engine);
        assert!(!links.all_lead_to_engine() && !links.some_lead_to_engine());
        links.add(FarEnd::Engine);
        links.remove(FarEnd::Process);
        assert!(links.all_lead_to_engine());
    }

    #[test]
    fn a_long_yield_says_that_others_want_the_processor_for_a_while() {
        let links = LinkCount::default();
        assert!(!links.had_to_share(1000, 1000 + CONTENDED - 1));
        assert!(links.had_to_share(2000, 2000 + CONTENDED));
        assert!(links.had_to_share(9000, 9001), "a moment ago");
        assert!(!links.had_to_share(REMEMBERED + 9000, REMEMBERED + 9001));
    }

    #[test]
    fn a_row_ends_with_a_poll_that_finds_something() {
        const PATIENCE: u32 = 4;
        let links = LinkCount::default();
        let first =
            |from: u64| (from..from + 1000).find(|poll| links.is_in_vain_again(*poll, PATIENCE));
        let patience = u64::from(PATIENCE);
        assert_eq!(first(10), Some(10 + patience));
        assert!(links.is_in_vain_again(11 + patience, PATIENCE));
        // Poll 12 + patience was not empty.
        assert_eq!(first(13 + patience), Some(13 + 2 * patience));
    }
}
