//! The queue pair: its parts, its queues, and how it moves on. Its links are in `links`, its states
//! in `state`; what it does with requests is in `requester` and `responder`.

pub mod attributes;
mod hanging;
mod linking;
mod links;
mod machine;
pub(crate) mod meter;
mod spec;
mod state;

pub use self::spec::{Caps, FarEnd, Peer, QpSpec};

use self::attributes::{QpAttributes, State};
use self::hanging::Hanging;
pub(crate) use self::links::LinkEnd;
use self::links::Links;
use self::machine::Machine;
use self::meter::Meter;
use crate::constants::opcode;
use crate::cq::{Cq, Release};
use crate::gather::Sge;
use crate::grants::Grants;
use crate::lock::lock;
use crate::lock::{Guard, Lock};
use crate::region::RegionCache;
use crate::requester::{Patience, SendQueue, Tracing, Unresolved, Waiting};
use crate::responder::Receives;
use crate::shared::{AsyncEvent, Shared};
use crate::srq::Srq;
use crate::work::{PostError, SendWork};
use omniverb_link::Broken;
use omniverb_ring::Window;
use omniverb_ring::window::prefetch_for_write;
use omniverb_terms::{Qpn, Service};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

pub(crate) struct Inner {
    pub(crate) machine: Machine,
    pub(crate) links: Links,
    pub(crate) unresolved: Unresolved,
    pub(crate) sends: SendQueue,
    pub(crate) waiting: Waiting,
    pub(crate) patience: Patience,
    pub(crate) receives: Receives,
    pub(crate) send_cache: RegionCache,
    pub(crate) recv_cache: RegionCache,
    pub(crate) grants: Grants,
    /// Short WRITEs that went through the ring although their target is mapped.
    pub(crate) detours: u32,
    pub(crate) meter: Meter,
    /// Some links are traced.
    pub(crate) tracing: Option<Box<Tracing>>,
    /// Requests may take the express way.
    pub(crate) express_is_open: bool,
}

/// A queue pair.
pub struct Qp {
    /// Its number.
    pub number: Qpn,
    /// How it serves its user.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Shared receive queue.
    pub srq: Option<Arc<Srq>>,
    /// Granted capacities.
    pub caps: Caps,
    /// The application's object, for events.
    pub cookie: AtomicUsize,
    pub(crate) signal_all: bool,
    pub(crate) slot: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) me: Weak<Qp>,
    inner: Lock<Inner>,
    /// The state's number, readable without the lock.
    state_hint: AtomicU32,
    /// Where the last mapped WRITE was done, less the address that it named; a hint.
    pub(crate) mapped_at: AtomicUsize,
    /// A completion did not fit into its CQ.
    lost_completion: AtomicBool,
}

impl Qp {
    /// A QP in RESET, with the number that the daemon gave it and a cache line for its counters.
    /// `None`: too many queues.
    pub fn new(
        shared: &Arc<Shared>,
        spec: QpSpec,
        number: Qpn,
        statistics: Window,
    ) -> Option<Arc<Qp>> {
        let slot = shared.take_slot()?;
        spec.send_cq.use_by_one(true);
        spec.recv_cq.use_by_one(true);
        if let Some(srq) = &spec.srq {
            srq.use_by_one(true);
        }
        let recv_max = if spec.srq.is_some() { 0 } else { spec.recv_max };
        let mut meter = Meter::new(statistics, number, spec.service);
        meter.state(State::Reset);
        Some(Arc::new_cyclic(|me| Qp {
            number,
            service: spec.service,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            srq: spec.srq,
            caps: Caps {
                send_max: spec.send_max,
                recv_max,
                send_sge_max: spec.send_sge_max,
                recv_sge_max: spec.recv_sge_max,
                inline_max: spec.inline_max,
            },
            cookie: AtomicUsize::new(0),
            signal_all: spec.signal_all,
            slot,
            shared: shared.clone(),
            me: me.clone(),
            inner: Lock::new(Inner {
                machine: Machine::default(),
                links: Links::default(),
                unresolved: Unresolved::default(),
                sends: SendQueue::default(),
                waiting: Waiting::default(),
                patience: Patience::default(),
                receives: Receives::new(recv_max, spec.recv_sge_max),
                send_cache: RegionCache::default(),
                recv_cache: RegionCache::default(),
                grants: Grants::default(),
                detours: 0,
                meter,
                tracing: None,
                express_is_open: false,
            }),
            state_hint: AtomicU32::new(State::Reset as u32),
            mapped_at: AtomicUsize::new(0),
            lost_completion: AtomicBool::new(false),
        }))
    }

    /// State now.
    pub fn state(&self) -> State {
        State::from_number(self.state_hint.load(Ordering::Acquire)).unwrap_or(State::Err)
    }

    /// State and attributes.
    pub fn query(&self) -> (State, QpAttributes) {
        let inner = self.inner.lock();
        (inner.machine.state(), *inner.machine.attributes())
    }

