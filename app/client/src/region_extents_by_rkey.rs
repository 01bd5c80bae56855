//! Keys with remote access: what peers may reach of this process, and what of that lies on files
//! where they map it.

use crate::memory_from_daemon;
use crate::moved_or_pinned_extent::{Extent, Release};
use crate::page_take_back_thread::RevokerStay;
use crate::retry_until::retry_until;
use omniverb_adopt::{Access, AdoptedPages, Strategy};
use omniverb_device::Region;
use omniverb_link::page_grant_pacing;
use omniverb_session::{body, page_rights};
use omniverb_sys::io_uring_pin::Pin;
use omniverb_sys::{lock, mapping_as_ring_window, try_lock};
use omniverb_terms::{Errno, Qpn, Rkey};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Threads that are forking: no pages are moved to where peers have them meanwhile.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// A thread is about to fork.
pub(crate) fn hold_pages() {
    FORKING.fetch_add(1, Ordering::SeqCst);
}

/// The thread has forked, or could not.
pub(crate) fn let_pages_move() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// In a forked child no thread is forking.
pub(crate) fn let_pages_move_in_child() {
    FORKING.store(0, Ordering::SeqCst);
}

/// Extents of one region: the daemon makes no more of a region of any size.
const EXTENTS_MAX: usize = 192;

/// All of them, by R_Key.
#[derive(Default)]
pub(crate) struct Keys {
    list: Mutex<HashMap<Rkey, Key>>,
    /// Held while pages move, in either direction.
    moving: Mutex<()>,
}

/// Bytes on files of all keys but one.
#[derive(Clone, Copy, Default)]
pub(crate) struct OtherKeysBytes {
    /// Those that are there for nothing.
    pub(crate) free: u64,
    /// Those on files that cannot be emptied.
    pub(crate) sealed: u64,
    /// Files of this process's own that some of them are on.
    pub(crate) own: usize,
}

/// What peers may reach by one R_Key.
pub(crate) struct Key {
    region: Arc<Region>,
    /// Parts of it that are on files of a daemon's.
    adopted: Vec<Extent>,
    /// Queue pairs whose peers may have been granted some of those: others reach none of them.
    lent_by: BTreeSet<Qpn>,
    /// Never to be mapped (again).
    mediated: bool,
}

impl Keys {
    /// A region was registered. One that requests name otherwise than by its address is never
    /// mapped.
    pub(crate) fn add(&self, region: &Arc<Region>) {
        let named_otherwise = region.iova != region.memory.address() as u64;
        // What comes and goes is not to be moved, either.
        let mediated = named_otherwise || region.extras.looks.is_some();
        let (region, adopted, lent_by) = (region.clone(), Vec::new(), BTreeSet::new());
        let key = Key { region, adopted, lent_by, mediated };
        lock(&self.list).insert(key.region.rkey, key);
    }

    /// Whether this is one of them: the daemon knows of it.
    pub(crate) fn has(&self, rkey: Rkey) -> bool {
        lock(&self.list).contains_key(&rkey)
    }

    /// A region was deregistered; what of it is on files still is let go of.
    pub(crate) fn remove(&self, rkey: Rkey) {
        lock(&self.list).remove(&rkey);
    }

    /// Regions of these keys are never to be mapped any more.
    pub(crate) fn mediate(&self, which: impl Fn(Rkey) -> bool) {
        let mut list = lock(&self.list);
        let chosen = list.iter_mut().filter(|(rkey, _)| which(**rkey));
        chosen.for_each(|(_, key)| key.mediated = true);
    }

    /// The region of this key is never to be mapped any more.
    pub(crate) fn mediate_one(&self, rkey: Rkey) {
        if let Some(key) = lock(&self.list).get_mut(&rkey) {
            key.mediated = true;
        }
    }

    /// The regions of all keys.
    pub(crate) fn regions(&self) -> Vec<Arc<Region>> {
        lock(&self.list).values().map(|key| key.region.clone()).collect()
    }

