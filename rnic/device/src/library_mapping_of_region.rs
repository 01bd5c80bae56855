//! Holds a region's own mapping: the library's, of pages that lie in a file of this process.
//!
//! What the program does to its pages (`mprotect`, `munmap`) does not concern that mapping. So a
//! copy on a peer's behalf goes there without a system call and cannot fault, as a device writes to
//! pinned pages. It is made when copies by the kernel have cost as much as moving the pages does.

use omniverb_ring::{UserMemory, Window};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard, TryLockError};

/// Bytes of a copy that cost as much as the system call that makes it.
const CALL_BYTES: u64 = 1024;
/// Least cost of copies, in bytes, before pages are worth moving: threads stand still for that.
const COST_MIN: u64 = 64 << 10;
/// A region is moved when a peer had this part of it copied.
const PART: u64 = 4;
/// How often in a row the cost doubles that a move has to be worth, since none was possible.
const DOUBLINGS_MAX: u32 = 14;

/// The mapping, and what copies without it have cost.
#[derive(Debug, Default)]
pub struct OwnMapping {
    /// Locked by copies, for the time of one each: the end of the mapping waits for them.
    place: RwLock<Option<MappedPages>>,
    /// Its end waits for copies: none begins there.
    is_ending: AtomicBool,
    cost: AtomicU64,
    /// How often in a row it could not be had for now.
    failures: AtomicU32,
    /// It was asked for.
    is_settled: AtomicBool,
    /// It is not to be asked for any more.
    is_closed: AtomicBool,
}

/// Pages of the program, and where the library has them mapped.
struct MappedPages {
    /// Address of the first one, where the program has them.
    start: usize,
    window: Window,
}

impl std::fmt::Debug for MappedPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} at {:#x}", self.start, self.window.address())
    }
}

impl MappedPages {
    fn offset_of(&self, program: UserMemory) -> Option<usize> {
        let offset = program.address().checked_sub(self.start)?;
        let end = offset.checked_add(program.len())?;
        (end <= self.window.len()).then_some(offset)
    }
}

impl OwnMapping {
    /// The pages from `start` on are what `window` shows, until this [ends](Self::end).
    pub fn begin(&self, start: usize, window: Window) {
        *self.write() = Some(MappedPages { start, window });
        self.failures.store(0, Ordering::Relaxed);
    }

    /// No copy uses the mapping when this returns. It may be asked for anew.
    pub fn end(&self) {
        self.end_locked(self.write());
    }