    pub(crate) fn inner(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    #[inline(always)]
    pub(crate) fn try_inner(&self) -> Option<Guard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Posts a send.
    ///
    /// # Errors
    /// Wrong state, opcode, number of entries or inline length; or the queue is full.
    #[inline(always)]
    pub fn post_send(&self, work: &SendWork<'_>) -> Result<(), PostError> {
        // While this checks what is posted, the line that a short request ends up in can be on its
        // way from the processor that looks at it.
        if work.opcode == opcode::RDMA_WRITE {
            let mapped = self.mapped_at.load(Ordering::Relaxed);
            prefetch_for_write(mapped.wrapping_add(work.address as usize));
        }
        self.inner.lock().post_send(self, work)
    }

    /// Posts several sends under one lock: all or none.
    ///
    /// # Errors
    /// As [`Self::post_send`]; nothing was posted.
    pub fn post_all(&self, works: &[SendWork<'_>]) -> Result<(), PostError> {
        let mut inner = self.inner.lock();
        for work in works {
            inner.check(self, work)?;
        }
        if inner.room(self) < works.len() as u64 {
            return Err(PostError::Full);
        }
        works.iter().try_for_each(|work| inner.post_send(self, work))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Wrong state, too many entries, a QP with an SRQ, or the queue is full.
    #[inline(always)]
    pub fn post_recv(&self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.machine.state() == State::Reset
            || self.srq.is_some()
            || !inner.receives.takes(list.len())
        {
            return Err(PostError::Invalid);
        }
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let capacity = inner.receives.post(wr_id, list, released).ok_or(PostError::Full)?;
        if inner.machine.state() == State::Err {
            inner.flush_receives(self);
            return Ok(());
        }
        if self.service == Service::Ud {
            inner.receives_arrived(self);
            return Ok(());
        }
        // A receive whose memory is not what it should be promises nothing.
        let sound = list.iter().all(|sge| {
            let access = crate::constants::access::LOCAL_WRITE;
            let regions = &self.shared.regions;
            crate::gather::resolve(regions, &mut inner.recv_cache, self.pd, sge, access).is_some()
        });
        let floor = inner.receives.promise(if sound { capacity } else { 0 });
        if let Some(link) = inner.links.first_mut() {
            link.credit(floor);
            if link.starved.is_some() {
                inner.receives_arrived(self);
            }
        }
        Ok(())
    }

    /// Does everything that can be done now: takes in what peers sent, sends what waits.
    pub fn pump(&self) {
        self.inner.lock().pump_all(self);
    }

    /// A completion was lost: the QP fails on the next turn (specification 11.6.3.1).
    #[cold]
    pub(crate) fn cq_overflowed(&self) {
        self.lost_completion.store(true, Ordering::Release);
        lock(&self.shared.cooling).push(self.me.clone());
        self.shared.host.attend();
    }

    /// Returns when nobody is in the middle of serving this QP: whoever looked a region up before
    /// it was removed has done with it then.
    pub fn finish_access(&self) {
        drop(self.inner.lock());
    }

    pub(crate) fn event(&self, event: AsyncEvent) {
        self.shared.host.async_event(event, self.cookie.load(Ordering::Acquire));
    }
}

impl Inner {
    /// Takes in and sends out on all links; a peer that breaks the rules breaks the QP.
    pub(crate) fn pump_all(&mut self, qp: &Qp) {
        if qp.lost_completion.swap(false, Ordering::AcqRel) && self.machine.state() != State::Reset
        {
            self.enter_error(qp, None);
        }
        for index in 0..self.links.len() {
            self.pump_link(qp, index);
        }
        self.advance(qp);
    }

    /// Takes in what arrived on one link.
    pub(crate) fn pump_link(&mut self, qp: &Qp, index: usize) {
        self.serve_link(qp, index);
        self.finish_sends(qp);
        self.hand_over(qp);
    }

    /// As [`Self::pump_link`], but leaves the completions of receives where they are.
    pub(crate) fn serve_link(&mut self, qp: &Qp, index: usize) {
        if !self.machine.receives_messages() || index >= self.links.len() {
            return;
        }
        if let Err(Broken) = self.serve(qp, index) {
            self.hand_over(qp);
            self.broken(qp, index);
        }
    }

    /// First traffic while in RTR (specification 9.7.2.1: communication established).
    #[inline(always)]
    pub(crate) fn note_traffic(&mut self, qp: &Qp) {
        if self.machine.note_traffic() && qp.service == Service::Rc {
            qp.event(AsyncEvent::CommunicationEstablished);
        }
    }

    /// Puts the receives that completed into their CQ.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, qp: &Qp) {
        if !self.receives.hand_over(|list| qp.recv_cq.push_all(list)) {
            qp.cq_overflowed();
        }
    }

    /// The application has these receives' completions, which were in no CQ. Those of a QP are
    /// counted under its lock, which is held; others may count an SRQ's at the same time.
    #[inline(always)]
    pub(crate) fn receives_taken(&mut self, qp: &Qp, count: u64) {
        match &qp.srq {
            None => self.receives.release(count),
            Some(srq) => {
                let released = &qp.shared.released(srq.slot).receives;
                released.fetch_add(count, Ordering::Release);
            }
        }
    }

    /// Receives were posted while a message waited for one.
    #[cold]
    pub(crate) fn receives_arrived(&mut self, qp: &Qp) {
        for index in 0..self.links.len() {
            if self.links[index].starved.is_some() {
                self.pump_link(qp, index);
            }
        }
    }
}

impl Qp {
    #[inline(always)]
    pub(crate) fn receive_release(&self) -> Release {
        Release::Receive { slot: self.srq.as_ref().map_or(self.slot, |srq| srq.slot) }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.shared.give_slot(self.slot);
    }
}
