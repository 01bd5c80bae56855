//! Implements the shared receive queue.

use crate::cq::Cq;
use crate::device_shared::Shared;
use crate::platform::AsyncEvent;
use crate::qp::Qp;
use crate::receive_ring::{Receive, ReceiveQueue};
use crate::scatter_gather::Sge;
use crate::send_work_request::{PostError, PostFault};
use crate::spin_lock::{Lock, lock};
use crate::xrc_domain::Domain;
use omniverb_ring::{MemoryLender, NoMemory};
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

struct Inner {
    queue: ReceiveQueue,
    limit: u32,
    /// QPs with a message at hand and no receive for it.
    starving: Vec<Weak<Qp>>,
}

/// What a shared receive queue is to be like; limits have been checked.
pub struct SrqSpec {
    /// Number of its protection domain.
    pub pd: u32,
    /// Receives it may hold.
    pub capacity: u32,
    /// Entries per receive.
    pub sge_max: u32,
    /// XRC: where its receives complete, and the domain in which peers name it by a number.
    pub extended: Option<(Arc<Cq>, Arc<Domain>)>,
    /// Whose memory its receives are in.
    pub lending: MemoryLender,
}

/// Why a shared receive queue is not resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// It holds more receives, or its limit is beyond that.
    TooFew,
    /// The lender of its memory has none of the new size.
    NoMemory,
}

/// A shared receive queue.
pub struct Srq {
    inner: Lock<Inner>,
    slot: u32,
    /// Number of its protection domain.
    pub pd: u32,
    /// XRC: where its receives complete.
    pub(crate) cq: Option<Arc<Cq>>,
    /// XRC: by which number peers name it, in which domain.
    extended: Option<(u32, Arc<Domain>)>,
    /// The application's object, for events.
    pub cookie: AtomicUsize,
    users: AtomicUsize,
    /// XRC: queue pairs that place messages in it, or are to place the next one there.
    holders: Mutex<HashMap<Qpn, Weak<Qp>>>,
    /// Whose memory its receives are in.
    lending: MemoryLender,
    shared: Arc<Shared>,
}

impl Srq {
    /// Room for `capacity` receives of `sge_max` entries each. `None`: too many queues.
    pub fn new(shared: &Arc<Shared>, pd: u32, capacity: u32, sge_max: u32) -> Option<Arc<Srq>> {
        Srq::of(shared, SrqSpec { pd, capacity, sge_max, extended: None, lending: None })
    }

    /// The same for XRC: peers name it by a number in `domain`, and its receives complete in `cq`.
    pub fn extended(
        shared: &Arc<Shared>,
        pd: u32,
        (capacity, sge_max): (u32, u32),
        cq: &Arc<Cq>,
        domain: &Arc<Domain>,
    ) -> Option<Arc<Srq>> {
        let extended = Some((cq.clone(), domain.clone()));
        Srq::of(shared, SrqSpec { pd, capacity, sge_max, extended, lending: None })
    }

    /// A queue like that. `None`: too many queues, or no memory where it is lent.
    pub fn of(shared: &Arc<Shared>, spec: SrqSpec) -> Option<Arc<Srq>> {
        let SrqSpec { pd, capacity, sge_max, extended, lending } = spec;
        let queue = ReceiveQueue::new(capacity, sge_max, &lending).ok()?;
        let mut srq = Srq::make(shared, pd, queue, shared.take_slot()?);
        srq.lending = lending;
        let Some((cq, domain)) = extended else { return Some(Arc::new(srq)) };
        srq.cq = Some(cq.clone());
        let made = domain.add_srq(|number| {
            srq.extended = Some((number, domain.clone()));
            Arc::new(srq)
        })?;
        cq.begin_use();
        Some(made)
    }

    fn make(shared: &Arc<Shared>, pd: u32, queue: ReceiveQueue, slot: u32) -> Srq {
        Srq {
            inner: Lock::new(Inner { queue, limit: 0, starving: Vec::new() }),
            slot,
            pd,
            cq: None,
            extended: None,
            cookie: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
            holders: Mutex::default(),
            lending: None,
            shared: shared.clone(),
        }
    }

