//! Extents: the parts of regions whose pages live on memory files, so that they can be granted.
//!
//! The files are made by the daemon; an owner moves pages onto them. A grant is the right to a
//! range of a region; an extent (a file, from its beginning, for so many bytes) is what holds it.
//! Only what peers come near is moved, since a fork of the owner copies it all: the first extent is
//! small, and every further one doubles what there is or closes a gap, so a region has few.

use crate::accounts::{Kind, Paid, Receipt};
use crate::action::Action;
use crate::errno::{EAGAIN, ENOENT, ENOMEM, ERANGE};
use crate::limits::Limits;
use crate::tables::{Mr, SessionId};
use crate::tenancy::Tenancy;
use std::ops::Range;

pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of a region's first extent.
const FIRST_BYTES: u64 = 2 << 20;

/// Names a memory file that the daemon made.
pub type MemoryId = u64;

/// A part of a region; the table's key says which region and where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) length: u64,
    pub(crate) memory: MemoryId,
    /// The owner has moved its pages.
    pub(crate) there: bool,
}

/// What is to be asked of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// There is no file for it yet.
    pub(crate) fresh: bool,
}

/// The whole pages of a region.
pub(crate) fn pages(mr: &Mr) -> Range<u64> {
    let end = mr.addr.saturating_add(mr.length) & !(PAGE_BYTES - 1);
    let start = mr.addr.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end);
    start..end.max(start)
}

/// The part of a region to ask for, so that `address` and some of the `length` bytes from there on
/// are in it. `known`: what is there or on its way, by start.
pub(crate) fn choose<'a>(
    whole: &Range<u64>,
    known: impl Iterator<Item = (u64, &'a Extent)>,
    (address, length): (u64, u64),
    limits: &Limits,
) -> Result<Part, u32> {
    if !whole.contains(&address) {
        return Err(ERANGE);
    }
    let (mut gap, mut bytes, mut count) = (whole.clone(), 0, 0);
    for (start, extent) in known {
        let end = start + extent.length;
        if (start..end).contains(&address) {
            let part = Part { start, length: extent.length, fresh: false };
            return if extent.there { Ok(part) } else { Err(EAGAIN) };
        }
        if end <= address {
            gap.start = gap.start.max(end);
        } else {
            gap.end = gap.end.min(start);
        }
        bytes += extent.length;
        count += 1;
    }
    if count >= limits.extents_per_region {
        return Err(ENOMEM);
    }
    // Where a file is as large as it may be they lie side by side: gaps would make many.
    if bytes >= limits.extent_bytes {
        let side = address - address % limits.extent_bytes;
        gap.start = gap.start.max(side);
        gap.end = gap.end.min(side.saturating_add(limits.extent_bytes));
    }
    let wanted_end = address.saturating_add(length.max(1)).min(gap.end);
    let wanted_end = wanted_end.next_multiple_of(PAGE_BYTES).min(gap.end);
    let start = (address - address % FIRST_BYTES).max(gap.start);
    let length = bytes.max(FIRST_BYTES).max(wanted_end - start).min(limits.extent_bytes);
    // As long as that, if the gap is; so it begins earlier where the gap ends.
    let start = start.min(gap.end.saturating_sub(length)).max(gap.start);
    // A bound on its length must not cut off what is asked for.
    let start = start.max((address + 1).next_multiple_of(PAGE_BYTES).saturating_sub(length));
    let length = length.min(gap.end - start);
    Ok(Part { start, length, fresh: true })
}

impl Tenancy {
    /// The part of a key's region to ask its owner for, with what a new extent for it pays;
    /// `u64::MAX` bytes are all of the region.
    pub(crate) fn choose_part(
        &self,
        owner: SessionId,
        (rkey, mr): (u32, &Mr),
        (address, length): (u64, u64),
    ) -> Result<(Part, Option<Receipt>), u32> {
        let session = self.sessions.get(&owner).ok_or(ENOENT)?;
        let known = session.extents.range((rkey, 0)..=(rkey, u64::MAX));
        let known = known.map(|((_, start), extent)| (*start, &**extent));
        let part = choose(&pages(mr), known, (address, length), &self.limits)?;
        let receipt = part.fresh.then(|| session.account.charge(&[Kind::Extent])).transpose()?;
        Ok((part, receipt))
    }

    /// An extent is on its way.
    pub(crate) fn add_extent(
        &mut self,
        owner: SessionId,
        rkey: u32,
        (part, receipt): (&Part, Receipt),
        memory: MemoryId,
    ) {
        let Some(session) = self.sessions.get_mut(&owner) else { return };
        let extent = Extent { length: part.length, memory, there: false };
        let before = session.extents.insert((rkey, part.start), receipt.pays_for(extent));
        debug_assert!(before.is_none(), "extents do not overlap");
    }

    /// An extent of this owner, if it is on this file.
    pub(crate) fn extent_on(
        &mut self,
        owner: SessionId,
        (rkey, start): (u32, u64),
        memory: MemoryId,
    ) -> Option<&mut Paid<Extent>> {
        let session = self.sessions.get_mut(&owner)?;
        session.extents.get_mut(&(rkey, start)).filter(|extent| extent.memory == memory)
    }

    /// The file of an extent.
    pub(crate) fn memory_at(&self, owner: SessionId, rkey: u32, start: u64) -> Option<MemoryId> {
        Some(self.sessions.get(&owner)?.extents.get(&(rkey, start))?.memory)
    }

