//! Memory regions and the table of keys.

use crate::lock::lock;
use omniverb_ring::UserMemory;
use omniverb_terms::{Lkey, Rkey};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// What nothing is named by.
pub const NO_RKEY: Rkey = Rkey(0);

/// A registered range.
#[derive(Debug)]
pub struct Region {
    /// Local key.
    pub lkey: Lkey,
    /// Remote key; [`NO_RKEY`] when there is no remote access.
    pub rkey: Rkey,
    /// The protection domain's number.
    pub pd: u32,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// Address that requests use for the first byte (`ibv_reg_mr_iova`; mostly the address itself).
    pub iova: u64,
    /// The memory.
    pub memory: UserMemory,
    /// What was moved by mediation, and may therefore be mapped.
    pub moved: Moved,
}

/// Bytes of a region that peers have moved through its owner, or that the owner has sent on copies.
#[derive(Debug, Default)]
pub struct Moved(AtomicU64);

impl Moved {
    /// As many as were noted. Some may be missing if several threads noted some at once.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes some more; two plain accesses, since nothing depends on the last byte.
    #[inline(always)]
    pub(crate) fn note(&self, bytes: u64) {
        self.0.store(self.bytes().saturating_add(bytes), Ordering::Relaxed);
    }
}

impl Region {
    /// The memory behind `address .. address + length` as requests name it, if it lies inside.
    #[inline(always)]
    pub fn part(&self, address: u64, length: u64) -> Option<UserMemory> {
        let offset = address.checked_sub(self.iova)?;
        if offset > self.memory.len() as u64 || length > self.memory.len() as u64 - offset {
            return None;
        }
        self.memory.part(offset as usize, length as usize)
    }
}

/// All regions of an opened device.
#[derive(Default)]
pub struct Regions {
    /// Moves with every removal: cached look-ups are void then.
    generation: AtomicU64,
    by_lkey: RwLock<HashMap<Lkey, Arc<Region>>>,
    by_rkey: RwLock<HashMap<Rkey, Arc<Region>>>,
    next_lkey: Mutex<u32>,
}

/// The last region a queue used: most queues use one or two.
#[derive(Default)]
pub struct RegionCache {
    generation: u64,
    last: Option<Arc<Region>>,
}

impl RegionCache {
    /// The region that was looked up last.
    pub(crate) fn latest(&self) -> Option<&Region> {
        self.last.as_deref()
    }
}

impl Regions {
    /// A local key that is not in use.
    pub fn new_lkey(&self) -> Lkey {
        let mut next = lock(&self.next_lkey);
        let table = self.by_lkey.read().unwrap_or_else(|e| e.into_inner());
        loop {
            *next = next.wrapping_add(0x100);
            // Never 0, which zero-initialised work requests carry by mistake.
            let key = Lkey(*next);
            if key.0 != 0 && !table.contains_key(&key) {
                return key;
            }
        }
    }

    /// Adds a region.
    pub fn insert(&self, region: Arc<Region>) {
        if region.rkey != NO_RKEY {
            write(&self.by_rkey).insert(region.rkey, region.clone());
        }
        write(&self.by_lkey).insert(region.lkey, region);
    }

    /// Removes a region; its keys are void when this returns. A QP that is being served by another
    /// thread may have looked it up just before: see [`crate::Qp::finish_access`].
    pub fn remove(&self, lkey: Lkey) -> Option<Arc<Region>> {
        let region = write(&self.by_lkey).remove(&lkey)?;
        if region.rkey != NO_RKEY {
            write(&self.by_rkey).remove(&region.rkey);
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
        Some(region)
    }

    /// Looks a local key up.
    #[inline(always)]
    pub fn by_lkey<'c>(&self, cache: &'c mut RegionCache, lkey: Lkey) -> Option<&'c Region> {
        let generation = self.generation.load(Ordering::Acquire);
        let hit = cache.generation == generation
            && cache.last.as_ref().is_some_and(|region| region.lkey == lkey);
        if !hit {
            self.refill(cache, lkey, generation);
        }
        cache.last.as_deref().filter(|region| region.lkey == lkey)
    }

    #[cold]
    fn refill(&self, cache: &mut RegionCache, lkey: Lkey, generation: u64) {
        cache.generation = generation;
        cache.last = self.by_lkey.read().unwrap_or_else(|e| e.into_inner()).get(&lkey).cloned();
    }

    /// Looks a remote key up.
    pub fn by_rkey(&self, rkey: Rkey) -> Option<Arc<Region>> {
        let table = self.by_rkey.read().unwrap_or_else(|e| e.into_inner());
        table.get(&rkey).cloned()
    }

    /// A peer asks, through a QP of protection domain `pd`, that a key be void from now on. Keys of
    /// regions that a program registered never are: others hold them, too, and nobody but the
    /// program ends them. Only keys that are made to be given up are (memory windows, regions that
    /// are allocated first and filled by work requests), of which there are none yet.
    pub(crate) fn invalidate(&self, _pd: u32, _rkey: Rkey) -> bool {
        false
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_lkey.read().unwrap_or_else(|e| e.into_inner()).len()
    }
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|e| e.into_inner())
}