    /// Pages are moved while the guard is there: waits for others that move some.
    pub(crate) fn move_pages(&self) -> MutexGuard<'_, ()> {
        lock(&self.moving)
    }

    /// As [`Keys::move_pages`], but waits no longer than until this time of the clock. `None`:
    /// others move some still.
    pub(crate) fn move_pages_until(&self, until: u64) -> Option<MutexGuard<'_, ()>> {
        retry_until(until, || try_lock(&self.moving))
    }

    /// The same without waiting, to where peers have them; `None` if others move some, or the
    /// process is about to fork.
    pub(crate) fn try_move_pages(&self) -> Option<MutexGuard<'_, ()>> {
        try_lock(&self.moving).filter(|_| FORKING.load(Ordering::SeqCst) == 0)
    }

    /// Does something with a key, and with what is on files of all others. No other thread sees the
    /// keys meanwhile. `None`: there is no such key.
    pub(crate) fn with<T>(
        &self,
        rkey: Rkey,
        act: impl FnOnce(&mut Key, OtherKeysBytes) -> T,
    ) -> Option<T> {
        let mut list = lock(&self.list);
        let mut others = OtherKeysBytes::default();
        for (_, key) in list.iter().filter(|(other, _)| **other != rkey) {
            others.free += page_grant_pacing::free(key.granted(), key.region.moved.bytes());
            others.sealed += key.sealed();
            others.own += key.adopted.iter().filter(|extent| extent.is_own()).count();
        }
        list.get_mut(&rkey).map(|key| act(key, others))
    }

    /// Takes extents out, to move their pages back.
    pub(crate) fn take_out(&self, which: impl Fn(Rkey, &Extent) -> bool) -> Vec<(Rkey, Extent)> {
        let mut taken = Vec::new();
        for (rkey, key) in &mut *lock(&self.list) {
            let chosen = key.adopted.extract_if(.., |extent| which(*rkey, extent));
            taken.extend(chosen.map(|extent| (*rkey, extent)));
        }
        taken
    }

    /// Takes the extents of one key out, without a look at the others.
    pub(crate) fn take_out_of(&self, rkey: Rkey) -> Vec<(Rkey, Extent)> {
        let mut list = lock(&self.list);
        let adopted = list.get_mut(&rkey).map(|key| std::mem::take(&mut key.adopted));
        adopted.into_iter().flatten().map(|extent| (rkey, extent)).collect()
    }

    /// Puts one back whose pages could not be moved; it goes with the key if that has gone.
    pub(crate) fn put_back(&self, rkey: Rkey, extent: Extent) {
        if let Some(key) = lock(&self.list).get_mut(&rkey) {
            key.adopted.push(extent);
        }
    }

    /// Moves whole pages of a region onto a file of this process's own, and begins the region's own
    /// mapping. To be called while pages are [moved](Self::move_pages). That takes as long as there
    /// is to copy, and the keys are not locked.
    ///
    /// # Errors
    /// errno; `stay` has ended.
    pub(crate) fn adopt_own(&self, region: &Arc<Region>, stay: RevokerStay) -> Result<(), Errno> {
        let memory = region.memory;
        let pages = omniverb_adopt::adopt(memory.address(), memory.len(), Access::ReadWrite)
            .map_err(|error| crate::errno_conversion::from_raw(error.errno()))?;
        let file = omniverb_sys::Extent::new(pages.memfd(), 0, pages.page_length() as u64);
        let window = file.map(Access::ReadWrite).map_err(|error| memory_from_daemon::errno(&error));
        let start = pages.page_start();
        if let Ok(window) = &window {
            mapping_as_ring_window::exclude_from_core_dumps(window);
            pages.set_own_mapping(window.address());
        }
        let extent = Extent::own(pages, region.clone(), stay);
        match window {
            Ok(window) => {
                region.own.begin(start, window);
                self.put_back(region.rkey, extent);
                Ok(())
            }
            Err(errno) => {
                if let Err((extent, _)) = extent.release(Release::Waiting) {
                    self.put_back(region.rkey, extent);
                }
                Err(errno)
            }
        }
    }

    /// Whether a key has extents.
    pub(crate) fn has_extents(&self, rkey: Rkey) -> bool {
        lock(&self.list).get(&rkey).is_some_and(|key| !key.adopted.is_empty())
    }

    /// Queue pairs by which peers may have been granted extents of these keys.
    pub(crate) fn lent_by(&self, rkeys: impl Iterator<Item = Rkey>) -> BTreeSet<Qpn> {
        let list = lock(&self.list);
        rkeys.filter_map(|rkey| list.get(&rkey)).flat_map(|key| &key.lent_by).copied().collect()
    }

    /// Pages of a key are back. Says whether it has no extents any more: then none are granted.
    /// To be called while pages are [moved](Self::move_pages).
    pub(crate) fn forget_loans(&self, rkey: Rkey) -> bool {
        let mut list = lock(&self.list);
        let Some(key) = list.get_mut(&rkey) else { return true };
        if key.adopted.is_empty() {
            key.lent_by.clear();
        }
        key.adopted.is_empty()
    }

    /// Keys and first pages of extents.
    pub(crate) fn extents(&self, which: impl Fn(Rkey, &Extent) -> bool) -> Vec<(Rkey, usize)> {
        let mut found = Vec::new();
        for (rkey, key) in &*lock(&self.list) {
            let chosen = key.adopted.iter().filter(|extent| which(*rkey, extent));
            found.extend(chosen.map(|extent| (*rkey, extent.start())));
        }
        found
    }
}

