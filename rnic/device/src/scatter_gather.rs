//! Checks scatter/gather lists (`ibv_sge` arrays) against regions and turns them into memory.

use crate::memory_region::{Region, RegionCache, Regions};
use omniverb_ring::UserMemory;
use omniverb_terms::Lkey;
use zerocopy::FromBytes;

/// `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes)]
#[repr(C)]
pub struct Sge {
    /// First address, as the region's owner names it.
    pub address: u64,
    /// Bytes from there on.
    pub length: u32,
    /// L_Key of the region it lies in.
    pub lkey: Lkey,
}

/// Total length of a list, in bytes.
#[inline(always)]
pub fn total(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}

impl Sge {
    /// The part of an entry that a message touches: at most `length` bytes, from `skip` on.
    #[inline(always)]
    #[must_use]
    pub fn touched(&self, skip: u64, length: usize) -> Sge {
        let left = u64::from(self.length).saturating_sub(skip);
        let address = self.address.wrapping_add(skip);
        Sge { address, length: left.min(length as u64) as u32, lkey: self.lkey }
    }
}

/// Checks one entry: region known, same PD, rights, range. Zero length needs no key.
#[inline(always)]
pub fn resolve(
    regions: &Regions,
    cache: &mut RegionCache,
    pd: u32,
    sge: &Sge,
    access: u32,
) -> Option<UserMemory> {
    if sge.length == 0 {
        return Some(UserMemory::EMPTY);
    }
    let region: &Region = regions.by_lkey(cache, sge.lkey)?;
    if region.pd != pd || region.access & access != access {
        return None;
    }
    region.part(sge.address, u64::from(sge.length))
}

/// Calls `each` with the pieces of bytes `from .. from + length` of a list of memory ranges.
#[inline(always)]
pub fn pieces(parts: &[UserMemory], from: u64, length: u64, mut each: impl FnMut(u64, UserMemory)) {
    let (mut skip, mut left, mut done) = (from as usize, length as usize, 0);
    for part in parts {
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        let piece = part.skip(skip).first(left);
        skip = 0;
        if !piece.is_empty() {
            each(done, piece);
            done += piece.len() as u64;
            left -= piece.len();
        }
        if left == 0 {
            break;
        }
    }
}
