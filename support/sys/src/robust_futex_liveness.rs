//! Shows other processes that this one has ended, by words of shared memory.
//!
//! The kernel writes them. It keeps a list for each thread, of futexes that the thread owns
//! ("robust futexes", set_robust_list(2)), and goes through it when the thread ends, on whatever
//! way: by a signal that cannot be caught, `_exit`, another thread's exec. In each word that names
//! the thread it stores `FUTEX_OWNER_DIED`. It does so before it lets go of the thread's memory and
//! descriptors, so before it can be seen that the process has ended.
//!
//! One thread that lives as long as the process does has a [`ProcessLiveness`] for that, in the
//! place of the list that the C library gave it. That one is for robust mutexes, of which such a
//! thread must not hold any.
//!
//! A word lies where the other process may write: it can make that say anything, and no other
//! process reads it. The *list* does not: the entry for each word is in memory of our own. The
//! kernel wants the same distance from each entry to its word, so the shared memory is mapped once
//! more for it, behind as many bytes of ours.
//!
//! **Ordering.** Entries are added and removed by the thread itself, so the list does not change
//! while the kernel goes through it. The thread stores its number in the word, then the rest of the
//! list in the entry, and then the entry in the list's head: whenever it is killed, the list is
//! whole, and a word that is not in it yet tells nothing.
// UNSAFETY: gives the kernel the address of the list.
#![expect(unsafe_code)]

use crate::mapping::Mapping;
use crate::{Extent, futex, lock, mapping_as_ring_window};
use omniverb_ring::{Window, WordMemory};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words the kernel goes through, at most: `ROBUST_LIST_LIMIT`.
pub const WORDS_MAX: usize = 2048;

/// Where what is in `struct robust_list_head`: the first entry, the distance from entries to their
/// words, and an entry that is on its way, which there never is. An empty list leads to the head.
const FIRST: usize = 0;
const DISTANCE: usize = 8;
const HEAD_BYTES: usize = 24;
const _: () = assert!(size_of::<usize>() == 8, "entries are words");

/// What a thread tells of its end, and with it of the process's.
pub struct ProcessLiveness {
    head: Window,
    /// Bytes of each piece of shared memory.
    bytes: usize,
    /// The thread, as its process namespace calls it; 0: there is none.
    thread: AtomicU32,
    told: Mutex<LivenessWord>,
}

/// The entries; the list of the kernel begins with the last.
#[derive(Default)]
struct LivenessWord {
    last: u64,
    entries: Vec<Entry>,
}

/// Its own memory and the shared behind it. It lies in the former as its word lies in the latter.
struct Entry {
    number: u64,
    memory: Window,
    offset: usize,
}

impl Entry {
    fn address(&self) -> u64 {
        (self.memory.address() + self.offset) as u64
    }

    /// The next entry's.
    fn store_next(&self, address: u64) {
        self.memory.store(self.offset, address, Ordering::Release);
    }
}