/// Why pages are not pinned: there is no room for that now (`RLIMIT_MEMLOCK`, descriptors), or the
/// kernel never does it.
fn why_not_pinned(error: &std::io::Error) -> Errno {
    use rustix::io::Errno as Raw;
    let now = [Raw::NOMEM, Raw::MFILE, Raw::NFILE, Raw::INTR, Raw::AGAIN];
    match Raw::from_io_error(error).is_some_and(|errno| now.contains(&errno)) {
        true => Errno::EAGAIN,
        false => memory_from_daemon::errno(error),
    }
}

impl Key {
    /// The region that it names, to be used while the keys are not locked.
    pub(crate) fn shared_region(&self) -> Arc<Region> {
        self.region.clone()
    }

    /// The region that it names.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Whether it is never to be mapped (any more).
    pub(crate) fn is_mediated(&self) -> bool {
        self.mediated
    }

    /// The peer of a queue pair is about to be granted extents of it.
    pub(crate) fn lend_by(&mut self, qpn: Qpn) {
        self.lent_by.insert(qpn);
    }

    /// Whether it has this very extent, where the daemon knows of it.
    pub(crate) fn has_extent(&self, place: (usize, usize)) -> bool {
        let mut known = self.adopted.iter().filter(|extent| !extent.is_own());
        known.any(|extent| (extent.start(), extent.length()) == place)
    }

    /// First page of an extent that lies in a range, wholly or partly.
    pub(crate) fn extent_within(&self, start: usize, end: usize) -> Option<usize> {
        self.adopted.iter().find(|extent| extent.overlaps(start, end)).map(Extent::start)
    }

    /// Bytes of it that are on files.
    pub(crate) fn granted(&self) -> u64 {
        self.adopted.iter().map(|extent| extent.length() as u64).sum()
    }

    /// Whether its files are sealed against writing: they cannot be emptied, so that what goes back
    /// exists twice, until peers let go of it.
    pub(crate) fn is_sealed(&self) -> bool {
        !page_rights::is_writable(self.region.access)
    }

    /// Bytes on such files.
    pub(crate) fn sealed(&self) -> u64 {
        let moved = self.adopted.iter().filter(|extent| self.is_sealed() && !extent.is_kept());
        moved.map(|extent| extent.length() as u64).sum()
    }

    /// Moves whole pages of the region onto a file of the daemon of this era, or a piece of a
    /// window.
    ///
    /// # Errors
    /// errno; `stay` has ended.
    pub(crate) fn adopt(
        &mut self,
        (onto, piece): (omniverb_sys::Extent<OwnedFd>, Option<body::Extent>),
        place: (usize, usize),
        stay: (u64, RevokerStay),
    ) -> Result<(), Errno> {
        let pages = self.move_onto(onto, place)?;
        self.adopted.push(Extent::new(pages, piece, stay));
        Ok(())
    }

    /// Whether nothing of it is on a file.
    pub(crate) fn is_unmoved(&self) -> bool {
        self.adopted.is_empty()
    }

    /// Has whole pages of the region stay where they are, because of the daemon of this era: the
    /// number of the descriptor that keeps them.
    ///
    /// # Errors
    /// errno; `stay` has ended.
    pub(crate) fn keep(
        &mut self,
        place: (usize, usize),
        stay: (u64, RevokerStay),
    ) -> Result<u32, Errno> {
        self.check(place)?;
        let (start, length) = place;
        let pin = Pin::new(start, length).map_err(|error| why_not_pinned(&error))?;
        let number = pin.number();
        self.adopted.push(Extent::kept(pin, place, stay));
        Ok(number)
    }

