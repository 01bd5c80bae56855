//! Describes one grant: a link's right to a part of a region, and its mapped pages.
//!
//! In: addresses that a peer names. Out: the window over them, if touching it neither waits for a
//! disk nor makes pages: they are the tenant's to make and to pay for.

use crate::command::Row;
use crate::pages::shared_extent_mappings::Hold;
use omniverb_ring::Window;
use omniverb_sys::mapping_as_ring_window::residency;
use omniverb_terms::Rkey;
use std::ops::Range;

const PAGE_BYTES: usize = 4096;
/// Pages that the kernel is asked about at a time.
const PAGES_AT_ONCE: usize = 32;
/// How long its answer is taken for true, in nanoseconds.
const RESIDENT_TIME: u64 = 1_000_000;

/// One grant: an extent, some of the whole pages of a region.
pub(crate) struct Grant {
    key: Rkey,
    access: u32,
    /// All whole pages of the region.
    region: Range<u64>,
    /// First address that is mapped.
    start: u64,
    mapped: Option<Hold>,
    /// Its row of pages, if they are where their owner always has them: an owner that takes them
    /// back waits for us. As long as it is mapped no other is in its place.
    row: Option<usize>,
    /// These bytes are in memory, or were a moment ago.
    resident: Range<usize>,
    /// Until when that is believed.
    until: u64,
}

impl Grant {
    pub(crate) fn new(key: Rkey, access: u32, start: u64, hold: Hold) -> Grant {
        let region = start..start.saturating_add(hold.window().len() as u64);
        let (mapped, resident) = (Some(hold), 0..0);
        Grant { key, access, region, start, mapped, row: None, resident, until: 0 }
    }

    /// Its pages are where their owner has them always.
    pub(crate) fn in_place(mut self, row: &Row) -> Grant {
        self.row = Some(std::ptr::from_ref(row).addr());
        self
    }

    /// Whether they are.
    pub(super) fn is_in_place(&self) -> bool {
        self.row.is_some()
    }

    /// Whether they are these.
    pub(super) fn is_of(&self, row: &Row) -> bool {
        self.row == Some(std::ptr::from_ref(row).addr())
    }

    /// There is more of the region, which begins at `address` and has `length` bytes.
    pub(crate) fn of_region(mut self, (address, length): (u64, u64)) -> Grant {
        let page = PAGE_BYTES as u64;
        let end = address.saturating_add(length);
        self.region = address.checked_next_multiple_of(page).unwrap_or(end)..end - end % page;
        self
    }

    pub(super) fn key(&self) -> Rkey {
        self.key
    }

    /// All whole pages of the region.
    pub(super) fn region(&self) -> Range<u64> {
        self.region.clone()
    }

    /// Whether it is a right to all of this (`IBV_ACCESS_*`; 0: what the owner may anyway).
    pub(super) fn allows(&self, access: u32) -> bool {
        self.access & access == access
    }

    /// The addresses that are mapped.
    pub(super) fn range(&self) -> Range<u64> {
        let length = self.mapped.as_ref().map_or(0, |hold| hold.window().len());
        self.start..self.start.saturating_add(length as u64)
    }

    /// Where so many bytes from `address` on are in the window, if all of them are.
    pub(super) fn offset_of(&self, address: u64, length: u64) -> Option<usize> {
        let mapped = self.mapped.as_ref()?.window().len() as u64;
        let offset = address.checked_sub(self.start)?;
        (offset <= mapped && length <= mapped - offset).then_some(offset as usize)
    }

    /// The window, if touching these bytes neither waits for a disk nor makes pages.
    pub(super) fn at_hand(&mut self, offset: usize, length: usize, now: u64) -> Option<&Window> {
        let window = self.mapped.as_ref()?.window();
        let end = offset.checked_add(length).filter(|end| *end <= window.len())?;
        if now >= self.until || offset < self.resident.start || end > self.resident.end {
            let first = offset - offset % PAGE_BYTES;
            let needed = (end - first).div_ceil(PAGE_BYTES);
            let count = needed.max(PAGES_AT_ONCE).min((window.len() - first) / PAGE_BYTES);
            let mut pages = [0; PAGES_AT_ONCE];
            let pages = pages.get_mut(..count)?;
            residency(window, first, pages).ok()?;
            let there = pages.iter().take_while(|page| **page & 1 != 0).count();
            self.resident = first..first + there * PAGE_BYTES;
            self.until = now + RESIDENT_TIME;
        }
        (end <= self.resident.end).then_some(window)
    }

    /// Asks the kernel again which of its pages are resident.
    #[cfg(test)]
    pub(super) fn look_again(&mut self) {
        self.until = 0;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(hold) = self.mapped.take() {
            hold.release();
        }
    }
}
