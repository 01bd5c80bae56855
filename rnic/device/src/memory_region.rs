//! Keeps memory regions and the table of keys.

use crate::library_mapping_of_region::OwnMapping;
use crate::qps_receiving_into_region::RegionReceivers;
use crate::region_removal_wait::{Reader, Readers, UsesRegions};
use crate::spin_lock::lock;
use omniverb_ring::UserMemory;
use omniverb_terms::{Lkey, Qpn, Rkey};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// What nothing is named by.
pub const NO_RKEY: Rkey = Rkey(0);

/// A range of the application's memory that it registered.
#[derive(Debug)]
pub struct Region {
    /// What our own requests name it by.
    pub lkey: Lkey,
    /// What peers name it by, which the daemon gave; [`NO_RKEY`] when there is no remote access.
    pub rkey: Rkey,
    /// The protection domain's number.
    pub pd: u32,
    /// `IBV_ACCESS_*`: what the application allows.
    pub access: u32,
    /// Address that requests use for the first byte (`ibv_reg_mr_iova`; mostly the address itself).
    pub iova: u64,
    /// The memory itself, in this process.
    pub memory: UserMemory,
    /// What was moved by mediation, and may therefore be mapped.
    pub moved: MovedBytes,
    /// Where copies for peers go without a system call.
    pub own: OwnMapping,
    /// In what it differs from most.
    pub extras: RegionKind,
}

/// Says whether memory is there.
pub type PresenceCheck = fn(UserMemory) -> bool;

/// In what a region differs from others.
#[derive(Debug, Default)]
pub struct RegionKind {
    /// Every address is one of it: what is read and written there is nothing.
    pub is_everywhere: bool,
    /// Its memory comes and goes: what an access touches must be there.
    pub looks: Option<PresenceCheck>,
    /// The region that it is a window on.
    pub(crate) part_of: Option<Arc<Region>>,
    /// The queue pair whose peers may use it; `None`: all of the protection domain.
    pub(crate) only: Option<Qpn>,
    /// Windows on it.
    pub(crate) windows: AtomicU32,
}

impl RegionKind {
    /// Of a region whose memory comes and goes.
    pub fn looking(look: PresenceCheck) -> RegionKind {
        RegionKind { looks: Some(look), ..RegionKind::default() }
    }

    /// Of a region to which every address belongs.
    pub fn everywhere() -> RegionKind {
        RegionKind { is_everywhere: true, ..RegionKind::default() }
    }
}

/// Bytes of a region that peers have moved through its owner, or that the owner has sent on copies.
#[derive(Debug, Default)]
pub struct MovedBytes(AtomicU64);

impl MovedBytes {
    /// As many as were noted. Some may be missing if several threads noted some at once.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes some more; two plain accesses, since nothing depends on the last byte.
    #[inline(always)]
    pub(crate) fn note(&self, bytes: u64) {
        self.0.store(self.bytes().saturating_add(bytes), Ordering::Relaxed);
    }

    /// What was moved until now counts no more.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Region {
    /// The memory behind `address .. address + length` as requests name it, if it lies inside.
    #[inline(always)]
    pub fn part(&self, address: u64, length: u64) -> Option<UserMemory> {
        let offset = address.checked_sub(self.iova)?;
        if offset > self.memory.len() as u64 || length > self.memory.len() as u64 - offset {
            return self.part_anywhere(length);
        }
        let part = self.memory.part(offset as usize, length as usize)?;
        self.extras.looks.is_none_or(|look| look(part)).then_some(part)
    }

    #[cold]
    fn part_anywhere(&self, length: u64) -> Option<UserMemory> {
        if !self.extras.is_everywhere {
            return None;
        }
        self.memory.part(0, usize::try_from(length).ok()?)
    }

    /// Whether it has no place of its own: every address is one of it.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.extras.is_everywhere
    }

    /// Whether windows are bound to it.
    pub fn is_bound(&self) -> bool {
        self.extras.windows.load(Ordering::Acquire) != 0
    }

    /// Whether peers of this queue pair, of the same protection domain, may use it.
    #[inline(always)]
    pub(crate) fn opens_by(&self, qpn: Qpn) -> bool {
        self.extras.only.is_none_or(|only| only == qpn)
    }
}

