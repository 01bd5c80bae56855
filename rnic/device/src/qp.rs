//! The queue pair: its state, its queues, its links. What it does with them is in `requester` and
//! `responder`.

use crate::attributes::{QpAttributes, QpMask, State, transition_is_valid};
use crate::constants::{Wc, qp_type, status, wc_opcode};
use crate::cq::{Cq, Entry, Release};
use crate::gather::Sge;
use crate::grants::{Grant, Grants};
use crate::limits;
use crate::meter::Meter;
use crate::queue::{Receive, ReceiveQueue};
use crate::region::RegionCache;
use crate::requester::{Held, SendEntry, Wait};
use crate::responder::Incoming;
use crate::shared::{AsyncEvent, Shared, lock, try_lock};
use crate::srq::Srq;
use crate::work::{Destination, PostError, SendWork};
use omniverb_link::{Broken, Endpoint};
use omniverb_ring::Window;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// What a QP is made of.
pub struct QpInit {
    /// `IBV_QPT_*`.
    pub kind: u32,
    /// Number the daemon gave it.
    pub number: u32,
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Receives come from here, if given.
    pub srq: Option<Arc<Srq>>,
    /// Send work requests at most.
    pub send_max: u32,
    /// Receive work requests at most.
    pub recv_max: u32,
    /// Entries per send.
    pub send_sge_max: u32,
    /// Entries per receive.
    pub recv_sge_max: u32,
    /// Inline bytes at most.
    pub inline_max: u32,
    /// Every send is signalled.
    pub signal_all: bool,
    /// Counters, one cache line.
    pub statistics: Window,
}

/// Who is at the far end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its QP.
    pub qpn: u32,
    /// Its GID.
    pub dgid: [u8; 16],
    /// Ours.
    pub sgid: [u8; 16],
}

/// A link of this QP and what is in flight on it.
pub(crate) struct LinkEnd {
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: Peer,
    pub(crate) incoming: Incoming,
    /// The request at the head waits for a receive, since this time (UC, UD).
    pub(crate) starved: Option<u64>,
    /// Receives posted since the link is there, those before included.
    pub(crate) credits: u32,
    /// Polls without news; see the poller.
    pub(crate) idle: u32,
    /// Poll lists that look at this link by themselves.
    pub(crate) watchers: u8,
    /// A datagram or UC message was dropped for want of room; drop at once until there is room.
    pub(crate) lossy: bool,
}

pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) attributes: QpAttributes,
    pub(crate) links: Vec<LinkEnd>,
    pub(crate) by_destination: HashMap<Destination, usize>,
    pub(crate) unreachable: Vec<(Destination, u64)>,
    /// Datagrams to destinations whose link is being made.
    pub(crate) held: Held,
    pub(crate) sends: VecDeque<SendEntry>,
    /// Entries at the front of `sends` that are on their way.
    pub(crate) started: usize,
    pub(crate) posted: u64,
    pub(crate) wait: Option<Wait>,
    pub(crate) on_waiting_list: bool,
    pub(crate) receives: ReceiveQueue,
    /// Receives that completed in the batch being served; they reach the CQ together.
    pub(crate) fresh: Vec<Entry>,
    pub(crate) floor: u32,
    pub(crate) send_cache: RegionCache,
    pub(crate) recv_cache: RegionCache,
    pub(crate) grants: Grants,
    pub(crate) meter: Meter,
    established: bool,
    notify_drained: bool,
}

/// A queue pair.
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// `IBV_QPT_*`.
    pub kind: u32,
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
    inner: Mutex<Inner>,
    /// The state's number, readable without the lock.
    state_hint: AtomicU32,
    /// A completion did not fit into its CQ.
    lost_completion: AtomicBool,
}

/// Granted capacities.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // as in struct ibv_qp_cap
pub struct Caps {
    pub send_max: u32,
    pub recv_max: u32,
    pub send_sge_max: u32,
    pub recv_sge_max: u32,
    pub inline_max: u32,
}

