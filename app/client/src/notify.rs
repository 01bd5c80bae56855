//! A queue behind a file descriptor: completion channels and asynchronous events.
//!
//! The descriptor is readable exactly while the queue has an entry (one semaphore count each), so
//! `poll`, `epoll` and `O_NONBLOCK` work as on a device file.

use crate::errno::from_raw;
use omniverb_device::CompletionEvents;
use omniverb_sys::event::EventFd;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

/// A queue of events, and the descriptor to wait for them by.
pub struct Notifier<T> {
    semaphore: EventFd,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Notifier<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// errno: there are no more descriptors to be had.
    pub fn new() -> Result<Self, Errno> {
        let semaphore = EventFd::semaphore().map_err(|e| crate::errno::errno_of(&e))?;
        // Blocking, like a device file, until the application says otherwise.
        let flags = rustix::fs::fcntl_getfl(&semaphore).map_err(|e| from_raw(e.raw_os_error()))?;
        rustix::fs::fcntl_setfl(&semaphore, flags - rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| from_raw(e.raw_os_error()))?;
        Ok(Self { semaphore, entries: Mutex::default() })
    }

    /// The descriptor to wait on.
    pub fn raw_fd(&self) -> RawFd {
        self.semaphore.as_fd().as_raw_fd()
    }

    /// Adds an entry and wakes a waiter.
    pub fn push(&self, entry: T) {
        let mut entries = lock(&self.entries);
        entries.push_back(entry);
        // Before anybody removes it.
        self.semaphore.signal();
    }

    /// Takes the oldest entry; `None`: there is none, and one may be waited for.
    ///
    /// # Errors
    /// `EAGAIN`: there is none, and the application has made the descriptor non-blocking.
    pub fn try_take(&self) -> Result<Option<T>, Errno> {
        if let Some(entry) = self.take_now() {
            return Ok(Some(entry));
        }
        let flags =
            rustix::fs::fcntl_getfl(&self.semaphore).map_err(|e| from_raw(e.raw_os_error()))?;
        if flags.contains(rustix::fs::OFlags::NONBLOCK) { Err(Errno::EAGAIN) } else { Ok(None) }
    }

    fn take_now(&self) -> Option<T> {
        let mut entries = lock(&self.entries);
        match self.count_down() {
            true => entries.pop_front(),
            false => None,
        }
    }

    /// Takes one count, if there is one. Whoever does so has the entries locked, so it does not
    /// wait.
    fn count_down(&self) -> bool {
        let now = Some(std::time::Duration::ZERO);
        let ready = omniverb_sys::event::readable(self.semaphore.as_fd(), now);
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

impl CompletionEvents for Notifier<usize> {
    fn completion(&self, cookie: usize) {
        self.push(cookie);
    }
}
