//! The shared receive queue.

use crate::cq::Cq;
use crate::domain::Domain;
use crate::gather::Sge;
use crate::host::AsyncEvent;
use crate::lock::Lock;
use crate::qp::Qp;
use crate::queue::{Receive, ReceiveQueue};
use crate::shared::Shared;
use crate::work::{PostError, PostFault};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

struct Inner {
    queue: ReceiveQueue,
    limit: u32,
    /// QPs with a message at hand and no receive for it.
    starving: Vec<Weak<Qp>>,
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
    shared: Arc<Shared>,
}

impl Srq {
    /// Room for `capacity` receives of `sge_max` entries each. `None`: too many queues.
    pub fn new(shared: &Arc<Shared>, pd: u32, capacity: u32, sge_max: u32) -> Option<Arc<Srq>> {
        Some(Arc::new(Srq::make(shared, pd, (capacity, sge_max), shared.take_slot()?)))
    }

    /// The same for XRC: peers name it by a number in `domain`, and its receives complete in `cq`.
    pub fn extended(
        shared: &Arc<Shared>,
        pd: u32,
        (capacity, sge_max): (u32, u32),
        cq: &Arc<Cq>,
        domain: &Arc<Domain>,
    ) -> Option<Arc<Srq>> {
        let slot = shared.take_slot()?;
        let mut srq = Srq::make(shared, pd, (capacity, sge_max), slot);
        srq.cq = Some(cq.clone());
        let made = domain.add_srq(|number| {
            srq.extended = Some((number, domain.clone()));
            Arc::new(srq)
        })?;
        cq.begin_use();
        Some(made)
    }

    fn make(shared: &Arc<Shared>, pd: u32, (capacity, sge_max): (u32, u32), slot: u32) -> Srq {
        Srq {
            inner: Lock::new(Inner {
                queue: ReceiveQueue::new(capacity, sge_max),
                limit: 0,
                starving: Vec::new(),
            }),
            slot,
            pd,
            cq: None,
            extended: None,
            cookie: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
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

    /// Changes how many receives it may hold. Says whether that was done: not if it holds more, or
    /// the limit is beyond that.
    pub fn resize(&self, capacity: u32) -> bool {
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let mut inner = self.inner.lock();
        inner.limit <= capacity && inner.queue.resize(capacity, released)
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