/// The thread whose end is told; it ends there.
pub struct LivenessThread<'a> {
    life: &'a ProcessLiveness,
    /// The list it had before.
    before: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl ProcessLiveness {
    /// Without a thread yet; tells in pieces of memory of so many bytes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(bytes: usize) -> io::Result<ProcessLiveness> {
        let head = mapping_as_ring_window::over(Mapping::own(crate::clock::page_bytes())?, ());
        head.store(FIRST, head.address() as u64, Ordering::Relaxed);
        head.store(DISTANCE, bytes as u64, Ordering::Relaxed);
        Ok(ProcessLiveness { head, bytes, thread: AtomicU32::new(0), told: Mutex::default() })
    }

    /// It is this thread's from now on. `None`: it is another's, or the kernel would not go through
    /// the list; then nothing is told.
    pub fn begin(&self) -> Option<LivenessThread<'_>> {
        let (mut before, mut length) = (0usize, 0usize);
        // SAFETY: writes two words that live long enough.
        let had = unsafe {
            libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before, &raw mut length)
        };
        if had != 0 || self.thread.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // SAFETY: the kernel reads the list when the thread ends. It is whole at any time, and
        // there for as long as the thread has it, since `LivenessThread` borrows it and gives the
        // old one back. The kernel writes only to words that hold the thread's number.
        let set =
            unsafe { libc::syscall(libc::SYS_set_robust_list, self.head.address(), HEAD_BYTES) };
        if set != 0 {
            return None;
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        self.thread.store(thread, Ordering::Relaxed);
        Some(LivenessThread { life: self, before, _of_this_thread: PhantomData })
    }

    /// From now on the low half of the word at `offset` of this memory names the thread, until that
    /// has ended (`FUTEX_OWNER_DIED`). By that thread. The number it is to be
    /// [forgotten](Self::forget) by.
    ///
    /// # Errors
    /// One without an errno if the memory is not sound, or no thread has begun; `ENOSPC` for more
    /// than [`WORDS_MAX`] words; otherwise what the kernel says.
    pub fn tell<F: AsFd>(&self, memory: &Extent<F>, offset: usize) -> io::Result<u64> {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread == 0 || !offset.is_multiple_of(8) || offset >= self.bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut told = lock(&self.told);
        if told.entries.len() >= WORDS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let memory = memory.map_behind_own(self.bytes)?;
        futex::own(memory.word(self.bytes + offset), thread);
        told.last += 1;
        let entry = Entry { number: told.last, memory, offset };
        entry.store_next(self.head.load(FIRST, Ordering::Relaxed));
        self.head.store(FIRST, entry.address(), Ordering::Release);
        told.entries.push(entry);
        Ok(told.last)
    }

    /// Tells in that word no longer; it goes on to name the thread. By that thread.
    pub fn forget(&self, number: u64) {
        let mut told = lock(&self.told);
        let Some(at) = told.entries.iter().position(|entry| entry.number == number) else { return };
        let next = match at {
            0 => self.head.address() as u64,
            _ => told.entries[at - 1].address(),
        };
        match told.entries.get(at + 1) {
            Some(before) => before.store_next(next),
            None => self.head.store(FIRST, next, Ordering::Release),
        }
        told.entries.remove(at);
    }
}