    /// Whether these are bytes of the region, of which there may be one more extent.
    fn check(&self, (start, length): (usize, usize)) -> Result<(), Errno> {
        let region = self.region.memory;
        let begin = start.checked_sub(region.address()).ok_or(Errno::EPROTO)?;
        region.part(begin, length).ok_or(Errno::EPROTO)?;
        if self.adopted.len() >= EXTENTS_MAX { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    fn move_onto(
        &self,
        onto: omniverb_sys::Extent<OwnedFd>,
        (start, length): (usize, usize),
    ) -> Result<AdoptedPages, Errno> {
        self.check((start, length))?;
        let peers = match self.is_sealed() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let pages = omniverb_adopt::adopt_onto(onto, start, peers, &Strategy::EXACT)
            .map_err(|error| crate::errno_conversion::from_raw(error.errno()))?;
        // As many whole pages as the extent has: a range that is none of these is not what the
        // daemon asked for.
        match (pages.page_start(), pages.page_length()) == (start, length) {
            true => Ok(pages),
            false => Err(Errno::EPROTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_take_back_thread::{PageOwner, PageQuestion, PageRevocation};
    use omniverb_ring::UserMemory;
    use omniverb_sys::proc_smaps;
    use omniverb_terms::Lkey;
    use std::ops::ControlFlow;
    use std::sync::Weak;

    fn region(rkey: Rkey, memory: UserMemory) -> Region {
        Region {
            lkey: Lkey(rkey.0),
            rkey,
            pd: 0,
            access: page_rights::REMOTE_WRITE,
            iova: memory.address() as u64,
            memory,
            moved: Default::default(),
            own: Default::default(),
            extras: Default::default(),
        }
    }

    #[test]
    fn pages_come_back_from_those_that_they_were_lent_by_only() {
        let keys = Keys::default();
        for rkey in [Rkey(1), Rkey(2)] {
            keys.add(&Arc::new(region(rkey, UserMemory::EMPTY)));
        }
        (1..=1000).for_each(|qpn| _ = keys.with(Rkey(2), |key, _| key.lend_by(Qpn(qpn))));
        (0..2).for_each(|_| _ = keys.with(Rkey(1), |key, _| key.lend_by(Qpn(7))));
        assert_eq!(keys.lent_by([Rkey(1), Rkey(3)].into_iter()), BTreeSet::from([Qpn(7)]));
        assert!(keys.forget_loans(Rkey(1)) && keys.forget_loans(Rkey(3)));
        assert!(keys.lent_by([Rkey(1)].into_iter()).is_empty());
        assert_eq!(keys.lent_by([Rkey(1), Rkey(2)].into_iter()).len(), 1000);
    }

    struct NoPageOwner;

    impl PageOwner for NoPageOwner {
        fn take_back(&self, _: &BTreeSet<(Rkey, usize)>) -> Result<(), Errno> {
            Ok(())
        }

        fn answer(&self, _: PageQuestion) {}
    }

    /// The daemon asks whether an extent is there still that it made a file for: peers map that.
    #[test]
    fn pages_on_a_file_of_our_own_are_no_extent_that_the_daemon_knows() {
        const PAGE: usize = 4096;
        // Large enough to be a mapping of its own, where no other test's memory is.
        let mut bytes = vec![1u8; 512 * PAGE];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let length = (bytes.as_ptr().addr() + bytes.len()) / PAGE * PAGE - start;
        let (keys, rkey) = (Keys::default(), Rkey(1));
        let memory = UserMemory::lend_mut(&mut bytes, |memory| memory);
        let region = Arc::new(region(rkey, memory));
        keys.add(&region);
        let taking = Arc::new(PageRevocation::default());
        let stay = || taking.stay(&Weak::<NoPageOwner>::new()).unwrap();
        while let Err(errno) = keys.adopt_own(&region, stay()) {
            // Another test's thread is busy; or this is forbidden here.
            if errno != Errno::EBUSY {
                return;
            }
        }
        assert!(region.own.exists());
        // What it shows is in a core dump by the program's pages.
        let mut excluded = Vec::new();
        proc_smaps::for_each(|mapping, flags| {
            if mapping.is_shared && flags.has(*b"dd") && mapping.end - mapping.start == length {
                excluded.push(mapping.start);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(excluded.len() == 1 && excluded[0] != start);
        let granted = keys.with(rkey, |key, _| {
            assert!(!key.has_extent((start, length)) && !key.is_unmoved());
            assert_eq!(key.extent_within(start, start + 1), Some(start));
            key.granted()
        });
        assert_eq!(granted, Some(length as u64));
        for (_, mut extent) in keys.take_out_of(rkey) {
            while let Err((held, errno)) = extent.release(Release::Waiting) {
                assert_eq!(errno, Errno::EBUSY);
                extent = held;
            }
        }
        assert!(!region.own.exists());
        assert!(std::hint::black_box(&bytes).iter().all(|byte| *byte == 1));
    }

    #[test]
    fn a_range_without_room_may_be_requested_again() {
        let why = |raw| why_not_pinned(&std::io::Error::from_raw_os_error(raw));
        for now in [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EINTR] {
            assert_eq!(why(now), Errno::EAGAIN, "{now}");
        }
        for never in [libc::EPERM, libc::ENOSYS, libc::EFAULT, libc::EOPNOTSUPP] {
            assert_eq!(why(never), Errno(never.unsigned_abs()));
        }
    }
}
