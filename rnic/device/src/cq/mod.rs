//! The completion queue: private to the process, filled by QPs, emptied by polls.

pub mod background_progress;
mod capacity_and_memory;
pub(crate) mod completion_entry;
mod empty_poll;
mod link_count;
mod poll_rate;
mod watched_links;
mod yield_policy;

pub(crate) use self::completion_entry::{Entry, SlotRelease, SolicitedEvent};
use self::link_count::LinkCount;
use self::poll_rate::PollCounter;
pub(crate) use self::watched_links::WatchedLink;
use self::watched_links::WatchedLinks;
use crate::cq_entry_fifo::Fifo;
use crate::device_shared::Shared;
use crate::limits::REMIND_AFTER;
use crate::link_peer::FarEnd;
use crate::platform::AsyncEvent;
use crate::qp::CountsLinks;
use crate::spin_lock::{Guard, Lock};
use crate::verbs_constants::{Wc, status};
use omniverb_ring::MemoryLender;
use omniverb_terms::Qpn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Where notifications go: a completion channel.
pub trait CompletionEvents: Send + Sync {
    /// The armed CQ with this cookie got a completion.
    fn completion(&self, cookie: usize);
}

/// Which completions an application wishes to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion, whatever it is.
    Any,
    /// Those whose sender asked for it, and those that failed.
    Solicited,
}

/// What becomes of a queue that has more completions than room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrun {
    /// The application is told, and what does not fit is lost (specification 11.6.3.1: CQ error).
    #[default]
    Fails,
    /// It loses its oldest completions, without an event.
    LosesOldest,
}

/// How a queue differs from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqOptions {
    /// What becomes of it when it overflows.
    pub overrun: Overrun,
    /// When completions came is kept.
    pub is_stamped: bool,
}

/// Which completion raises an event next.
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
            Armed::Solicited => {
                entry.solicits() == SolicitedEvent::Event || entry.wc.status != status::SUCCESS
            }
        }
    }
}

struct Inner {
    entries: Fifo<Entry>,
    /// When each came, in nanoseconds of the host's clock; of a stamped queue.
    times: Fifo<u64>,
    /// Completions ever added; how many of them were there when a poll last left some.
    added: u64,
    passed_over: u64,
    /// When an event tells of those, in nanoseconds of the host's clock, if they are there still.
    remind_at: Option<u64>,
    /// The first completion that the armed queue got while a poll of several steps was under way.
    withheld: Option<u64>,
    capacity: usize,
    armed: Armed,
    overflowed: bool,
}

impl Inner {
    /// Whether completions wait that a poll has left, and that the queue is armed for.
    fn has_left_some(&self) -> bool {
        let oldest = self.added - self.entries.len() as u64;
        let left = self.passed_over.saturating_sub(oldest) as usize;
        self.entries.iter().take(left).any(|entry| self.armed.wants(entry))
    }

    /// A poll is over. Says whether it has left completions although the queue is armed.
    #[inline(always)]
    fn end_poll(&mut self) -> bool {
        if self.entries.len() == 0 {
            return false;
        }
        self.passed_over = self.added;
        self.armed != Armed::No
    }
}

/// A completion queue.
pub struct Cq {
    inner: Lock<Inner>,
    /// Entries, readable without the lock.
    length: AtomicUsize,
    options: CqOptions,
    events: Option<Arc<dyn CompletionEvents>>,
    /// The application's object, for events.
    pub cookie: AtomicUsize,
    watch: WatchedLinks,
    links: LinkCount,
    attendance: PollCounter,
    is_armed: AtomicBool,
    /// A poll of several steps is under way.
    is_being_polled: AtomicBool,
    /// QPs and SRQs that use it.
    users: AtomicUsize,
    /// Whose memory its entries are in.
    lending: MemoryLender,
    shared: Arc<Shared>,
}

impl Cq {
    /// A queue for `capacity` completions.
    pub fn new(
        shared: &Arc<Shared>,
        capacity: u32,
        events: Option<Arc<dyn CompletionEvents>>,
    ) -> Arc<Cq> {
        Cq::with_options(shared, capacity, events, CqOptions::default())
    }

    /// The same, that differs from others.
    pub fn with_options(
        shared: &Arc<Shared>,
        capacity: u32,
        events: Option<Arc<dyn CompletionEvents>>,
        options: CqOptions,
    ) -> Arc<Cq> {
        let entries = Fifo::own(capacity as usize);
        Cq::of(shared, capacity, (entries, Fifo::default()), events, options, None)
    }

