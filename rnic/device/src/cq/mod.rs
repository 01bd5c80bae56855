//! The completion queue: private to the process, filled by QPs, emptied by polls.

pub(crate) mod entry;
mod pause;
pub mod poller;
pub mod progress;

pub(crate) use self::entry::{Entry, Release};
use self::pause::Links;
use self::poller::Watch;
use crate::constants::{Wc, status};
use crate::lock::lock;
use crate::lock::{Guard, Lock};
use crate::shared::{AsyncEvent, Shared};
use omniverb_terms::Qpn;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Where notifications go: a completion channel.
pub trait CompletionEvents: Send + Sync {
    /// The armed CQ with this cookie got a completion.
    fn completion(&self, cookie: usize);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

impl Armed {
    #[inline(always)]
    fn wants(self, entry: &Entry) -> bool {
        match self {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => entry.solicited || entry.wc.status != status::SUCCESS,
        }
    }
}

struct Inner {
    entries: VecDeque<Entry>,
    /// Completions ever added; how many of them when an event last told of them; how many when
    /// the queue was last armed.
    added: u64,
    notified: u64,
    added_when_armed: u64,
    capacity: usize,
    armed: Armed,
    overflowed: bool,
}

/// A completion queue.
pub struct Cq {
    inner: Lock<Inner>,
    /// Entries, readable without the lock.
    length: AtomicUsize,
    events: Option<Arc<dyn CompletionEvents>>,
    /// The application's object, for events.
    pub cookie: AtomicUsize,
    pub(crate) watch: Watch,
    pub(crate) links: Links,
    pub(crate) polls: AtomicU64,
    /// `polls` when the progress thread last looked.
    pub(crate) polls_seen: AtomicU64,
    pub(crate) is_armed: AtomicBool,
    /// QPs and SRQs that use it.
    users: AtomicUsize,
    pub(crate) shared: Arc<Shared>,
}

impl Cq {
    /// A queue for `capacity` completions.
    pub fn new(
        shared: &Arc<Shared>,
        capacity: u32,
        events: Option<Arc<dyn CompletionEvents>>,
    ) -> Arc<Cq> {
        let cq = Arc::new(Cq {
            inner: Lock::new(Inner {
                entries: VecDeque::with_capacity((capacity as usize).min(4096)),
                capacity: capacity as usize,
                added: 0,
                notified: 0,
                added_when_armed: 0,
                armed: Armed::No,
                overflowed: false,
            }),
            length: AtomicUsize::new(0),
            events,
            cookie: AtomicUsize::new(0),
            watch: Watch::default(),
            links: Links::default(),
            polls: AtomicU64::new(0),
            polls_seen: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            shared: shared.clone(),
        });
        let mut cqs = lock(&shared.cqs);
        cqs.retain(|cq| cq.strong_count() > 0);
        cqs.push(Arc::downgrade(&cq));
        cq
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> u32 {
        self.inner.lock().capacity as u32
    }

    /// Changes the capacity; false if more completions than that are waiting.
    pub fn resize(&self, capacity: u32) -> bool {
        let mut inner = self.inner.lock();
        if inner.entries.len() > capacity as usize {
            return false;
        }
        inner.capacity = capacity as usize;
        true
    }

    /// Whether QPs still use it.
    pub fn is_busy(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    pub(crate) fn use_by_one(&self, more: bool) {
        if more {
            self.users.fetch_add(1, Ordering::AcqRel);
        } else {
            self.users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The next completion that is added (or the next solicited or failed one) raises an event.
    ///
    /// So does one that waits to be polled if no event has told of it, or if it was left there
    /// after the last arming: programs that poll a few completions an event are used to NICs that
    /// compare with what has been polled, and would sleep for ever.
    pub fn arm(&self, solicited_only: bool) {
        let mut inner = self.inner.lock();
        // A pending request for any completion is not weakened (specification 11.4.2.2).
        if inner.armed != Armed::Any {
            inner.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        let oldest = inner.added - inner.entries.len() as u64;
        let unnotified = inner.added > inner.notified || oldest < inner.added_when_armed;
        inner.added_when_armed = inner.added;
        if unnotified && inner.entries.iter().any(|entry| inner.armed.wants(entry)) {
            inner.armed = Armed::No;
            inner.notified = inner.added;
            drop(inner);
            return self.notify();
        }
        self.is_armed.store(true, Ordering::Release);
        drop(inner);
        self.shared.host.armed();
    }

    /// Whether a completion may go to a poller without having been in the queue. Call with the QP
    /// locked whose completion it is.
    #[inline(always)]
    pub(crate) fn is_bypassable(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0 && !self.is_armed.load(Ordering::Acquire)
    }

    /// Takes up to `out.len()` completions, without looking for new ones.
    #[inline(always)]
    pub(crate) fn take(&self, out: &mut [Wc]) -> usize {
        if self.length.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut inner = self.inner.lock();
        let count = out.len().min(inner.entries.len());
        for (place, entry) in out.iter_mut().zip(inner.entries.drain(..count)) {
            *place = entry.wc;
            match entry.release {
                Release::Send { slot, position } => {
                    self.shared.released(slot).sends.store(position, Ordering::Release);
                }
                Release::Receive { slot } => {
                    self.shared.released(slot).receives.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.length.store(inner.entries.len(), Ordering::Release);
        count
    }

    /// Adds a completion. False: this queue has lost completions.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push(&self, wc: Wc, release: Release, solicited: bool) -> bool {
        let mut inner = self.inner.lock();
        let fire = self.add(&mut inner, Entry { wc, release, solicited });
        self.finish(inner, fire)
    }

    /// Adds several completions, oldest first, and leaves the list empty. As [`Self::push`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn push_all(&self, list: &mut Vec<Entry>) -> bool {
        let mut inner = self.inner.lock();
        let mut fire = false;
        for entry in list.drain(..) {
            fire |= self.add(&mut inner, entry);
        }
        self.finish(inner, fire)
    }

    /// True if the completion raises an event.
    #[inline(always)]
    fn add(&self, inner: &mut Inner, entry: Entry) -> bool {
        if inner.entries.len() >= inner.capacity {
            self.overflow(inner);
            return false;
        }
        let fire = inner.armed.wants(&entry);
        inner.entries.push_back(entry);
        inner.added += 1;
        if fire {
            inner.armed = Armed::No;
            inner.notified = inner.added;
        }
        fire
    }

    #[inline(always)]
    fn finish(&self, inner: Guard<'_, Inner>, fire: bool) -> bool {
        self.length.store(inner.entries.len(), Ordering::Release);
        let overflowed = inner.overflowed;
        drop(inner);
        if fire {
            self.notify();
        }
        !overflowed
    }

    #[cold]
    fn notify(&self) {
        let inner = self.inner.lock();
        self.is_armed.store(inner.armed != Armed::No, Ordering::Release);
        drop(inner);
        if let Some(events) = &self.events {
            events.completion(self.cookie.load(Ordering::Acquire));
        }
    }

    /// Completions that do not fit are lost, and the application is told once
    /// (specification 11.6.3.1: CQ error).
    #[cold]
    fn overflow(&self, inner: &mut Inner) {
        if !inner.overflowed {
            inner.overflowed = true;
            let cookie = self.cookie.load(Ordering::Acquire);
            self.shared.host.async_event(AsyncEvent::CqError, cookie);
        }
    }

    /// Removes the completions of a QP that is reset or destroyed; those of an SRQ give their
    /// receive back.
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut inner = self.inner.lock();
        inner.entries.retain(|entry| {
            let keep = entry.wc.qp_num != qpn.0;
            if !keep && let Release::Receive { slot } = entry.release {
                self.shared.released(slot).receives.fetch_add(1, Ordering::Release);
            }
            keep
        });
        self.length.store(inner.entries.len(), Ordering::Release);
    }
}
