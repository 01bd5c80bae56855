//! A queue behind a file descriptor: completion channels and asynchronous events.
//!
//! The descriptor is readable exactly while the queue has an entry (one semaphore count each), so
//! `poll`, `epoll` and `O_NONBLOCK` work as on a device file.

use crate::errno::from_raw;
use crate::lock::lock;
use omniverb_device::CompletionEvents;
use omniverb_sys::event::EventFd;
use omniverb_terms::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

/// The queue.
pub struct Notifier<T> {
    semaphore: EventFd,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Notifier<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// errno.
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
        lock(&self.entries).push_back(entry);
        self.semaphore.signal();
    }

    /// Takes the oldest entry; waits for one if the application left the descriptor blocking.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`: as `read` says.
    pub fn take(&self) -> Result<T, Errno> {
        loop {
            let mut count = [0; 8];
            rustix::io::read(&self.semaphore, &mut count)
                .map_err(|e| from_raw(e.raw_os_error()))?;
            if let Some(entry) = lock(&self.entries).pop_front() {
                return Ok(entry);
            }
        }
    }

    /// Removes entries that are about a destroyed object.
    pub fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut entries = lock(&self.entries);
        let before = entries.len();
        entries.retain(keep);
        for _ in entries.len()..before {
            let mut count = [0; 8];
            let ready = omniverb_sys::event::readable(
                self.semaphore.as_fd(),
                Some(std::time::Duration::ZERO),
            );
            if matches!(ready, Ok(true)) {
                let _ = rustix::io::read(&self.semaphore, &mut count);
            }
        }
    }
}

impl CompletionEvents for Notifier<usize> {
    fn completion(&self, cookie: usize) {
        self.push(cookie);
    }
}