impl Qp {
    /// A QP in RESET. `None`: too many queues. The caller checked the limits.
    pub fn new(shared: &Arc<Shared>, init: QpInit) -> Option<Arc<Qp>> {
        let slot = shared.take_slot()?;
        init.send_cq.use_by_one(true);
        init.recv_cq.use_by_one(true);
        if let Some(srq) = &init.srq {
            srq.use_by_one(true);
        }
        let recv_max = if init.srq.is_some() { 0 } else { init.recv_max };
        let mut meter = Meter::new(init.statistics, init.number, init.kind);
        meter.state(State::Reset);
        Some(Arc::new_cyclic(|me| Qp {
            number: init.number,
            kind: init.kind,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            caps: Caps {
                send_max: init.send_max,
                recv_max,
                send_sge_max: init.send_sge_max,
                recv_sge_max: init.recv_sge_max,
                inline_max: init.inline_max,
            },
            cookie: AtomicUsize::new(0),
            signal_all: init.signal_all,
            slot,
            shared: shared.clone(),
            me: me.clone(),
            inner: Mutex::new(Inner {
                state: State::Reset,
                attributes: QpAttributes::default(),
                links: Vec::new(),
                by_destination: HashMap::new(),
                unreachable: Vec::new(),
                held: Held::default(),
                sends: VecDeque::new(),
                started: 0,
                posted: 0,
                wait: None,
                on_waiting_list: false,
                receives: ReceiveQueue::new(recv_max, init.recv_sge_max),
                fresh: Vec::new(),
                floor: u32::MAX,
                send_cache: RegionCache::default(),
                recv_cache: RegionCache::default(),
                grants: Grants::default(),
                meter,
                established: false,
                notify_drained: false,
            }),
            state_hint: AtomicU32::new(State::Reset as u32),
            lost_completion: AtomicBool::new(false),
        }))
    }

    /// State now.
    pub fn state(&self) -> State {
        State::from_number(self.state_hint.load(Ordering::Acquire)).unwrap_or(State::Err)
    }

    /// State and attributes.
    pub fn query(&self) -> (State, QpAttributes) {
        let inner = lock(&self.inner);
        (inner.state, inner.attributes)
    }