    /// XRC: the number that peers name it by.
    pub fn number(&self) -> Option<u32> {
        self.extended.as_ref().map(|(number, _)| *number)
    }

    /// XRC: takes it out of its domain. No completion of it is left anywhere afterwards. Others
    /// have nothing to end.
    pub fn retire(&self) {
        if let Some((number, domain)) = &self.extended {
            domain.remove_srq(self, *number);
        }
        if let Some(cq) = &self.cq {
            cq.purge_receives(self.slot);
            cq.end_use();
        }
    }

    /// The application has destroyed it: memory that was lent is back when this returns, even if a
    /// thread still looks at this queue.
    pub fn give_up(&self) {
        let queue = std::mem::replace(&mut self.inner.lock().queue, ReceiveQueue::none());
        // A lender is the program's code: it is not called under a lock.
        drop(queue);
    }

    /// (receives it may hold, entries per receive, limit).
    pub fn query(&self) -> (u32, u32, u32) {
        let inner = self.inner.lock();
        (inner.queue.capacity(), inner.queue.sge_max(), inner.limit)
    }

    /// Arms the event that fewer receives than `limit` are left. Says whether that was done: not if
    /// the limit is beyond the capacity.
    pub fn set_limit(&self, limit: u32) -> bool {
        let mut inner = self.inner.lock();
        if limit > inner.queue.capacity() {
            return false;
        }
        inner.limit = limit;
        // Armed below the limit already: the event is due at once.
        self.check_limit(&mut inner);
        true
    }

    /// Changes how many receives it may hold.
    ///
    /// # Errors
    /// It holds more, or there is no memory where it is lent.
    pub fn resize(&self, capacity: u32) -> Result<(), ResizeError> {
        let (_, sge_max, _) = self.query();
        // A lender is not called under the lock. What was lent goes back as this returns, the new
        // or the old.
        let mut other = ReceiveQueue::new(capacity, sge_max, &self.lending)
            .map_err(|NoMemory| ResizeError::NoMemory)?;
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let mut inner = self.inner.lock();
        match inner.limit <= capacity && inner.queue.move_to(&mut other, released) {
            true => Ok(()),
            false => Err(ResizeError::TooFew),
        }
    }

    /// Whether QPs use it.
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

    /// XRC: a queue pair has it, until it [has no more](Self::remove_holder).
    pub(crate) fn add_holder(&self, qp: &Qp) {
        lock(&self.holders).insert(qp.number, qp.weak());
    }

    /// XRC: a queue pair has it no more.
    pub(crate) fn remove_holder(&self, qpn: Qpn) {
        lock(&self.holders).remove(&qpn);
    }

    /// XRC: all queue pairs that have it, for the last time.
    pub(crate) fn take_holders(&self) -> Vec<Weak<Qp>> {
        std::mem::take(&mut *lock(&self.holders)).into_values().collect()
    }

    /// Its slot among what the application took back; see [`Shared::released`].
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Too many entries, or the queue is full.
    pub fn post(&self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let starving = {
            let mut inner = self.inner.lock();
            if list.len() > inner.queue.sge_max() as usize {
                return Err(PostError::Invalid(PostFault::Entries));
            }
            inner.queue.post(wr_id, list, released).ok_or(PostError::Full)?;
            std::mem::take(&mut inner.starving)
        };
        for qp in starving.iter().filter_map(Weak::upgrade) {
            qp.pump();
        }
        Ok(())
    }

    /// Takes a receive for `qp`; if there is none, `qp` is pumped when one is posted.
    pub(crate) fn take(&self, qp: &Weak<Qp>) -> Option<Receive> {
        let mut inner = self.inner.lock();
        let receive = inner.queue.take();
        if receive.is_none() {
            if !inner.starving.iter().any(|other| other.ptr_eq(qp)) {
                inner.starving.push(qp.clone());
            }
        } else {
            self.check_limit(&mut inner);
        }
        receive
    }

    fn check_limit(&self, inner: &mut Inner) {
        if inner.queue.waiting() < u64::from(inner.limit) {
            inner.limit = 0;
            let cookie = self.cookie.load(Ordering::Acquire);
            self.shared.host.async_event(AsyncEvent::SrqLimitReached, cookie);
        }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.shared.give_slot(self.slot);
    }
}
