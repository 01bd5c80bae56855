//! Mappings of peers' regions that the daemon granted to a QP.
//!
//! A grant is the right to a part of a region, and comes with the pages that hold it. Of a region
//! there are several parts, few in number: an owner hands out more the more its peers move
//! (`omniverb_link::page_grant_pacing`). Most regions are one part, and most QPs use one region at
//! a time: that case is found at the first look.

use crate::limits::{DETOURS_MAX, EXTENTS_MAX, GRANTS_MAX, MEDIATED_MAX, PAGE_BYTES};
use crate::platform::Host;
use crate::resident_peer_pages::{Pages, ResidencyGeneration};
use omniverb_link::page_grant_pacing::{Advice, KeyMoves};
use omniverb_ring::Window;
use omniverb_terms::Rkey;
use std::ops::Range;

pub use crate::resident_peer_pages::Backing;
pub use omniverb_link::page_grant_pacing::Denial;

/// One grant: an extent, some of the whole pages of a region, mapped.
#[derive(Clone)]
pub struct Grant {
    /// The R_Key that the peer's region has.
    pub rkey: Rkey,
    /// `IBV_ACCESS_*`: what it may be used for.
    pub access: u32,
    /// First address of the region, as requests name it.
    pub address: u64,
    /// Bytes of the region.
    pub length: u64,
    /// First address that is mapped: that of a whole page of the region.
    pub page_start: u64,
    /// Low half of the owner's EPOCH when it gave them.
    pub epoch: u32,
    /// The pages, from `page_start` on.
    pub window: Window,
    /// Whether they have to be made.
    pub backing: Backing,
}

/// A grant in use.
struct Extent {
    rkey: Rkey,
    access: u32,
    start: u64,
    window: Window,
    pages: Pages,
    /// When it became the one that is looked at first.
    used: u64,
    /// All whole pages of the region.
    region: Range<u64>,
}

impl Extent {
    /// Where an access lies in it, if wholly.
    #[inline(always)]
    fn offset(&self, rkey: Rkey, address: u64, length: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.start);
        let mapped = self.window.len() as u64;
        let inside = self.rkey == rkey && offset <= mapped && length <= mapped - offset;
        inside.then_some(offset as usize)
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.window.len() as u64
    }
}

/// A key that was asked for.
struct AskedKey {
    rkey: Rkey,
    pace: KeyMoves,
    /// What was asked for last.
    address: u64,
}

/// What a QP was granted, and what it asked for.
#[derive(Default)]
pub(crate) struct Grants {
    epoch: u64,
    list: Vec<Extent>,
    /// The extent that was used last.
    latest: usize,
    uses: u64,
    asked: Vec<AskedKey>,
    /// Short WRITEs in a row that went through the ring although their target is mapped.
    detours: u32,
}

/// How an access relates to what was granted.
pub(crate) enum GrantLookup {
    /// It lies wholly in an extent.
    Mapped(ExtentOffset),
    /// It lies in several extents that follow each other.
    Spread,
    /// Ask the daemon for these bytes, and let the responder decide meanwhile.
    Ask(u64, u64),
    /// Let the responder decide.
    Mediated,
}

/// A place in an extent; good until the next look-up.
#[derive(Clone, Copy)]
pub(crate) struct ExtentOffset {
    extent: usize,
    offset: usize,
}

impl Grants {
    /// Looks an access up. `epoch`: the peer's, which voids everything when it moves.
    #[inline(always)]
    pub(crate) fn reach(
        &mut self,
        epoch: u64,
        rkey: Rkey,
        (address, length): (u64, u64),
        access: u32,
    ) -> GrantLookup {
        if epoch != self.epoch {
            self.void(epoch);
        }
        match self.known(epoch, rkey, (address, length), access) {
            Some(place) => GrantLookup::Mapped(place),
            None => self.elsewhere(rkey, (address, length), access),
        }
    }