    pub(crate) fn try_inner(&self) -> Option<std::sync::MutexGuard<'_, Inner>> {
        try_lock(&self.inner)
    }

    // --- posting ------------------------------------------------------------------------------

    /// Posts a send.
    ///
    /// # Errors
    /// Wrong state, opcode, number of entries or inline length; or the queue is full.
    #[inline(always)]
    pub fn post_send(&self, work: &SendWork<'_>) -> Result<(), PostError> {
        lock(&self.inner).post_send(self, work)
    }

    /// Posts several sends under one lock: all or none.
    ///
    /// # Errors
    /// As [`Self::post_send`]; nothing was posted.
    pub fn post_all(&self, works: &[SendWork<'_>]) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
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
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        if inner.state == State::Reset
            || self.srq.is_some()
            || list.len() > inner.receives.sge_max() as usize
        {
            return Err(PostError::Invalid);
        }
        let released = self.shared.released(self.slot).receives.load(Ordering::Acquire);
        let capacity = inner.receives.post(wr_id, list, released).ok_or(PostError::Full)?;
        if inner.state == State::Err {
            inner.flush_receives(self);
            return Ok(());
        }
        if self.kind == qp_type::UD {
            return Ok(inner.receives_arrived(self));
        }
        // A receive whose memory is not what it should be promises nothing.
        let sound = list.iter().all(|sge| {
            let access = crate::constants::access::LOCAL_WRITE;
            let regions = &self.shared.regions;
            crate::gather::resolve(regions, &mut inner.recv_cache, self.pd, sge, access).is_some()
        });
        let capacity = if sound { capacity.min(u64::from(u32::MAX)) as u32 } else { 0 };
        inner.floor = inner.floor.min(capacity);
        let floor = inner.floor;
        if let Some(link) = inner.links.first_mut() {
            link.credits = link.credits.wrapping_add(1);
            link.endpoint.publish_credits(link.credits, floor);
            if link.starved.is_some() {
                inner.receives_arrived(self);
            }
        }
        Ok(())
    }

    // --- modifying ----------------------------------------------------------------------------

    /// Changes attributes and state. What needs the daemon (a link) is the caller's business,
    /// before (to be refused) or after.
    ///
    /// # Errors
    /// `Invalid` if the transition or its mask is not allowed.
    pub fn modify(
        &self,
        mask: QpMask,
        to: State,
        given: &QpAttributes,
        current: Option<State>,
    ) -> Result<(), PostError> {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        let from = inner.state;
        if current.is_some_and(|current| current != from)
            || !transition_is_valid(self.kind, from, to, mask)
        {
            return Err(PostError::Invalid);
        }
        let attributes = &mut inner.attributes;
        macro_rules! take {
            ($($flag:ident $field:ident),* $(,)?) => {
                $(if mask.contains(QpMask::$flag) { attributes.$field = given.$field; })*
            };
        }
        take!(
            PKEY_INDEX pkey_index, PORT port, ACCESS_FLAGS access_flags, QKEY qkey,
            PATH_MTU path_mtu, DEST_QPN dest_qpn, RQ_PSN rq_psn, SQ_PSN sq_psn,
            MAX_QP_RD_ATOMIC max_rd_atomic, MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
            MIN_RNR_TIMER min_rnr_timer, TIMEOUT timeout, RETRY_CNT retry_cnt,
            RNR_RETRY rnr_retry,
        );
        let timer = attributes.rnr_timer();
        match to {
            State::Reset => inner.reset(self),
            State::Err => {
                inner.pump_all(self);
                inner.enter_error(self, None);
            }
            _ => {
                inner.set_state(self, to);
                if to != State::Init {
                    inner.links.iter_mut().for_each(|link| link.endpoint.open(timer));
                    inner.pump_all(self);
                }
                if to == State::Sqd {
                    inner.notify_drained = mask.contains(QpMask::EN_SQD_ASYNC_NOTIFY);
                    inner.check_drained(self);
                }
            }
        }
        Ok(())
    }

    /// Gives up everything: no completion of this QP is left anywhere afterwards.
    pub fn destroy(&self) {
        {
            let mut inner = lock(&self.inner);
            inner.pump_all(self);
            inner.reset(self);
        }
        self.send_cq.watch.forget(self.number);
        self.recv_cq.watch.forget(self.number);
        self.send_cq.use_by_one(false);
        self.recv_cq.use_by_one(false);
        if let Some(srq) = &self.srq {
            srq.use_by_one(false);
        }
    }

    // --- links --------------------------------------------------------------------------------

    /// The daemon made a link; returns its index, or `None` if this QP cannot use it (any more).
    pub fn attach(&self, peer: Peer, mut endpoint: Endpoint) -> Option<usize> {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        let usable = matches!(inner.state, State::Rtr | State::Rts | State::Sqd | State::Sqe)
            || (inner.state == State::Init && self.kind != qp_type::UD);
        if !usable || inner.links.len() >= limits::DATAGRAM_LINKS_MAX && !inner.has_dead_link() {
            return None;
        }
        if self.kind != qp_type::UD {
            // The peer was reset and came back: the old link is of no use any more.
            if !inner.abandon_flight(self) {
                return None;
            }
            inner.drop_links(self);
        }
        let credits = inner.receives.waiting() as u32;
        if self.kind == qp_type::UD || self.srq.is_some() {
            endpoint.publish_no_credits();
        } else {
            endpoint.publish_credits(credits, inner.floor);
        }
        endpoint.set_watched(false);
        if inner.state != State::Init {
            endpoint.open(inner.attributes.rnr_timer());
        }
        let link = LinkEnd {
            endpoint,
            peer,
            incoming: Incoming::Idle,
            starved: None,
            credits,
            idle: 0,
            watchers: 0,
            lossy: false,
        };
        let index = inner.place_link(link);
        let to = Destination { dgid: peer.dgid, sgid: peer.sgid, qpn: peer.qpn };
        inner.by_destination.entry(to).or_insert(index);
        inner.send_held(&to, index);
        inner.wait = None;
        inner.pump_all(self);
        Some(index)
    }

    /// The daemon knows no way to this destination: datagrams to it are lost for a while.
    pub fn unreachable(&self, destination: Destination) {
        let mut guard = lock(&self.inner);
        let until = self.shared.host.now() + 1_000_000_000;
        guard.held.drop_all(&destination);
        guard.unreachable.retain(|(other, _)| *other != destination);
        guard.unreachable.push((destination, until));
        guard.pump_all(self);
    }

    /// The daemon says the peer's process is gone: what it sent is delivered, then a connected
    /// QP fails.
    pub fn peer_died(&self, peer_qpn: u32) {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        // A connected QP's peer may die before there is a link.
        let waits = self.kind != qp_type::UD && inner.attributes.dest_qpn == peer_qpn;
        if !waits && !inner.links.iter().any(|link| link.peer.qpn == peer_qpn) {
            return;
        }
        inner.pump_all(self);
        if self.kind == qp_type::UD {
            inner.forget_datagram_peer(peer_qpn);
        } else if inner.state != State::Err && inner.state != State::Reset {
            inner.enter_error(self, Some(status::RETRY_EXC_ERR));
            self.event(AsyncEvent::QpFatal);
        }
    }

    /// The daemon says the peer destroyed or reset its QP. Sends fail when their retries are over.
    pub fn peer_closed(&self, peer_qpn: u32) {
        let mut guard = lock(&self.inner);
        guard.pump_all(self);
        if self.kind == qp_type::UD {
            guard.forget_datagram_peer(peer_qpn);
        }
    }

    /// The daemon granted a mapping.
    pub fn granted(&self, peer_qpn: u32, grant: Grant) -> bool {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        match inner.links.first() {
            Some(link) if link.peer.qpn == peer_qpn => {
                let epoch = link.endpoint.peer_epoch();
                inner.grants.insert(epoch, grant)
            }
            _ => false,
        }
    }

    /// Voids the grants that peers hold on our regions; call before the pages move back.
    pub fn revoke_grants(&self) {
        for link in &mut lock(&self.inner).links {
            link.endpoint.advance_epoch();
        }
    }

    /// Peers this QP is linked with.
    pub fn peers(&self) -> Vec<Peer> {
        lock(&self.inner).links.iter().map(|link| link.peer).collect()
    }

    // --- moving on ----------------------------------------------------------------------------

    /// Does everything that can be done now: takes in what peers sent, sends what waits.
    pub fn pump(&self) {
        lock(&self.inner).pump_all(self);
    }

    /// A completion was lost: the QP fails on the next turn (specification 11.6.3.1).
    #[cold]
    pub(crate) fn cq_overflowed(&self) {
        self.lost_completion.store(true, Ordering::Release);
        lock(&self.shared.cooling).push(self.me.clone());
        self.shared.host.attend();
    }

    pub(crate) fn event(&self, event: AsyncEvent) {
        self.shared.host.async_event(event, self.cookie.load(Ordering::Acquire));
    }
}

