//! When a poll gives up the processor.
//!
//! News of a direct link come from a peer that has a processor of its own, or is woken. News of a
//! wire link come from the engine, a thread of this very machine: where there are few processors,
//! who polls for them without a pause keeps the engine from bringing them. So polls of a CQ with
//! wire links only, and nothing in it, let others go first after a while. Where nobody wants the
//! processor that costs a fraction of a microsecond; polls that may bring a direct peer's news
//! never pay it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Empty polls in a row that are made without a pause.
const PATIENCE: u32 = 4;
/// Direct links are counted in units of this, wire links in units of one.
const DIRECT: u64 = 1 << 32;

/// The links that hang on a CQ.
#[derive(Default)]
pub(crate) struct Links {
    counts: AtomicU64,
    /// The number of the poll that comes next, if it is in a row of empty ones; and the row.
    next: AtomicU64,
    row: AtomicU32,
}

impl Links {
    pub(crate) fn add(&self, wire: bool) {
        self.counts.fetch_add(if wire { 1 } else { DIRECT }, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, wire: bool) {
        self.counts.fetch_sub(if wire { 1 } else { DIRECT }, Ordering::Relaxed);
    }

    /// Whether there are wire links, and no others.
    #[inline(always)]
    pub(crate) fn are_wire(&self) -> bool {
        (1..DIRECT).contains(&self.counts.load(Ordering::Relaxed))
    }

    /// Poll `number` found nothing. True: enough of that. Several pollers at once merely miscount.
    pub(crate) fn had_nothing(&self, number: u64) -> bool {
        let in_a_row = self.next.swap(number.wrapping_add(1), Ordering::Relaxed) == number;
        let row = if in_a_row { self.row.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.row.store(row, Ordering::Relaxed);
        row >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wire_links_are_wire() {
        let links = Links::default();
        assert!(!links.are_wire());
        links.add(true);
        links.add(true);
        assert!(links.are_wire());
        links.add(false);
        assert!(!links.are_wire());
        links.remove(true);
        links.remove(true);
        assert!(!links.are_wire());
        links.add(true);
        links.remove(false);
        assert!(links.are_wire());
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