impl Drop for LivenessThread<'_> {
    fn drop(&mut self) {
        // SAFETY: what the thread had before, which its library keeps for as long as it lives.
        unsafe { libc::syscall(libc::SYS_set_robust_list, self.before, HEAD_BYTES) };
        // The kernel goes through this list no more: what was not forgotten is over with it.
        let mut told = lock(&self.life.told);
        self.life.head.store(FIRST, self.life.head.address() as u64, Ordering::Relaxed);
        told.entries.clear();
        drop(told);
        self.life.thread.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Access;
    use crate::memfd;
    use omniverb_ring::doorbell::DIED;
    use std::os::fd::OwnedFd;

    const BYTES: usize = 8192;
    const AT: usize = 4096 + 16;

    /// Shared memory as the other process has it.
    struct Shared(Extent<OwnedFd>, Window);

    impl Shared {
        fn new() -> Shared {
            let extent = Extent::new(memfd::create("test", 16384).unwrap(), 4096, BYTES as u64);
            let theirs = extent.map(Access::ReadWrite).unwrap();
            Shared(extent, theirs)
        }

        fn word(&self) -> u64 {
            self.1.load(AT, Ordering::Relaxed)
        }
    }

    /// A thread that begins, does this and ends without having said so. It is over for the kernel,
    /// too, when it was joined.
    fn ends_after(life: &'static ProcessLiveness, act: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                std::mem::forget(life.begin().unwrap());
                act();
            });
            ends.join().unwrap();
        });
    }

    fn life() -> &'static ProcessLiveness {
        Box::leak(Box::new(ProcessLiveness::new(BYTES).unwrap()))
    }

    #[test]
    fn the_kernel_tells_when_the_thread_ends() {
        let (life, all) = (life(), [(); 9].map(|()| Shared::new()));
        ends_after(life, || {
            let numbers: Vec<_> = all.iter().map(|s| life.tell(&s.0, AT).unwrap()).collect();
            assert!(all.iter().all(|shared| shared.word() != 0 && shared.word() & DIED == 0));
            // The first, the last, and one between two.
            [0, 8, 4, 5].iter().for_each(|at| life.forget(numbers[*at]));
            life.forget(numbers[4]);
            // What the other process may do.
            all[6].1.store(AT, 0, Ordering::Relaxed);
            all[7].1.store(AT, u64::MAX, Ordering::Relaxed);
            std::thread::scope(|scope| scope.spawn(|| life.begin().is_none()).join().unwrap());
        });
        let died = all.each_ref().map(|shared| shared.word() & DIED != 0);
        assert_eq!(died, [false, true, true, true, false, false, false, true, false]);
        assert_eq!([all[6].word(), all[7].word()], [0, u64::MAX], "not the thread's");
    }

    #[test]
    fn a_thread_that_has_taken_its_leave_tells_nothing() {
        let (life, shared) = (life(), Shared::new());
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                let living = life.begin().unwrap();
                life.tell(&shared.0, AT).unwrap();
                drop(living);
            });
            ends.join().unwrap();
        });
        assert_eq!(shared.word() & DIED, 0);
        // Another one's it may be then.
        ends_after(life, || assert!(life.tell(&shared.0, AT).is_ok()));
        assert_ne!(shared.word() & DIED, 0);
    }

    /// A program has its device anew as often as it likes.
    #[test]
    fn what_a_thread_did_not_forget_is_over_with_its_leave() {
        let (life, shared, other) = (life(), Shared::new(), Shared::new());
        for round in 0..3 {
            std::thread::scope(|scope| {
                let ends = scope.spawn(|| {
                    let living = life.begin().unwrap();
                    let numbers: Vec<u64> =
                        (0..WORDS_MAX).map(|_| life.tell(&shared.0, AT).unwrap()).collect();
                    assert!(life.tell(&shared.0, AT).is_err());
                    drop(living);
                    numbers
                });
                let numbers = ends.join().unwrap();
                assert_eq!(lock(&life.told).entries.len(), 0, "{round}");
                // Nor does a late caller do any harm.
                numbers.into_iter().for_each(|number| life.forget(number));
            });
        }
        ends_after(life, || _ = life.tell(&other.0, AT).unwrap());
        assert_eq!((shared.word() & DIED, other.word() & DIED), (0, DIED));
    }

    #[test]
    fn broken_memory_and_missing_writers_tell_nothing() {
        let (life, shared) = (life(), Shared::new());
        assert!(life.tell(&shared.0, AT).is_err());
        ends_after(life, || {
            let of = |offset, length| Extent::new(&shared.0.file, offset, length);
            for extent in [of(0, 4096), of(0, 12288), of(12288, 8192), of(1, 8192)] {
                assert!(life.tell(&extent, AT).is_err());
            }
            for at in [AT + 1, BYTES, usize::MAX & !7] {
                assert!(life.tell(&shared.0, at).is_err(), "{at}");
            }
        });
        assert_eq!(shared.word(), 0);
    }

    #[test]
    fn liveness_words_are_no_more_than_the_robust_list_limit() {
        let (life, shared) = (life(), Shared::new());
        ends_after(life, || {
            let first = life.tell(&shared.0, AT).unwrap();
            let others = (1..WORDS_MAX).map(|_| life.tell(&shared.0, 0).unwrap());
            assert_eq!(others.count(), WORDS_MAX - 1);
            assert!(life.tell(&shared.0, AT).is_err());
            life.forget(first + 1);
            assert!(life.tell(&shared.0, 0).is_ok());
        });
        assert_ne!(shared.word() & DIED, 0, "the last of them all");
    }
}
