//! Keeps extents: the parts of regions whose pages live on memory files, so that they can be
//! granted.
//!
//! The daemon makes the files; an owner moves pages onto them. A grant is the right to a range of a
//! region; an extent is the bytes that hold it, in any file (`extent_file_allocator.rs`): a row of
//! its own, that grants refer to and that goes with the last of them. Only ranges near peers'
//! accesses are moved, since a fork of the owner copies them all: the first extent is small, and
//! every further one doubles the moved bytes or closes a gap, so a region has few.

use crate::accounts::{Paid, Receipt};
use crate::limits::Limits;
use crate::memory::extent_file_allocator::{
    FileId, FilePerExtent, FileRange, FreedPlace, Layout, PageHome, Placement,
};
use crate::row_keys::SessionId;
use crate::sessions::memory_region::PAGE_BYTES;
use omniverb_terms::{Errno, Rkey};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a region's first extent.
const FIRST_BYTES: u64 = 2 << 20;

/// Names an extent; none is given twice.
pub(crate) type ExtentId = u64;

/// Set in the names of files that are none: of extents whose pages stay where they are. No layout
/// has so many files.
const IN_PLACE: FileId = 1 << 63;

/// A region: its owner and its key.
pub(crate) type RegionKey = (SessionId, Rkey);

/// Whether an owner has moved an extent's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// It was asked to, and has not answered.
    OnTheirWay,
    /// It has: they can be granted.
    There,
}

/// A part of a region, and where its bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) region: RegionKey,
    /// Its first page, as the owner has it.
    pub(crate) start: u64,
    pub(crate) place: FileRange,
    pub(crate) home: PageHome,
    pub(crate) pages: Pages,
}

/// All extents, and where each region's are.
pub(crate) struct Extents {
    rows: BTreeMap<ExtentId, Paid<Extent>>,
    /// By owner, key and first page.
    by_start: BTreeMap<(SessionId, Rkey, u64), ExtentId>,
    last: ExtentId,
    layout: Box<dyn Layout>,
}

impl Default for Extents {
    fn default() -> Extents {
        Extents::new(Box::<FilePerExtent>::default())
    }
}

impl Extents {
    /// No extents yet; `layout` says where they will be.
    pub(crate) fn new(layout: Box<dyn Layout>) -> Extents {
        Extents { rows: BTreeMap::new(), by_start: BTreeMap::new(), last: 0, layout }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.by_start.is_empty()
    }

    /// All, with what they pay.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Paid<Extent>> {
        self.rows.values()
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Extent> {
        self.rows.get(&id).map(|row| &**row)
    }

    /// Those of a region, in the order of their pages.
    pub(crate) fn of_region(
        &self,
        (owner, rkey): RegionKey,
    ) -> impl Iterator<Item = (ExtentId, &Extent)> {
        let all = self.by_start.range((owner, rkey, 0)..=(owner, rkey, u64::MAX));
        all.filter_map(|(_, id)| Some((*id, self.get(*id)?)))
    }

    /// Those of all regions of an owner.
    pub(crate) fn of_owner(&self, owner: SessionId) -> Vec<ExtentId> {
        let all = self.by_start.range((owner, Rkey(0), 0)..=(owner, Rkey(u32::MAX), u64::MAX));
        all.map(|(_, id)| *id).collect()
    }

    /// Those that lie in such a place.
    pub(crate) fn at_home(
        &self,
        which: impl Fn(&PageHome) -> bool,
    ) -> impl Iterator<Item = ExtentId> {
        let those = self.rows.iter().filter(move |(_, row)| which(&row.home));
        those.map(|(id, _)| *id)
    }

    /// The one that begins there.
    pub(crate) fn at(&self, (owner, rkey): RegionKey, start: u64) -> Option<ExtentId> {
        self.by_start.get(&(owner, rkey, start)).copied()
    }

