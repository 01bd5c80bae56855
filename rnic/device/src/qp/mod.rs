//! Holds a queue pair's parts and takes requests of the application.
//!
//! Its links are in `link_table` and `link_setup`, its states in `state_machine` and `modify_qp`,
//! how it moves on in `progress` and `poll_link`. What it does with requests is in `requester` and
//! `responder`. `Inner` has what leads from one part to another; the rest is each part's own.

mod attached_completion_counters;
mod completion_counter_selection;
mod cq_link_registration;
mod link_setup;
mod link_table;
mod modify_qp;
mod poll_link;
mod poll_outcome;
mod progress;
pub mod qp_attributes;
mod requester;
mod responder;
mod state_machine;
mod statistics;
mod xrc;
mod xrc_relay;
mod xrc_relay_setup;
mod xrc_relay_table;

pub use self::attached_completion_counters::AttachError;
pub(crate) use self::cq_link_registration::CountsLinks;
pub(crate) use self::poll_outcome::{PollOutcome, WaitOutcome};

use self::attached_completion_counters::AttachedCounters;
use self::link_table::{LinkEnd, Links};
use self::qp_attributes::{QpAttributes, State};
use self::requester::{
    AttributeRules, PathSelection, PeerPolling, SendQueue, UnresolvedDatagrams, WaitState,
};
use self::responder::{PlainMessages, Receives};
use self::state_machine::StateMachine;
use self::statistics::Meter;
use self::xrc::XrcState;
use self::xrc_relay_table::HiddenQp;
use crate::cq::Cq;
use crate::device_shared::Shared;
use crate::granted_peer_pages::Grants;
use crate::memory_region::{Purpose, RegionCache};
use crate::platform::AsyncEvent;
use crate::receive_ring::ReceiveQueue;
use crate::region_removal_wait::{Reader, UsesRegions};
use crate::scatter_gather::Sge;
use crate::send_work_request::{PostError, PostFault, SendWork};
use crate::shared_receive_queue::Srq;
use crate::spin_lock::{Guard, Lock};
use crate::verbs_constants::opcode;
use crate::xrc_domain::Domain;
use omniverb_ring::shared_window::prefetch_for_write;
use omniverb_ring::{MemoryLender, Window};
use omniverb_terms::{Lkey, Qpn, Service};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What a QP is to be like; limits have been checked.
pub struct QpSpec {
    /// How it serves its user.
    pub service: Service,
    /// Number of its protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Receives come from here, if given.
    pub srq: Option<Arc<Srq>>,
    /// XRC: where it receives, if it does.
    pub domain: Option<Arc<Domain>>,
    /// Send work requests at most.
    pub send_max: u32,
    /// Receive work requests at most.
    pub recv_max: u32,
    /// Scatter/gather entries per send.
    pub send_sge_max: u32,
    /// Scatter/gather entries per receive.
    pub recv_sge_max: u32,
    /// Inline bytes at most.
    pub inline_max: u32,
    /// Which sends have an entry in the CQ when they succeed.
    pub signaling: Signaling,
    /// Whose memory its receives are in.
    pub lending: MemoryLender,
}

/// Which sends have an entry in the CQ when they succeed. Those that fail always have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaling {
    /// Those that are flagged so.
    Flagged,
    /// All: `sq_sig_all`.
    All,
}

/// The protection domain of queue pairs that have none: no object of an application is in it.
const NO_PD: u32 = u32::MAX;

impl QpSpec {
    /// One that has nothing but its connection, of a service that can do with that: nothing ever
    /// completes there, and keys count by the protection domain of an SRQ that is named.
    #[must_use]
    pub fn bare(shared: &Arc<Shared>, service: Service, domain: Option<Arc<Domain>>) -> QpSpec {
        let cq = Cq::new(shared, 1, None);
        QpSpec {
            service,
            pd: NO_PD,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            domain,
            send_max: 0,
            recv_max: 0,
            send_sge_max: 0,
            recv_sge_max: 0,
            inline_max: 0,
            signaling: Signaling::Flagged,
            lending: None,
        }
    }
}

/// What a QP has room for, which is no less than was asked for.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // as in struct ibv_qp_cap
pub struct Caps {
    pub send_max: u32,
    pub recv_max: u32,
    pub send_sge_max: u32,
    pub recv_sge_max: u32,
    pub inline_max: u32,
}