    /// The place of an access that lies wholly in one extent.
    #[inline(always)]
    pub(crate) fn known(
        &mut self,
        epoch: u64,
        rkey: Rkey,
        (address, length): (u64, u64),
        access: u32,
    ) -> Option<ExtentOffset> {
        if epoch != self.epoch {
            return None;
        }
        let latest = self.list.get(self.latest)?;
        if let Some(offset) = latest.offset(rkey, address, length) {
            let place = ExtentOffset { extent: self.latest, offset };
            return (latest.access & access == access).then_some(place);
        }
        self.find(rkey, (address, length), access)
    }

    fn find(
        &mut self,
        rkey: Rkey,
        (address, length): (u64, u64),
        access: u32,
    ) -> Option<ExtentOffset> {
        let mut all = self.list.iter_mut().enumerate();
        let (extent, offset) = all.find_map(|(index, extent)| {
            let offset = extent.offset(rkey, address, length)?;
            self.uses += 1;
            extent.used = self.uses;
            Some((index, offset))
        })?;
        self.latest = extent;
        let allowed = self.list.get(extent).is_some_and(|e| e.access & access == access);
        allowed.then_some(ExtentOffset { extent, offset })
    }

    /// An access that lies in no single extent, or is not allowed in the one it lies in.
    #[cold]
    fn elsewhere(&mut self, rkey: Rkey, (address, length): (u64, u64), access: u32) -> GrantLookup {
        if let Some(extent) = self.list.iter().find(|extent| extent.rkey == rkey) {
            // The head or tail of the region, on pages it shares with others, is not mapped.
            let end = address.checked_add(length);
            let whole =
                address >= extent.region.start && end.is_some_and(|end| end <= extent.region.end);
            if extent.access & access != access || !whole {
                return GrantLookup::Mediated;
            }
        }
        let (mut at, mut left) = (address, length);
        while left > 0 {
            let mut ranges = self.list.iter().filter(|e| e.rkey == rkey).map(Extent::range);
            let Some(range) = ranges.find(|range| range.contains(&at)) else { break };
            let step = (range.end - at).min(left);
            (at, left) = (at + step, left - step);
        }
        if left == 0 {
            return if length == 0 { GrantLookup::Mediated } else { GrantLookup::Spread };
        }
        let known = self.asked.iter().position(|asked| asked.rkey == rkey);
        let index = match known {
            Some(index) => index,
            None if self.asked.len() >= GRANTS_MAX => return GrantLookup::Mediated,
            None => {
                self.asked.push(AskedKey { rkey, pace: KeyMoves::default(), address: at });
                self.asked.len() - 1
            }
        };
        let Some(asked) = self.asked.get_mut(index) else { return GrantLookup::Mediated };
        if asked.pace.moves(length) == Advice::GoOn {
            return GrantLookup::Mediated;
        }
        asked.address = at;
        GrantLookup::Ask(at, left)
    }

    /// The parts of an access that is [`GrantLookup::Spread`], in order: where, and how many bytes.
    pub(crate) fn spread(
        &self,
        rkey: Rkey,
        (address, length): (u64, u64),
    ) -> Vec<(ExtentOffset, usize)> {
        let (mut at, mut left, mut parts) = (address, length, Vec::new());
        while left > 0 {
            let mut all = self.list.iter().enumerate().filter(|(_, e)| e.rkey == rkey);
            let Some((extent, range)) =
                all.find_map(|(i, e)| e.range().contains(&at).then(|| (i, e.range())))
            else {
                return Vec::new();
            };
            let step = (range.end - at).min(left);
            let offset = (at - range.start) as usize;
            parts.push((ExtentOffset { extent, offset }, step as usize));
            (at, left) = (at + step, left - step);
        }
        parts
    }