    fn of(
        shared: &Arc<Shared>,
        capacity: u32,
        (entries, times): (Fifo<Entry>, Fifo<u64>),
        events: Option<Arc<dyn CompletionEvents>>,
        options: CqOptions,
        lending: MemoryLender,
    ) -> Arc<Cq> {
        let cq = Arc::new(Cq {
            inner: Lock::new(Inner {
                entries,
                times,
                capacity: capacity as usize,
                added: 0,
                passed_over: 0,
                remind_at: None,
                withheld: None,
                armed: Armed::No,
                overflowed: false,
            }),
            length: AtomicUsize::new(0),
            options,
            events,
            cookie: AtomicUsize::new(0),
            watch: WatchedLinks::default(),
            links: LinkCount::default(),
            attendance: PollCounter::default(),
            is_armed: AtomicBool::new(false),
            is_being_polled: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            lending,
            shared: shared.clone(),
        });
        shared.add_cq(&cq);
        cq
    }

    /// Whether QPs still use it.
    pub fn is_busy(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// One more QP uses it.
    pub(crate) fn begin_use(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One QP does no longer.
    pub(crate) fn end_use(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Has polls look at a link by themselves, if they are not too seldom, there is room and no
    /// poll is under way just now.
    pub(crate) fn try_watch(&self, link: impl FnOnce() -> Option<WatchedLink>) {
        if self.attendance.may_watch() {
            self.watch.try_add(link);
        }
    }

    /// Polls do not look at this QP's links any more: they are gone.
    pub(crate) fn unwatch(&self, qpn: Qpn) {
        self.watch.forget(qpn);
    }

    /// The next completion that is added (or the next solicited or failed one) raises an event. One
    /// that is there raises none (specification 11.4.2.2): programs look after arming.
    ///
    /// But for those that a poll has left: programs that take a few completions an event are used
    /// to NICs that compare with what has been polled, and would sleep for ever.
    pub fn arm(&self, wish: Notify) {
        let mut inner = self.inner.lock();
        // A pending request for any completion is not weakened (specification 11.4.2.2).
        if inner.armed != Armed::Any {
            inner.armed = match wish {
                Notify::Solicited => Armed::Solicited,
                Notify::Any => Armed::Any,
            };
        }
        inner.remind_at = None;
        if inner.has_left_some() {
            inner.armed = Armed::No;
            drop(inner);
            return self.notify();
        }
        self.is_armed.store(true, Ordering::Release);
        drop(inner);
        self.shared.bells.want_kicks();
    }

    /// A poll of several steps begins (`ibv_start_poll`). What is added meanwhile, and taken by it,
    /// raises no event: a request that the program posts between two steps may be complete at once.
    #[inline(always)]
    pub fn begin_poll(&self) {
        if self.events.is_some() {
            self.is_being_polled.store(true, Ordering::Release);
        }
    }

    /// It is over.
    #[inline(always)]
    pub fn end_poll(&self) {
        if self.events.is_some() {
            self.raise_withheld();
        }
    }

    #[inline(never)]
    fn raise_withheld(&self) {
        let mut inner = self.inner.lock();
        self.is_being_polled.store(false, Ordering::Release);
        let Some(first) = inner.withheld.take() else { return };
        let oldest = inner.added - inner.entries.len() as u64;
        let taken = first.saturating_sub(oldest) as usize;
        if inner.entries.iter().skip(taken).any(|entry| inner.armed.wants(entry)) {
            inner.armed = Armed::No;
            drop(inner);
            self.notify();
        }
    }

    /// A poll of an armed queue has left completions: if they are there a moment later, the program
    /// waits for an event. A turn of the progress thread says so.
    #[cold]
    fn remind_later(&self, inner: &mut Inner) {
        if self.events.is_some() && inner.remind_at.is_none() && inner.has_left_some() {
            inner.remind_at = Some(self.shared.host.now().saturating_add(REMIND_AFTER));
            self.shared.host.attend();
        }
    }

    /// Raises the event that is due, if one is. Says when one will be.
    pub(crate) fn remind(&self, now: u64) -> Option<u64> {
        let mut inner = self.inner.lock();
        let due = inner.remind_at?;
        if now < due {
            return Some(due);
        }
        inner.remind_at = None;
        if inner.has_left_some() {
            inner.armed = Armed::No;
            drop(inner);
            self.notify();
        }
        None
    }

    /// Whether a completion may go to a poller without having been in the queue. Call with the QP
    /// locked whose completion it is.
    #[inline(always)]
    pub(crate) fn is_bypassable(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
            && !self.is_armed.load(Ordering::Acquire)
            && !self.options.is_stamped
    }

    /// Takes up to `out.len()` completions, without looking for new ones.
    #[inline(always)]
    pub(crate) fn take(&self, out: &mut [Wc]) -> usize {
        if self.length.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut inner = self.inner.lock();
        let count = out.len().min(inner.entries.len());
        for (index, place) in out.iter_mut().take(count).enumerate() {
            let Some(entry) = inner.entries.get(index) else { break };
            *place = entry.wc;
            self.give_back(entry.release());
        }
        inner.entries.pass(count);
        if self.options.is_stamped {
            inner.times.pass(count);
        }
        self.length.store(inner.entries.len(), Ordering::Release);
        if inner.end_poll() {
            self.remind_later(&mut inner);
        }
        count
    }

    /// Takes one completion of a stamped queue, and when it came.
    pub(crate) fn take_stamped(&self) -> Option<(Wc, u64)> {
        let mut inner = self.inner.lock();
        let entry = inner.entries.pop()?;
        let time = inner.times.pop().unwrap_or_default();
        self.give_back(entry.release());
        self.length.store(inner.entries.len(), Ordering::Release);
        if inner.end_poll() {
            self.remind_later(&mut inner);
        }
        Some((entry.wc, time))
    }

    /// What a completion stands for is the application's again.
    #[inline(always)]
    fn give_back(&self, release: SlotRelease) {
        match release {
            SlotRelease::Send { slot, position } => {
                if let Some(released) = self.shared.find_released(slot) {
                    released.sends.store(position, Ordering::Release);
                }
            }
            SlotRelease::Receive { slot } => {
                if let Some(released) = self.shared.find_released(slot) {
                    released.receives.fetch_add(1, Ordering::Release);
                }
            }
        }
    }

    /// Adds a completion. False: this queue has lost completions.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push(&self, entry: Entry) -> bool {
        let mut inner = self.inner.lock();
        let fire = self.add(&mut inner, entry);
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
            if self.options.overrun == Overrun::Fails {
                return false;
            }
        }
        let mut fire = inner.armed.wants(&entry);
        if fire && self.is_being_polled.load(Ordering::Acquire) {
            inner.withheld.get_or_insert(inner.added);
            fire = false;
        }
        if self.options.is_stamped {
            inner.times.push(self.shared.host.now());
        }
        inner.entries.push(entry);
        inner.added += 1;
        if fire {
            inner.armed = Armed::No;
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
        if self.options.overrun == Overrun::LosesOldest {
            inner.times.pop();
            if let Some(oldest) = inner.entries.pop() {
                self.give_back(oldest.release());
            }
            return;
        }
        if !inner.overflowed {
            inner.overflowed = true;
            let cookie = self.cookie.load(Ordering::Acquire);
            self.shared.host.async_event(AsyncEvent::CqError, cookie);
        }
    }

    /// Removes the completions of a QP that is reset or destroyed; those of an SRQ give their
    /// receive back.
    pub(crate) fn purge(&self, qpn: Qpn) {
        self.drop_those(|entry| entry.wc.qp_num == qpn.0);
    }

    /// Removes the completions of the receives of an SRQ that is destroyed.
    pub(crate) fn purge_receives(&self, of: u32) {
        let of_it =
            |entry: &Entry| matches!(entry.release(), SlotRelease::Receive { slot } if slot == of);
        self.drop_those(of_it);
    }

    fn drop_those(&self, which: impl Fn(&Entry) -> bool) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut kept = 0;
        for index in 0..inner.entries.len() {
            let Some(&entry) = inner.entries.get(index) else { break };
            if !which(&entry) {
                inner.entries.replace(kept, entry);
                if let Some(&time) = inner.times.get(index) {
                    inner.times.replace(kept, time);
                }
                kept += 1;
            } else if let SlotRelease::Receive { .. } = entry.release() {
                self.give_back(entry.release());
            }
        }
        inner.entries.truncate(kept);
        inner.times.truncate(kept);
        self.length.store(inner.entries.len(), Ordering::Release);
    }
}

impl CountsLinks for Cq {
    fn link_begins(&self, far_end: FarEnd) {
        self.links.add(far_end);
    }

    fn link_ends(&self, far_end: FarEnd) {
        self.links.remove(far_end);
    }
}