    /// As [`end`](Self::end), without waiting for copies. False: some are under way, perhaps of
    /// this very thread, if a signal has interrupted it. No others begin until this was true, or
    /// the mapping [stays](Self::stay).
    pub fn try_end(&self) -> bool {
        let place = match self.place.try_write() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.is_ending.store(true, Ordering::Relaxed);
                return false;
            }
        };
        self.end_locked(place);
        true
    }

    /// It does not end after all.
    pub fn stay(&self) {
        self.is_ending.store(false, Ordering::Relaxed);
    }

    fn end_locked(&self, mut place: RwLockWriteGuard<'_, Option<MappedPages>>) {
        let ended = place.take();
        drop(place);
        self.stay();
        self.cost.store(0, Ordering::Relaxed);
        let is_closed = self.is_closed.load(Ordering::Relaxed);
        self.is_settled.store(is_closed, Ordering::Relaxed);
        drop(ended);
    }

    /// It cannot be had now: it is asked for anew when copies have cost twice as much as before.
    /// Each attempt may have all threads stand still for a while.
    pub fn put_off(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.end();
    }

    /// It is never asked for any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.is_settled.store(true, Ordering::Relaxed);
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.place.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<MappedPages>> {
        self.place.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the window and an offset of it, if all of the range is there.
    #[inline]
    fn with<T>(&self, program: UserMemory, act: impl FnOnce(&Window, usize) -> T) -> Option<T> {
        if self.is_ending.load(Ordering::Relaxed) {
            return None;
        }
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        let pages = place.as_ref()?;
        Some(act(&pages.window, pages.offset_of(program)?))
    }

    /// Copies what a peer writes, the last bytes last. False: not by this mapping.
    #[inline]
    pub(crate) fn place(&self, ours: UserMemory, program: UserMemory) -> bool {
        let ours = ours.first(program.len());
        self.with(program, |window, offset| window.fill_last_byte_last(offset, ours)).is_some()
    }

    /// Does something with the eight bytes of an atomic. None: not by this mapping.
    pub(crate) fn with_cell<T>(
        &self,
        program: UserMemory,
        act: impl FnOnce(&UserMemory) -> T,
    ) -> Option<T> {
        self.with(program, |window, offset| act(&window.memory(offset, program.len())))
    }

    /// The kernel makes a copy of so many bytes, for a region of this length. Whether copies have
    /// cost enough for a mapping to be asked for; that is said once.
    #[inline]
    pub(crate) fn note(&self, region: usize, bytes: usize) -> bool {
        if self.is_settled.load(Ordering::Relaxed) {
            return false;
        }
        let cost = self.cost.load(Ordering::Relaxed) + bytes as u64 + CALL_BYTES;
        self.cost.store(cost, Ordering::Relaxed);
        let doublings = self.failures.load(Ordering::Relaxed).min(DOUBLINGS_MAX);
        let worth = COST_MIN.max(region as u64 / PART).saturating_mul(1 << doublings);
        let pays = cost >= worth;
        if pays {
            self.is_settled.store(true, Ordering::Relaxed);
        }
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_once_when_copies_have_cost_enough() {
        let own = OwnMapping::default();
        let until_asked = |region| (1..=10_000).find(|_| own.note(region, 8));
        assert_eq!(until_asked(4096), Some(64));
        assert_eq!(until_asked(4096), None);
        own.end();
        assert!((0..3).all(|_| !own.note(1 << 20, 63 << 10)) && own.note(1 << 20, 63 << 10));
        for costs in [2 * 64, 4 * 64, 8 * 64] {
            own.put_off();
            // Of 8 bytes and a call each, which are a little more than a call.
            assert!(until_asked(4096).is_some_and(|copies| (costs - 8..=costs).contains(&copies)));
        }
        own.begin(0, Window::private(4096));
        own.end();
        assert_eq!(until_asked(4096), Some(64));
        own.close();
        own.put_off();
        assert_eq!(until_asked(4096), None);
    }

    /// A signal handler that forks may have interrupted a copy of its own thread.
    #[test]
    fn the_end_waits_for_no_copy_if_it_is_not_to() {
        let (program, window) = (Window::private(4096), Window::private(4096));
        let own = OwnMapping::default();
        own.begin(program.address(), window.clone());
        let cell = program.memory(8, 8);
        let in_a_copy = own.with_cell(cell, |bytes| {
            let ended = own.try_end();
            let others = own.with_cell(cell, |_| ());
            bytes.fetch_add(1);
            (ended, others)
        });
        assert_eq!(in_a_copy, Some((false, None)), "no other copy begins");
        assert!(own.exists());
        let mut found = [0; 8];
        window.memory(8, 8).read(&mut found);
        assert_eq!(u64::from_ne_bytes(found), 1, "the copy has gone on");
        own.stay();
        assert!(own.with_cell(cell, |_| ()).is_some() && own.try_end() && !own.exists());
        own.begin(program.address(), window);
        assert!(own.with_cell(cell, |_| ()).is_some());
    }

    #[test]
    fn ranges_that_are_not_wholly_mapped_are_left() {
        let program = Window::private(4096);
        let own = OwnMapping::default();
        let window = Window::private(2048);
        let put = |offset, bytes: &[u8]| {
            UserMemory::lend(bytes, |ours| own.place(ours, program.memory(offset, bytes.len())))
        };
        assert!(!put(0, &[1; 8]) && !own.exists());
        own.begin(program.address() + 1024, window.clone());
        assert!(put(1024, &[1; 8]) && put(1024 + 2048 - 9, &[2; 9]));
        for (offset, length) in [(0, 8), (1023, 8), (1024, 2049), (3071, 2), (3072, 1)] {
            assert!(!put(offset, &vec![3; length]), "{offset}, {length}");
        }
        let mut found = [0; 9];
        window.memory(0, 8).read(&mut found[..8]);
        assert_eq!(found[..8], [1; 8]);
        window.memory(2048 - 9, 9).read(&mut found);
        assert_eq!(found, [2; 9]);
        let sum = own.with_cell(program.memory(1024, 8), |cell| cell.fetch_add(1)).flatten();
        assert_eq!(sum, Some(u64::from_ne_bytes([1; 8])));
        own.end();
        assert!(!put(1024, &[1; 8]) && !own.exists());
    }
}