/// What is behind the lock of a queue pair: parts, each of which keeps its own order.
pub(crate) struct Inner {
    machine: StateMachine,
    pub(crate) links: Links,
    unresolved: UnresolvedDatagrams,
    sends: SendQueue,
    waiting: WaitState,
    patience: PeerPolling,
    receives: Receives,
    /// What sends were gathered from last.
    send_cache: RegionCache,
    /// What was scattered to last.
    recv_cache: RegionCache,
    /// Looks remote keys up.
    reader: Reader,
    grants: Grants,
    meter: Meter,
    path: PathSelection,
    extended: XrcState,
    counting: AttachedCounters,
    /// Windows may be bound to it.
    has_bound: bool,
}

/// A queue pair.
pub struct Qp {
    /// Its number, which the daemon gave.
    pub number: Qpn,
    /// How it serves its user.
    pub service: Service,
    /// Number of its protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where its receives come from, if they are not its own.
    pub srq: Option<Arc<Srq>>,
    /// What it has room for.
    pub caps: Caps,
    /// The application's object, for events.
    pub cookie: AtomicUsize,
    /// Every send completes with an entry in the CQ.
    signaling: Signaling,
    /// It has receives of its own.
    posts_receives: bool,
    /// The protection domain of its receives: the SRQ's, if it has one.
    receive_pd: u32,
    /// Where the CQs count what the application took back.
    slot: u32,
    shared: Arc<Shared>,
    /// Itself, for objects that come back to it later.
    me: Weak<Qp>,
    inner: Lock<Inner>,
    /// The state's number, readable without the lock.
    state_hint: AtomicU32,
    /// Where the last mapped WRITE was done, less the address that it named; a hint.
    mapped_at: AtomicUsize,
    /// A completion did not fit into its CQ.
    lost_completion: AtomicBool,
    /// XRC: what it is to other processes of its domain, if it is not the application's.
    hidden: HiddenQp<Qp>,
}

impl Qp {
    /// A QP in RESET, with the number that the daemon gave it and a cache line for its counters.
    /// `None`: too many queues, or no memory where it is lent.
    pub fn new(
        shared: &Arc<Shared>,
        spec: QpSpec,
        number: Qpn,
        statistics: Window,
    ) -> Option<Arc<Qp>> {
        let posts_receives = spec.srq.is_none() && !spec.service.is_extended();
        let recv_max = if posts_receives { spec.recv_max } else { 0 };
        let receives = ReceiveQueue::new(recv_max, spec.recv_sge_max, &spec.lending).ok()?;
        let slot = shared.take_slot()?;
        spec.send_cq.begin_use();
        spec.recv_cq.begin_use();
        if let Some(srq) = &spec.srq {
            srq.begin_use();
        }
        let plain = match spec.service {
            Service::Rc => PlainMessages::Allowed,
            _ => PlainMessages::Barred,
        };
        let mut meter = Meter::new(statistics, number, spec.service);
        meter.state(State::Reset);
        let domain = spec.domain.clone();
        let extended = XrcState::new(spec.domain);
        let qp = Arc::new_cyclic(|me: &Weak<Qp>| Qp {
            number,
            service: spec.service,
            pd: spec.pd,
            receive_pd: spec.srq.as_ref().map_or(spec.pd, |srq| srq.pd),
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
            signaling: spec.signaling,
            posts_receives,
            slot,
            shared: shared.clone(),
            me: me.clone(),
            inner: Lock::new(Inner {
                machine: StateMachine::default(),
                links: Links::default(),
                unresolved: UnresolvedDatagrams::default(),
                sends: SendQueue::default(),
                waiting: WaitState::default(),
                patience: PeerPolling::default(),
                receives: Receives::new(receives, plain),
                send_cache: RegionCache::of(me.clone(), Purpose::Sends),
                recv_cache: RegionCache::of(me.clone(), Purpose::Receives),
                reader: Reader::of(me.clone()),
                grants: Grants::default(),
                meter,
                path: PathSelection::new(if shared.host.is_strict() {
                    AttributeRules::Strict
                } else {
                    AttributeRules::Lenient
                }),
                extended,
                counting: AttachedCounters::default(),
                has_bound: false,
            }),
            state_hint: AtomicU32::new(State::Reset as u32),
            mapped_at: AtomicUsize::new(0),
            lost_completion: AtomicBool::new(false),
            hidden: HiddenQp::default(),
        });
        if let Some(domain) = domain {
            domain.add_qp(&qp);
        }
        Some(qp)
    }

    /// The state it is in, as far as one can tell without waiting for its lock.
    pub fn state(&self) -> State {
        State::from_number(self.state_hint.load(Ordering::Acquire)).unwrap_or(State::Err)
    }

    /// The state it is in, and its attributes.
    pub fn query(&self) -> (State, QpAttributes) {
        let inner = self.inner.lock();
        (inner.machine.state(), *inner.machine.attributes())
    }