    /// The pages at a place and how far into them it is, if they are in memory: touching them takes
    /// nothing on our account.
    #[inline(always)]
    pub(crate) fn at_hand(
        &mut self,
        (toll, host): (&ResidencyGeneration, &dyn Host),
        place: ExtentOffset,
        length: usize,
    ) -> Option<(&Window, usize)> {
        let Extent { window, pages, .. } = self.list.get_mut(place.extent)?;
        pages.at_hand((toll, host), window, place.offset, length).then_some((window, place.offset))
    }

    /// The same, without a look at the pages.
    pub(crate) fn extent(&self, place: ExtentOffset) -> Option<(&Window, usize)> {
        Some((&self.list.get(place.extent)?.window, place.offset))
    }

    /// Whether a WRITE to mapped pages goes through the ring all the same, because others are on
    /// their way there: a few short ones may, but a pipeline of them must not go on for ever.
    #[inline(always)]
    pub(crate) fn take_detour(&mut self, length: u64) -> bool {
        let detour = length <= MEDIATED_MAX && self.detours < DETOURS_MAX;
        self.detours += u32::from(detour);
        detour
    }

    /// A WRITE to mapped pages goes there directly.
    #[inline(always)]
    pub(crate) fn end_detours(&mut self) {
        self.detours = 0;
    }

    #[cold]
    fn void(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.list.clear();
        self.asked.clear();
    }

    /// The daemon granted. Ignored unless it was asked for, and given, in this epoch: what was
    /// given earlier may have been taken back since. Says whether it is used.
    pub(crate) fn insert(&mut self, epoch: u64, grant: Grant) -> bool {
        let Grant { rkey, access, window, page_start: start, .. } = grant;
        if epoch != self.epoch || epoch as u32 != grant.epoch {
            return false;
        }
        let Some(end) = start.checked_add(window.len() as u64) else { return false };
        let waits = |asked: &&mut AskedKey| asked.rkey == rkey && asked.pace.is_waiting();
        let Some(asked) = self.asked.iter_mut().find(waits) else { return false };
        if !(start..end).contains(&asked.address) {
            asked.pace.refused(Denial::ForGood);
            return false;
        }
        asked.pace.granted(end - start);
        self.list.retain(|other| {
            let range = other.range();
            other.rkey != rkey || range.end <= start || end <= range.start
        });
        if self.list.len() >= EXTENTS_MAX {
            self.drop_oldest();
        }
        let region_end = grant.address.saturating_add(grant.length);
        let region_start = grant.address.checked_next_multiple_of(PAGE_BYTES as u64);
        let region =
            region_start.unwrap_or(region_end)..region_end - region_end % PAGE_BYTES as u64;
        let pages = Pages::of(window.len(), grant.backing);
        self.uses += 1;
        let used = self.uses;
        self.list.push(Extent { rkey, access, start, window, pages, used, region });
        self.latest = self.list.len() - 1;
        true
    }

    /// The daemon did not grant.
    pub(crate) fn refused(&mut self, rkey: Rkey, denied: Denial) {
        let mut all = self.asked.iter_mut();
        if let Some(asked) = all.find(|asked| asked.rkey == rkey && asked.pace.is_waiting()) {
            asked.pace.refused(denied);
        }
    }

    /// Takes out the extent that begins at this page: its window.
    pub(crate) fn take(&mut self, rkey: Rkey, page_start: u64) -> Option<Window> {
        let mut all = self.list.iter();
        let index = all.position(|extent| (extent.rkey, extent.start) == (rkey, page_start))?;
        self.latest = 0;
        Some(self.list.swap_remove(index).window)
    }

    /// Lets go of the extent that has not been used for longest. False: there is none.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        let oldest = self.list.iter().enumerate().min_by_key(|(_, extent)| extent.used);
        let Some(oldest) = oldest.map(|(index, _)| index) else { return false };
        self.list.swap_remove(oldest);
        self.latest = 0;
        true
    }

    /// Lets go of everything; what was asked for is not asked for again in this epoch.
    pub(crate) fn forget(&mut self) {
        self.list.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.void(0);
    }
}