/// How a memory window is bound, and which queue pairs its keys serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by a verb; every queue pair of the protection domain.
    One,
    /// Bound by a work request, to a key that it names; the queue pair that bound it.
    Two,
}

/// A memory window: a right to a part of a region, by a key that its owner can take back.
pub(crate) struct Window {
    pub(crate) of: WindowType,
    pub(crate) pd: u32,
    /// The key that it has, or had last.
    pub(crate) rkey: Rkey,
    /// What the key opens, as if it were a region; none while it is bound to nothing.
    pub(crate) bound: Option<Arc<Region>>,
}

/// All windows of an opened device, by the upper bits of their keys. What becomes of them is in
/// `memory_window`.
#[derive(Default)]
pub(crate) struct Windows(pub(crate) Mutex<WindowTable>);

/// What is behind the lock of [`Windows`].
#[derive(Default)]
pub(crate) struct WindowTable {
    pub(crate) by_name: HashMap<u32, Window>,
    /// Names of those that are bound for the peers of one queue pair.
    pub(crate) bound_by: HashMap<Qpn, HashSet<u32>>,
}

/// All regions of an opened device.
#[derive(Default)]
pub struct Regions {
    pub(crate) readers: Readers,
    receivers: RegionReceivers,
    by_lkey: RwLock<HashMap<Lkey, Arc<Region>>>,
    pub(crate) by_rkey: RwLock<HashMap<Rkey, Arc<Region>>>,
    pub(crate) windows: Windows,
    next_lkey: Mutex<u32>,
}

/// The last two regions a queue used: most queues use one or two, headers and payloads in turn.
pub struct RegionCache {
    reader: Reader,
    last: Option<Arc<Region>>,
    /// The one before.
    other: Option<Arc<Region>>,
    purpose: Purpose,
}

/// What regions of a cache are looked up for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Sends,
    /// They promise something to senders.
    Receives,
}

impl RegionCache {
    /// An empty one, for look-ups of this queue pair.
    pub(crate) fn of(user: Weak<dyn UsesRegions>, purpose: Purpose) -> RegionCache {
        RegionCache { reader: Reader::of(user), last: None, other: None, purpose }
    }

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

    /// Makes a region known by its keys, which no other region has.
    pub fn insert(&self, region: Arc<Region>) {
        if region.rkey != NO_RKEY {
            write(&self.by_rkey).insert(region.rkey, region.clone());
        }
        write(&self.by_lkey).insert(region.lkey, region);
    }

    /// Removes a region and the windows on it. When this returns their keys are void, and no queue
    /// pair uses the region any more. Not to be called with a queue pair's lock held.
    pub fn remove(&self, lkey: Lkey) -> Option<Arc<Region>> {
        let region = write(&self.by_lkey).remove(&lkey)?;
        if region.rkey != NO_RKEY {
            write(&self.by_rkey).remove(&region.rkey);
        }
        self.end_windows_on(&region);
        self.readers.finish_access();
        Some(region)
    }

    /// Returns when no queue pair uses a region that was removed before.
    pub fn finish_access(&self) {
        self.readers.finish_access();
    }

    /// The region of a local key.
    pub fn get(&self, lkey: Lkey) -> Option<Arc<Region>> {
        self.by_lkey.read().unwrap_or_else(|e| e.into_inner()).get(&lkey).cloned()
    }

    /// Whether a number is no key of anything here, local or remote, nor may become a window's.
    pub fn is_free(&self, key: u32) -> bool {
        let rkey = Rkey(key);
        self.get(Lkey(key)).is_none()
            && self.get_remote(rkey).is_none()
            && !self.is_windows_key(rkey)
    }

    /// Whether one of these opens something here, or may when its region is registered anew.
    pub(crate) fn has_key_in(&self, mut keys: RangeInclusive<u32>) -> bool {
        let remote = self.by_rkey.read().unwrap_or_else(|e| e.into_inner());
        let local = self.by_lkey.read().unwrap_or_else(|e| e.into_inner());
        keys.any(|key| remote.contains_key(&Rkey(key)) || local.contains_key(&Lkey(key)))
    }