    /// Nobody is granted this extent any more.
    pub(crate) fn remove_extent(&mut self, owner: SessionId, rkey: u32, start: u64) {
        let Some(session) = self.sessions.get_mut(&owner) else { return };
        let Some(extent) = session.extents.remove(&(rkey, start)) else { return };
        self.release_holders(extent.memory);
        self.out.push(Action::ForgetMemory { memory: extent.memory });
    }

    /// Its owner has taken back what it had on files of this key's. What it is asked for at this
    /// moment it answers yet.
    pub(crate) fn extents_released(&mut self, owner: SessionId, rkey: u32) {
        self.remove_those(owner, rkey, |extent| extent.there);
    }

    /// Nor any of this key.
    pub(crate) fn remove_extents(&mut self, owner: SessionId, rkey: u32) {
        self.remove_those(owner, rkey, |_| true);
    }

    fn remove_those(&mut self, owner: SessionId, rkey: u32, which: impl Fn(&Extent) -> bool) {
        let Some(session) = self.sessions.get(&owner) else { return };
        let of_key = session.extents.range((rkey, 0)..=(rkey, u64::MAX));
        let of_key = of_key.filter(|(_, extent)| which(extent));
        let starts: Vec<u64> = of_key.map(|((_, start), _)| *start).collect();
        for start in starts {
            self.remove_extent(owner, rkey, start);
        }
    }

    /// Nor any of this owner.
    pub(crate) fn remove_all_extents(&mut self, owner: SessionId) {
        let Some(session) = self.sessions.get(&owner) else { return };
        let all: Vec<(u32, u64)> = session.extents.keys().copied().collect();
        for (rkey, start) in all {
            self.remove_extent(owner, rkey, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    fn mr(addr: u64, length: u64) -> Mr {
        Mr { pd: 1, access: 4, addr, length }
    }

    #[test]
    fn whole_pages() {
        assert_eq!(pages(&mr(0x10800, 0x3000)), 0x11000..0x13000);
        assert!(pages(&mr(0x10800, 0x900)).is_empty());
        assert!(pages(&mr(u64::MAX - 10, 5)).is_empty());
    }

    /// Asks for accesses in an arbitrary order until all is there; what is asked for is checked on
    /// the way, and how many extents there are in the end.
    fn cover(whole: Range<u64>, length: u64, limits: &Limits, seed: u64) -> usize {
        let mut known = BTreeMap::<u64, Extent>::new();
        let mut random = seed | 1;
        for _ in 0..100_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let address = whole.start + random % (whole.end - whole.start);
            let list = known.iter().map(|(start, extent)| (*start, extent));
            let part = choose(&whole, list, (address, length), limits).unwrap();
            assert!((part.start..part.start + part.length).contains(&address));
            assert!(
                part.start.is_multiple_of(PAGE_BYTES) && part.length.is_multiple_of(PAGE_BYTES)
            );
            assert!(part.start >= whole.start && part.start + part.length <= whole.end);
            if !part.fresh {
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
            known.insert(part.start, Extent { length: part.length, memory: 0, there: true });
            let total: u64 = known.values().map(|extent| extent.length).sum();
            if total == whole.end - whole.start {
                break;
            }
        }
        known.len()
    }

    #[test]
    fn what_a_process_maps_of_one_peer_has_no_more_extents_than_there_may_be() {
        let limits = Limits { extents_per_region: 1000, ..Limits::default() };
        for seed in 1..3 {
            let count = cover(0x7000..0x7000 + 32 * 1024 * MIB, 4096, &limits, seed);
            assert!(count <= Limits::default().extents_per_region, "{count}");
        }
    }

    /// Who touches a page of a file waits while somebody punches a hole around it.
    #[test]
    fn a_file_is_no_larger_than_a_hole_that_others_can_wait_for() {
        let limits = Limits::default();
        let known = [(0, Extent { length: 1 << 30, memory: 0, there: true })];
        let known = known.iter().map(|(start, extent)| (*start, extent));
        let part = choose(&(0..8 << 30), known, (3 << 30, 2 << 30), &limits).unwrap();
        assert!(part.length <= 256 * MIB, "{part:?}");
    }

    #[test]
    fn a_region_has_few_extents_whatever_is_asked_for() {
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
    fn what_is_asked_for_first_is_small_and_around_the_access() {
        let (whole, limits) = (0x1000..0x1000 + 300 * MIB, Limits::default());
        let first = |address, length| {
            choose(&whole, std::iter::empty(), (address, length), &limits).unwrap()
        };
        assert_eq!(first(5 * MIB, 8), Part { start: 4 * MIB, length: 2 * MIB, fresh: true });
        assert_eq!(first(0x1000, 8), Part { start: 0x1000, length: 2 * MIB, fresh: true });
        let end = 0x1000 + 300 * MIB;
        assert_eq!(first(end - 8, 8), Part { start: end - 2 * MIB, length: 2 * MIB, fresh: true });
        let large = first(6 * MIB, 9 * MIB);
        assert_eq!((large.start, large.length), (6 * MIB, 9 * MIB));
        assert_eq!(first(0x1000, u64::MAX).length, 256 * MIB);
        assert_eq!(choose(&whole, std::iter::empty(), (0xfff, 8), &limits), Err(ERANGE));
    }
}
