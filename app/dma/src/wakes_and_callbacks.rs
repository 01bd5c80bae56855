//! Keeps what all nodes of a program share: waiting threads, and callbacks that are due.

use core::sync::atomic::{AtomicBool, AtomicU32};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;

use omniverb_sys::lock;
use omniverb_terms::Errno;
use rustix::event::{EventfdFlags, eventfd};

use crate::condition_wait::ConditionWait;
use crate::transfer::TransferPlace;

/// How the library's thread waits for what is to be called back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// Looks for a while, then sleeps.
    Mixed,
    /// Looks all the time.
    Spins,
    /// Sleeps at once.
    Sleeps,
}

/// See the file's head.
pub(crate) struct Shared {
    pub(crate) gate: ConditionWait,
    /// Transfers that are done, and of which the program is to be told. No more than are under way.
    due: Mutex<VecDeque<(TransferPlace, Errno)>>,
    wake: OwnedFd,
    thread: OnceLock<ThreadId>,
    /// Calls back what is left, when that thread has ended.
    cleaner: OnceLock<ThreadId>,
    /// Transfers under way that are to be called back.
    pub(crate) calling: AtomicU32,
    /// The library's thread looks for completions by itself. It is set only by that thread, and
    /// read with a node's lock held, see `Node::start`.
    pub(crate) looks: AtomicBool,
    pub(crate) waits: WaitMode,
}

impl Shared {
    pub(crate) fn new(waits: WaitMode) -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            gate: ConditionWait::default(),
            due: Mutex::default(),
            wake: wake.map_err(|error| Errno(error.raw_os_error().unsigned_abs()))?,
            thread: OnceLock::new(),
            cleaner: OnceLock::new(),
            calling: AtomicU32::new(0),
            looks: AtomicBool::new(false),
            waits,
        })
    }

    /// The calling thread is the library's.
    pub(crate) fn set_event_thread(&self) {
        _ = self.thread.set(std::thread::current().id());
    }

    /// The library's thread has ended, and the calling one does what is left of its work.
    pub(crate) fn set_cleanup_thread(&self) {
        _ = self.cleaner.set(std::thread::current().id());
    }

    /// Whether the calling thread is the one that calls back: it must not wait for itself.
    pub(crate) fn in_callback(&self) -> bool {
        let me = Some(std::thread::current().id());
        self.thread.get() == me.as_ref() || self.cleaner.get() == me.as_ref()
    }

    /// The library's thread has something to do.
    pub(crate) fn wake(&self) {
        if !self.in_callback() {
            rustix::io::write(&self.wake, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Readable while the library's thread is to wake.
    pub(crate) fn waking(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// It is awake.
    pub(crate) fn woken(&self) {
        rustix::io::read(&self.wake, &mut [0u8; 8]).ok();
    }

    /// The program is to be told, by the library's thread.
    pub(crate) fn call_later(&self, place: TransferPlace, status: Errno) {
        lock(&self.due).push_back((place, status));
    }

    /// Calls back what is due now, and not what becomes due by that: it might never end. Whether
    /// there was anything.
    pub(crate) fn call(&self) -> bool {
        let count = lock(&self.due).len();
        for _ in 0..count {
            let next = lock(&self.due).pop_front();
            if let Some((place, status)) = next {
                place.call(status);
            }
        }
        count > 0
    }

    /// Whether a callback is due.
    pub(crate) fn is_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }
}