    /// Adds an extent whose pages are on their way. Returns the bytes of its file, if that is to be
    /// made.
    pub(crate) fn add(
        &mut self,
        region: RegionKey,
        part: &Part,
        home: PageHome,
        receipt: Receipt,
    ) -> Result<(ExtentId, Option<u64>), Errno> {
        let placed = match home {
            PageHome::InPlace => {
                let file = IN_PLACE | (self.last + 1);
                let place = FileRange { file, offset: 0, length: part.length };
                Placement { place, new_file: None }
            }
            _ => self.layout.place(region.0, home, part.length).ok_or(Errno::ENOMEM)?,
        };
        self.last += 1;
        let (start, place, pages) = (part.start, placed.place, Pages::OnTheirWay);
        let extent = Extent { region, start, place, home, pages };
        let before = self.by_start.insert((region.0, region.1, part.start), self.last);
        debug_assert!(before.is_none(), "extents do not overlap");
        self.rows.insert(self.last, receipt.pays_for(extent));
        Ok((self.last, placed.new_file))
    }

    /// Its pages have come.
    pub(crate) fn arrived(&mut self, id: ExtentId) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.pages = Pages::There;
        }
    }

    /// It is no more: where it was, and what that makes free.
    pub(crate) fn remove(&mut self, id: ExtentId) -> Option<(FileRange, FreedPlace)> {
        let row = self.rows.remove(&id)?;
        let Extent { region, start, place, .. } = *row;
        self.by_start.remove(&(region.0, region.1, start));
        let freed = match row.home {
            PageHome::InPlace => FreedPlace::File,
            _ => self.layout.free(&place),
        };
        Some((place, freed))
    }
}

/// The part of a region that an extent covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: u64,
    length: u64,
    pages: Pages,
}

impl Extent {
    /// The part of its region that it covers.
    pub(crate) fn span(&self) -> Span {
        Span { start: self.start, length: self.place.length, pages: self.pages }
    }
}

/// A part of a region to ask an owner for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first page, as the owner has it.
    pub(crate) start: u64,
    /// Bytes, whole pages.
    pub(crate) length: u64,
    pub(crate) standing: PartState,
}

/// The owner's task for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartState {
    /// Move pages: there is no extent for it yet.
    Fresh,
    /// Nothing: it has moved them.
    Known,
}

impl Part {
    /// There is no extent for it yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.standing == PartState::Fresh
    }
}