    /// Itself, which it does not keep alive.
    pub(crate) fn weak(&self) -> Weak<Qp> {
        self.me.clone()
    }

    fn inner(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    #[inline(always)]
    pub(crate) fn try_inner(&self) -> Option<Guard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Posts a send, which may be complete already when this returns.
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
        let mut inner = self.inner.lock();
        let posted = inner.post_send(self, work);
        self.let_leave(inner);
        posted
    }

    /// What was posted may leave, if its link leads to an engine, which may be this process.
    #[inline(always)]
    fn let_leave(&self, inner: Guard<'_, Inner>) {
        let beyond = inner.links.first().is_some_and(|link| link.peer.is_beyond_engine());
        drop(inner);
        if beyond {
            self.shared.host.posted_to_network();
        }
    }

    /// Posts several sends under one lock: all or none.
    ///
    /// # Errors
    /// As [`Self::post_send`]; nothing was posted.
    pub fn post_all(&self, works: &[SendWork<'_>]) -> Result<(), PostError> {
        let mut inner = self.inner.lock();
        for work in works {
            inner.machine.check_post(self, work)?;
        }
        let posted = inner.sends.posted();
        let room = inner.sends.room(self).max(inner.counting.room(self, posted));
        if room < works.len() as u64 {
            return Err(PostError::Full);
        }
        let posted = works.iter().try_for_each(|work| inner.post_send(self, work));
        self.let_leave(inner);
        posted
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
            || !self.posts_receives
            || !inner.receives.takes(list.len())
        {
            return Err(PostError::Invalid(match inner.machine.state() {
                State::Reset => PostFault::State,
                _ if !self.posts_receives => PostFault::Receives,
                _ => PostFault::Entries,
            }));
        }
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let capacity = inner.receives.post(wr_id, list, released).ok_or(PostError::Full)?;
        if inner.machine.state() == State::Err {
            inner.deliveries().flush(self);
            return Ok(());
        }
        if self.service == Service::Ud {
            inner.poll_starved_links(self);
            return Ok(());
        }
        // A receive whose memory is not what it should be promises nothing, nor one whose memory
        // may go.
        let sound = list.iter().all(|sge| {
            let access = crate::verbs_constants::access::LOCAL_WRITE;
            let regions = &self.shared.regions;
            let cache = &mut inner.recv_cache;
            crate::scatter_gather::resolve(regions, cache, self.pd, sge, access).is_some()
                && cache.latest().is_none_or(|region| region.extras.looks.is_none())
        });
        let floor = inner.receives.promise(if sound { capacity } else { 0 });
        // Where messages come in: of one that is connected with itself, not where they go out.
        if let Some(link) = inner.links.last_mut() {
            link.credit(floor);
            if link.is_starved() {
                inner.poll_starved_links(self);
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
        self.shared.look_again(&self.me);
        self.shared.host.attend();
    }

    /// Returns when no thread is in the middle of serving this QP.
    pub fn finish_access(&self) {
        drop(self.inner.lock());
    }

    /// Notes the receives that are posted, for regions that may become others.
    pub fn note_receives(&self) {
        let inner = self.inner.lock();
        if self.promises_receives() {
            let user: Weak<dyn UsesRegions> = self.me.clone();
            let note = |lkey| self.shared.regions.note_receive(lkey, &user);
            inner.receives.lkeys().for_each(note);
        }
    }

    /// Whether its receives promise something to the sender.
    fn promises_receives(&self) -> bool {
        self.service == Service::Rc && self.srq.is_none()
    }

    /// With its lock held.
    pub(crate) fn event(&self, event: AsyncEvent) {
        self.shared.host.async_event(event, self.cookie.load(Ordering::Acquire));
        if self.service == Service::XrcRecv && !self.is_hidden() {
            self.shared.host.receiver_event(self.number, event);
        }
    }

    /// This has happened to the queue pair of another process that this one is here for.
    pub fn tell(&self, event: AsyncEvent) {
        let _nobody_destroys_it = self.inner();
        self.shared.host.async_event(event, self.cookie.load(Ordering::Acquire));
    }
}

impl UsesRegions for Qp {
    fn finish_access(&self) {
        Qp::finish_access(self);
    }

    /// A message for a receive that names the key may fail, so its sender is to wait for what
    /// becomes of it.
    fn doubt_receives(&self, lkey: Lkey) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if self.promises_receives() && inner.receives.doubt(lkey) {
            inner.links.iter_mut().for_each(LinkEnd::promise_nothing);
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.shared.give_slot(self.slot);
    }
}
