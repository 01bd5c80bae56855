//! Implements a queue behind a file descriptor: completion channels and asynchronous events.
//!
//! The descriptor is readable exactly while the queue has an entry (one semaphore count each), so
//! `poll`, `epoll` and `O_NONBLOCK` work as on a device file. A thread that waits within a call
//! sleeps on a word beside it: such a sleep takes nothing, so a thread that is cancelled in it
//! loses nothing, and after a signal it goes on or ends as the signal's handler was installed
//! (`SA_RESTART`), as in read(2).

use crate::errno_conversion::from_raw;
use omniverb_device::CompletionEvents;
use omniverb_sys::eventfd::EventFd;
use omniverb_sys::{futex, lock};
use omniverb_terms::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Threads that are woken at a time: all.
const EVERYBODY: u32 = u32::MAX >> 1;

/// What a call sleeps on until there is an event; `cancellable_event_waits.c` of libibverbs knows
/// it, too.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    /// Counts events that were added. Its low half is the word to sleep on.
    news: AtomicU64,
    /// How many threads sleep, or are about to. One that was cancelled may be counted for ever.
    waiters: AtomicU32,
}

/// A queue of events, and the descriptor to wait for them by.
pub struct Notifier<T> {
    semaphore: EventFd,
    entries: Mutex<VecDeque<T>>,
    /// Apart from the queue, because a thread may sleep on it when that goes (see `drop`).
    bell: Arc<Doorbell>,
}

impl<T> Drop for Notifier<T> {
    /// Threads are often still waiting for an event when the program closes what they wait for.
    /// Nothing wakes them, as little as a reader of a device file that is closed; but a signal has
    /// the kernel look at the word once more. It is theirs for ever.
    fn drop(&mut self) {
        if self.bell.waiters.load(Ordering::SeqCst) > 0 {
            std::mem::forget(self.bell.clone());
        }
    }
}

impl<T> Notifier<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// errno: there are no more descriptors to be had.
    pub fn new() -> Result<Self, Errno> {
        let semaphore = EventFd::semaphore().map_err(|e| crate::errno_conversion::errno_of(&e))?;
        // Blocking, like a device file, until the application says otherwise.
        let flags = rustix::fs::fcntl_getfl(&semaphore).map_err(|e| from_raw(e.raw_os_error()))?;
        rustix::fs::fcntl_setfl(&semaphore, flags - rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| from_raw(e.raw_os_error()))?;
        Ok(Self { semaphore, entries: Mutex::default(), bell: Arc::default() })
    }

    /// The descriptor to wait on.
    pub fn raw_fd(&self) -> RawFd {
        self.semaphore.as_fd().as_raw_fd()
    }

    /// What to sleep on within a call.
    pub fn bell(&self) -> *const Doorbell {
        Arc::as_ptr(&self.bell)
    }

    /// Adds an entry and wakes a waiting thread.
    pub fn push(&self, entry: T) {
        self.push_unless(entry, |_| false);
    }

    /// As [`Self::push`], if no such entry waits. For entries that another process has a say in:
    /// there are as many as kinds of them.
    pub fn push_once(&self, entry: T)
    where
        T: PartialEq,
    {
        self.push_unless(entry, |(entries, entry)| entries.contains(entry));
    }

    fn push_unless(&self, entry: T, is_known: impl FnOnce((&VecDeque<T>, &T)) -> bool) {
        {
            let mut entries = lock(&self.entries);
            if is_known((&entries, &entry)) {
                return;
            }
            entries.push_back(entry);
            // Before any thread removes it.
            self.semaphore.signal();
        }
        // A sleeper counts itself, then reads the news, then looks for an entry: one of the two
        // sees the other.
        self.bell.news.fetch_add(1, Ordering::SeqCst);
        if self.bell.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.bell.news, EVERYBODY);
        }
    }

    /// Has `taken` have the oldest entry; false: there is none, and one may be waited for.
    ///
    /// No thread [removes](Self::retain) entries meanwhile: a thread that destroys what they are
    /// about finds it taken when that returns, and all that `taken` has done.
    ///
    /// # Errors
    /// `EAGAIN`: there is none, and the application has made the descriptor non-blocking.
    pub fn try_take(&self, taken: impl FnOnce(T)) -> Result<bool, Errno> {
        if self.take_now(taken) {
            return Ok(true);
        }
        let flags =
            rustix::fs::fcntl_getfl(&self.semaphore).map_err(|e| from_raw(e.raw_os_error()))?;
        if flags.contains(rustix::fs::OFlags::NONBLOCK) { Err(Errno::EAGAIN) } else { Ok(false) }
    }

    fn take_now(&self, taken: impl FnOnce(T)) -> bool {
        let mut entries = lock(&self.entries);
        let entry = if self.count_down() { entries.pop_front() } else { None };
        entry.map(taken).is_some()
    }

    /// Takes one count, if there is one. The caller has the entries locked, so it does not wait.
    fn count_down(&self) -> bool {
        let now = Some(std::time::Duration::ZERO);
        let ready = omniverb_sys::eventfd::readable(self.semaphore.as_fd(), now);
        let mut count = [0; 8];
        matches!(ready, Ok(true)) && rustix::io::read(&self.semaphore, &mut count).is_ok()
    }

    /// Removes entries that are about a destroyed object.
    pub fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut entries = lock(&self.entries);
        let before = entries.len();
        entries.retain(keep);
        for _ in entries.len()..before {
            self.count_down();
        }
    }
}