impl Inner {
    pub(crate) fn set_state(&mut self, qp: &Qp, state: State) {
        self.state = state;
        self.meter.state(state);
        qp.state_hint.store(state as u32, Ordering::Release);
    }

    /// Takes in and sends out on all links; a peer that breaks the rules breaks the QP.
    pub(crate) fn pump_all(&mut self, qp: &Qp) {
        if qp.lost_completion.swap(false, Ordering::AcqRel) && self.state != State::Reset {
            self.enter_error(qp, None);
        }
        for index in 0..self.links.len() {
            self.pump_link(qp, index);
        }
        self.advance(qp);
    }

    /// Takes in what arrived on one link.
    pub(crate) fn pump_link(&mut self, qp: &Qp, index: usize) {
        let receives = matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe);
        if !receives || index >= self.links.len() {
            return;
        }
        let served = self.serve(qp, index);
        self.hand_over(qp);
        if let Err(Broken) = served {
            self.broken(qp, index);
        }
    }

    /// First traffic while in RTR (specification 9.7.2.1: communication established).
    #[inline(always)]
    pub(crate) fn note_traffic(&mut self, qp: &Qp) {
        if !self.established {
            self.established = true;
            if self.state == State::Rtr && qp.kind == qp_type::RC {
                qp.event(AsyncEvent::CommunicationEstablished);
            }
        }
    }

    /// The peer wrote what no peer writes.
    #[cold]
    pub(crate) fn broken(&mut self, qp: &Qp, index: usize) {
        if qp.kind == qp_type::UD {
            self.links[index].endpoint.close();
            let peer = self.links[index].peer.qpn;
            self.forget_datagram_peer(peer);
        } else if self.state != State::Err {
            self.enter_error(qp, Some(status::FATAL_ERR));
            qp.event(AsyncEvent::QpFatal);
        }
    }

    pub(crate) fn forget_datagram_peer(&mut self, peer_qpn: u32) {
        // Indices of links are handed out, so the entry stays; nobody finds it any more.
        for link in &mut self.links {
            if link.peer.qpn == peer_qpn {
                link.endpoint.close();
                link.incoming = Incoming::Deaf;
                link.starved = None;
            }
        }
        self.by_destination.retain(|destination, _| destination.qpn != peer_qpn);
    }

    fn has_dead_link(&self) -> bool {
        self.links.iter().any(|link| matches!(link.incoming, Incoming::Deaf))
    }

    /// Puts a link where a forgotten one was, or behind the others. Who still has the index of the
    /// forgotten one looks at the new one for nothing.
    fn place_link(&mut self, link: LinkEnd) -> usize {
        let dead = self.links.iter().position(|link| matches!(link.incoming, Incoming::Deaf));
        match dead {
            Some(index) => {
                self.links[index] = link;
                index
            }
            None => {
                self.links.push(link);
                self.links.len() - 1
            }
        }
    }

    /// The link is replaced: nobody will ever say what became of requests that are under way on
    /// it. RC fails then, as it does on the wire, where their PSNs would match no more; UC says its
    /// message again.
    fn abandon_flight(&mut self, qp: &Qp) -> bool {
        let under_way = |entry: &SendEntry| entry.order.begun;
        if !self.sends.front().is_some_and(under_way) && self.started == 0 {
            return true;
        }
        if qp.kind == qp_type::RC {
            self.enter_error(qp, Some(status::RETRY_EXC_ERR));
            return false;
        }
        for entry in &mut self.sends {
            (entry.order.begun, entry.order.done) = (false, 0);
        }
        self.started = 0;
        true
    }

    fn drop_links(&mut self, qp: &Qp) {
        for index in 0..self.links.len() {
            let incoming = std::mem::replace(&mut self.links[index].incoming, Incoming::Deaf);
            match incoming {
                // A shared receive does not go back; one of our own does.
                Incoming::Send { receive, .. } if qp.srq.is_some() => {
                    self.complete_receive(qp, &receive, status::WR_FLUSH_ERR);
                }
                Incoming::Send { .. } => self.receives.put_back(),
                _ => {}
            }
            self.links[index].endpoint.close();
        }
        if !self.links.is_empty() {
            qp.send_cq.watch.forget(qp.number);
            qp.recv_cq.watch.forget(qp.number);
        }
        self.links.clear();
        self.by_destination.clear();
        self.grants.clear();
    }

    pub(crate) fn check_drained(&mut self, qp: &Qp) {
        let begun = self.started > 0 || self.sends.front().is_some_and(|entry| entry.order.begun);
        if self.state == State::Sqd && self.notify_drained && !begun {
            self.notify_drained = false;
            qp.event(AsyncEvent::SqDrained);
        }
    }

    /// To RESET: everything is forgotten, without completions.
    fn reset(&mut self, qp: &Qp) {
        if let Some(srq) = &qp.srq {
            // A message was half received: its receive is gone, its place in the queue is not.
            for link in &mut self.links {
                if let Incoming::Send { .. } = std::mem::replace(&mut link.incoming, Incoming::Deaf)
                {
                    qp.shared.released(srq.slot).receives.fetch_add(1, Ordering::Release);
                }
            }
        }
        self.drop_links(qp);
        self.sends.clear();
        self.started = 0;
        self.posted = 0;
        self.wait = None;
        self.receives.clear();
        self.floor = u32::MAX;
        self.held.clear();
        self.unreachable.clear();
        self.established = false;
        qp.send_cq.purge(qp.number);
        qp.recv_cq.purge(qp.number);
        let released = qp.shared.released(qp.slot);
        released.sends.store(0, Ordering::Release);
        released.receives.store(0, Ordering::Release);
        self.attributes = QpAttributes::default();
        self.set_state(qp, State::Reset);
    }

    /// To ERR: the oldest send completes with `first` (if given), all others and the receives are
    /// flushed (specification 10.3.1 and 11.6.2).
    pub(crate) fn enter_error(&mut self, qp: &Qp, first: Option<u32>) {
        if self.state == State::Err {
            return;
        }
        self.set_state(qp, State::Err);
        let mut reason = first;
        while let Some(entry) = self.sends.pop_front() {
            let why = reason.take().unwrap_or(status::WR_FLUSH_ERR);
            self.complete_send(qp, &entry, why);
        }
        self.started = 0;
        self.wait = None;
        for index in 0..self.links.len() {
            let incoming = std::mem::replace(&mut self.links[index].incoming, Incoming::Deaf);
            if let Incoming::Send { receive, .. } = incoming {
                self.complete_receive(qp, &receive, status::WR_FLUSH_ERR);
            }
            self.links[index].starved = None;
            self.links[index].endpoint.close();
        }
        self.grants.clear();
        self.flush_receives(qp);
        if qp.srq.is_some() {
            qp.event(AsyncEvent::QpLastWqeReached);
        }
    }

    pub(crate) fn flush_receives(&mut self, qp: &Qp) {
        while let Some(receive) = self.receives.take() {
            self.complete_receive(qp, &receive, status::WR_FLUSH_ERR);
        }
    }

    /// Completes a receive that failed.
    pub(crate) fn complete_receive(&mut self, qp: &Qp, receive: &Receive, status: u32) {
        let wc = Wc {
            wr_id: receive.wr_id,
            status,
            opcode: wc_opcode::RECV,
            qp_num: qp.number,
            ..Wc::default()
        };
        self.fresh.push(Entry { wc, release: qp.receive_release(), solicited: false });
        self.hand_over(qp);
    }

    /// Puts the receives that completed into their CQ.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, qp: &Qp) {
        if !self.fresh.is_empty() {
            let fits = qp.recv_cq.push_all(&mut self.fresh);
            if !fits {
                qp.cq_overflowed();
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