/// The part of a region to ask for, so that `address` and some of the `length` bytes from there on
/// are in it. `known`: extents that exist or are on their way, in order.
pub(crate) fn choose(
    whole: &Range<u64>,
    known: impl Iterator<Item = Span>,
    (address, length): (u64, u64),
    limits: &Limits,
) -> Result<Part, Errno> {
    if !whole.contains(&address) {
        return Err(Errno::ERANGE);
    }
    let (mut gap, mut bytes, mut count) = (whole.clone(), 0, 0);
    for Span { start, length, pages } in known {
        let end = start + length;
        if (start..end).contains(&address) {
            return match pages {
                Pages::There => Ok(Part { start, length, standing: PartState::Known }),
                Pages::OnTheirWay => Err(Errno::EAGAIN),
            };
        }
        if end <= address {
            gap.start = gap.start.max(end);
        } else {
            gap.end = gap.end.min(start);
        }
        bytes += length;
        count += 1;
    }
    if count >= limits.extents_per_region {
        return Err(Errno::ENOMEM);
    }
    // Where a file is as large as it may be they lie side by side: gaps would make many.
    if bytes >= limits.extent_bytes {
        let side = address - address % limits.extent_bytes;
        gap.start = gap.start.max(side);
        gap.end = gap.end.min(side.saturating_add(limits.extent_bytes));
    }
    let wanted_end = address.saturating_add(length.max(1)).min(gap.end);
    let wanted_end = wanted_end.next_multiple_of(PAGE_BYTES).min(gap.end);
    let start = (address - address % FIRST_BYTES.min(limits.extent_bytes)).max(gap.start);
    let length = bytes.max(FIRST_BYTES).max(wanted_end - start).min(limits.extent_bytes);
    // As long as that, if the gap is; so it begins earlier where the gap ends.
    let start = start.min(gap.end.saturating_sub(length)).max(gap.start);
    // A bound on its length must not cut off the requested bytes.
    let start = start.max((address + 1).next_multiple_of(PAGE_BYTES).saturating_sub(length));
    let length = length.min(gap.end - start);
    Ok(Part { start, length, standing: PartState::Fresh })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    /// Asks for accesses in an arbitrary order until all is there; checks each part on the way, and
    /// the number of extents in the end.
    fn cover(whole: Range<u64>, length: u64, limits: &Limits, seed: u64) -> usize {
        let mut known = BTreeMap::<u64, Span>::new();
        let mut random = seed | 1;
        for _ in 0..100_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let address = whole.start + random % (whole.end - whole.start);
            let list = known.values().copied();
            let part = choose(&whole, list, (address, length), limits).unwrap();
            assert!((part.start..part.start + part.length).contains(&address));
            assert!(
                part.start.is_multiple_of(PAGE_BYTES) && part.length.is_multiple_of(PAGE_BYTES)
            );
            assert!(part.start >= whole.start && part.start + part.length <= whole.end);
            if !part.is_fresh() {
                continue;
            }
            let total: u64 = known.values().map(|extent| extent.length).sum();
            let most = (2 * total.max(FIRST_BYTES)).max(length + FIRST_BYTES + PAGE_BYTES);
            assert!(part.length <= most.min(limits.extent_bytes), "no more than is due");
            for (start, extent) in &known {
                let apart =
                    part.start + part.length <= *start || start + extent.length <= part.start;
                assert!(apart, "extents do not overlap");
            }
            let Part { start, length, .. } = part;
            known.insert(start, Span { start, length, pages: Pages::There });
            let total: u64 = known.values().map(|extent| extent.length).sum();
            if total == whole.end - whole.start {
                break;
            }
        }
        known.len()
    }

    #[test]
    fn extents_mapped_from_one_peer_are_bounded() {
        let limits = Limits { extents_per_region: 1000, ..Limits::default() };
        for seed in 1..3 {
            let count = cover(0x7000..0x7000 + 32 * 1024 * MIB, 4096, &limits, seed);
            assert!(count <= Limits::default().extents_per_region, "{count}");
        }
    }

    /// A thread that touches a page of a file waits while a hole is punched around it.
    #[test]
    fn a_file_is_no_larger_than_a_hole_that_others_can_wait_for() {
        let limits = Limits::default();
        let known = [Span { start: 0, length: 1 << 30, pages: Pages::There }].into_iter();
        let part = choose(&(0..8 << 30), known, (3 << 30, 2 << 30), &limits).unwrap();
        assert!(part.length <= 256 * MIB, "{part:?}");
    }

    #[test]
    fn a_region_has_few_extents_for_any_accesses() {
        let limits = Limits::default();
        for seed in 1..50 {
            assert_eq!(cover(0x1000..0x3000, 8, &limits, seed), 1);
            assert!(cover(0x1000..0x1000 + 300 * MIB, 8, &limits, seed) <= 20);
            let long = Limits { extent_bytes: 1 << 40, ..Limits::default() };
            assert!(cover(0..1 << 40, 4096, &long, seed) <= limits.extents_per_region);
            assert!(cover(0x7000..0x7000 + 64 * MIB, 5 * MIB, &limits, seed) <= 14);
        }
    }

    #[test]
    fn the_first_extent_is_small_and_around_the_access() {
        let (whole, limits) = (0x1000..0x1000 + 300 * MIB, Limits::default());
        let first = |address, length| {
            choose(&whole, std::iter::empty(), (address, length), &limits).unwrap()
        };
        assert_eq!(
            first(5 * MIB, 8),
            Part { start: 4 * MIB, length: 2 * MIB, standing: PartState::Fresh }
        );
        assert_eq!(
            first(0x1000, 8),
            Part { start: 0x1000, length: 2 * MIB, standing: PartState::Fresh }
        );
        let end = 0x1000 + 300 * MIB;
        assert_eq!(
            first(end - 8, 8),
            Part { start: end - 2 * MIB, length: 2 * MIB, standing: PartState::Fresh }
        );
        let large = first(6 * MIB, 9 * MIB);
        assert_eq!((large.start, large.length), (6 * MIB, 9 * MIB));
        assert_eq!(first(0x1000, u64::MAX).length, 256 * MIB);
        assert_eq!(choose(&whole, std::iter::empty(), (0xfff, 8), &limits), Err(Errno::ERANGE));
    }
}