/// The queue of a completion channel, as completion queues know it: it ends with the channel, also
/// if a thread looks at one of them for a moment longer.
pub struct Channel(Weak<Notifier<usize>>);

impl Channel {
    /// That of this queue.
    pub fn of(events: &Arc<Notifier<usize>>) -> Channel {
        Channel(Arc::downgrade(events))
    }
}

impl CompletionEvents for Channel {
    fn completion(&self, cookie: usize) {
        if let Some(events) = self.0.upgrade() {
            events.push(cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the doorbell outlives the queue.
    fn stays(waiters: u32) -> bool {
        let notifier = Notifier::<()>::new().unwrap();
        notifier.bell.waiters.store(waiters, Ordering::SeqCst);
        let bell = Arc::downgrade(&notifier.bell);
        drop(notifier);
        bell.upgrade().is_some()
    }

    #[test]
    fn a_queued_event_is_not_queued_twice() {
        let notifier = Notifier::new().unwrap();
        (0..100).for_each(|number| notifier.push_once(number % 2));
        notifier.push(1);
        let mut taken = Vec::new();
        while notifier.try_take(|entry| taken.push(entry)).unwrap() {}
        assert_eq!(taken, [0, 1, 1]);
        notifier.push_once(0);
        assert_eq!(notifier.try_take(|entry| taken.push(entry)), Ok(true));
        assert_eq!(taken, [0, 1, 1, 0]);
    }

    /// A thread that destroys an object counts the events that were taken once it has removed the
    /// others.
    #[test]
    fn a_remover_of_the_others_sees_what_is_taken() {
        let (notifier, entered) = (Notifier::new().unwrap(), AtomicU32::new(0));
        notifier.push(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let taken = notifier.try_take(|_: u32| {
                    entered.store(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    entered.store(2, Ordering::SeqCst);
                });
                assert_eq!(taken, Ok(true));
            });
            while entered.load(Ordering::SeqCst) == 0 {}
            notifier.retain(|_| false);
            assert_eq!(entered.load(Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn a_completion_queue_does_not_keep_its_channel() {
        let notifier = Arc::new(Notifier::new().unwrap());
        let channel = Channel::of(&notifier);
        channel.completion(7);
        assert_eq!(notifier.try_take(|cookie| assert_eq!(cookie, 7)), Ok(true));
        assert_eq!(Arc::strong_count(&notifier), 1);
        drop(notifier);
        channel.completion(8);
    }

    #[test]
    fn what_a_thread_sleeps_on_outlives_the_queue() {
        assert!(stays(1) && !stays(0));
    }
}