    /// Looks a local key up.
    #[inline(always)]
    pub fn by_lkey<'c>(&self, cache: &'c mut RegionCache, lkey: Lkey) -> Option<&'c Region> {
        let hit = self.readers.is_current(&cache.reader)
            && cache.last.as_ref().is_some_and(|region| region.lkey == lkey);
        if !hit {
            self.refill(cache, lkey);
        }
        cache.last.as_deref().filter(|region| region.lkey == lkey)
    }

    #[inline(never)]
    fn refill(&self, cache: &mut RegionCache, lkey: Lkey) {
        if self.readers.is_current(&cache.reader) {
            std::mem::swap(&mut cache.last, &mut cache.other);
            if cache.last.as_ref().is_some_and(|region| region.lkey == lkey) {
                return;
            }
        } else {
            self.readers.enter(&cache.reader);
            cache.other = None;
        }
        cache.last = self.get(lkey);
        if cache.purpose == Purpose::Receives && cache.last.is_some() && self.receivers.is_enabled()
        {
            self.receivers.add(lkey, cache.reader.user());
        }
    }

    /// Removes a region, as [`Self::remove`], whose key is to name another memory. `all_note`: has
    /// all queue pairs [note](crate::Qp::note_receives) the receives that they have posted.
    pub fn remove_to_change(&self, lkey: Lkey, all_note: impl FnOnce()) -> Option<Arc<Region>> {
        // Before the caches are void: a later look-up enters a list.
        self.receivers.enable();
        let region = self.remove(lkey);
        if !self.receivers.is_complete() {
            all_note();
            self.receivers.complete();
        }
        region
    }

    /// Receives for a region that was [removed](Self::remove_to_change) promise nothing any more.
    pub fn doubt_receives(&self, lkey: Lkey) {
        self.receivers.take(lkey).iter().for_each(|user| user.doubt_receives(lkey));
    }

    /// A queue pair has a receive posted that names this key.
    pub(crate) fn note_receive(&self, lkey: Lkey, user: &Weak<dyn UsesRegions>) {
        self.receivers.add(lkey, user);
    }

    /// Looks a remote key up.
    pub(crate) fn by_rkey(&self, reader: &Reader, rkey: Rkey) -> Option<Arc<Region>> {
        self.readers.enter(reader);
        self.get_remote(rkey)
    }

    /// The region, or the part of one, of a remote key. Nothing waits until it is used no more.
    pub fn get_remote(&self, rkey: Rkey) -> Option<Arc<Region>> {
        self.by_rkey.read().unwrap_or_else(|e| e.into_inner()).get(&rkey).cloned()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_lkey.read().unwrap_or_else(|e| e.into_inner()).len()
    }
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoUsers;

    impl UsesRegions for NoUsers {
        fn finish_access(&self) {}
        fn doubt_receives(&self, _: Lkey) {}
    }

    fn region(lkey: u32) -> Arc<Region> {
        Arc::new(Region {
            lkey: Lkey(lkey),
            rkey: NO_RKEY,
            pd: 0,
            access: 0,
            iova: 0,
            memory: UserMemory::EMPTY,
            moved: MovedBytes::default(),
            own: OwnMapping::default(),
            extras: RegionKind::default(),
        })
    }

    #[test]
    fn two_regions_in_turn_are_looked_up_once_each() {
        let regions = Regions::default();
        (1..=3).for_each(|lkey| regions.insert(region(lkey)));
        let user = Arc::new(NoUsers);
        let known: Weak<NoUsers> = Arc::downgrade(&user);
        let mut cache = RegionCache::of(known, Purpose::Sends);
        let mut found = |lkey: u32| regions.by_lkey(&mut cache, Lkey(lkey)).map(|it| it.lkey.0);
        assert_eq!((found(1), found(2)), (Some(1), Some(2)));
        // Without the table: a look at it would go wrong.
        let taken = std::mem::take(&mut *write(&regions.by_lkey));
        for _ in 0..3 {
            assert_eq!((found(1), found(1), found(2)), (Some(1), Some(1), Some(2)));
        }
        *write(&regions.by_lkey) = taken;
        assert_eq!((found(3), found(2), found(9), found(3)), (Some(3), Some(2), None, Some(3)));
        regions.remove(Lkey(2));
        assert_eq!((found(3), found(2), found(1)), (Some(3), None, Some(1)));
    }
}
