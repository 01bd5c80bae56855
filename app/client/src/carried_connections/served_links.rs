//! Serves the carried links of this process by its sockets. Starts no thread and takes no lock.

use super::carried_link::{CarriedLink, Outcome};
use super::carried_socket::CarriedSocket;
use super::doorbells::QueuePairBell;
use super::way_to_peer::{Stage, WayToPeer};
use omniverb_datapath::hosted_links::{Company, HostedLinks, LinkEnd, Next};
use omniverb_datapath::link_clock::Now;
use omniverb_datapath::pages::mapped_pages::NoPages;
use omniverb_datapath::way_trial::{self, TrialDatagram, TrialStep, WayTrial};
use omniverb_datapath::{Allowance, peer_features};
use omniverb_ring::doorbell::SLOTS;
use omniverb_ring::{DoorbellPage, Window};
use omniverb_session::carried_links::{ENGINE_PORT, GIVE_LINK_TIME_NS};
use omniverb_sys::random;
use omniverb_terms::{Errno, Qpn};
use omniverb_transport::Ecn;
use omniverb_wire::IcrcFlow;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Packets that one system call sends.
const TRAIN_MAX: usize = 64;
/// Bytes of one receive buffer: as much as the kernel merges.
const BUFFER_BYTES: usize = 64 << 10;
/// Budget: batches that one turn reads from a socket; a peer's flood gets no more of a poll.
const BATCHES: usize = 8;
/// How often a train is tried while the socket is full.
const TRIES: u32 = 100;
/// How long requests wait for the peer's port, in nanoseconds, before the engine gets the link.
const PORT_TIME: u64 = 1_000_000_000;
/// Budget: how long a link that the daemon asks for may take to come to rest, in nanoseconds. The
/// daemon waits a little longer.
const REST_TIME: u64 = 150_000_000;
const _: () = assert!(REST_TIME < GIVE_LINK_TIME_NS);

/// What a turn is driven by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A poll, after which the application may answer.
    Poll,
    /// A posted request, which is to leave.
    Post,
    /// The network thread, which serves queue pairs afterwards.
    Thread,
    /// The network thread, after it has served queue pairs: what is left to send goes now.
    Last,
}

/// What a turn found.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnReport {
    pub(super) next: Next,
    /// The sockets had packets.
    pub(super) has_received: bool,
    /// Requests are under way.
    pub(super) is_busy: bool,
}

/// All links that this process carries.
pub(super) struct ServedLinks {
    links: HostedLinks<NoPages>,
    sockets: Vec<CarriedSocket>,
    /// The page that queue pairs ring, each by its slot.
    page: DoorbellPage<Window>,
    slots: Vec<Slot>,
    ways: HashMap<Qpn, WayToPeer>,
    /// Those that are being tried, or whose links come to rest.
    changing: Vec<Qpn>,
    outcomes: Vec<Outcome>,
    buffer: Box<[u8]>,
}

/// A bit of the page.
#[derive(Clone, Copy, Default)]
struct Slot {
    qpn: Option<Qpn>,
    /// The link in `links`, once it is served.
    index: Option<usize>,
}

impl ServedLinks {
    pub(super) fn new(clock: u64) -> ServedLinks {
        ServedLinks {
            links: HostedLinks::new(clock, TRAIN_MAX, Allowance::default()),
            sockets: Vec::new(),
            page: DoorbellPage::new(Window::private(omniverb_ring::doorbell::PAGE_BYTES)),
            slots: Vec::new(),
            ways: HashMap::new(),
            changing: Vec::new(),
            outcomes: Vec::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
        }
    }

    /// The page that queue pairs ring.
    pub(super) fn page(&self) -> &DoorbellPage<Window> {
        &self.page
    }

    /// A bit of the page for a queue pair, whose link is to come. `None`: all are taken.
    pub(super) fn take_slot(&mut self, qpn: Qpn) -> Option<u32> {
        self.free_slot(qpn);
        let free = self.slots.iter().position(|slot| slot.qpn.is_none());
        let at = free.unwrap_or(self.slots.len());
        let number = u32::try_from(at).ok().filter(|number| *number < SLOTS)?;
        if free.is_none() {
            self.slots.push(Slot::default());
        }
        self.slots[at] = Slot { qpn: Some(qpn), index: None };
        Some(number)
    }

    fn free_slot(&mut self, qpn: Qpn) {
        for slot in self.slots.iter_mut().filter(|slot| slot.qpn == Some(qpn)) {
            *slot = Slot::default();
        }
    }

    /// Serves one more link, which has a slot, by a socket that is [there](Self::open_socket); its
    /// requests wait until its way is tried. The port that the peer is to send to.
    ///
    /// # Errors
    /// errno: `EPROTO` if its memory is not that of a link, `EADDRNOTAVAIL` without a socket,
    /// `ENOSPC` without a slot.
    pub(super) fn add(
        &mut self,
        link: CarriedLink,
        bell: QueuePairBell,
        clock: u64,
    ) -> Result<u16, Errno> {
        let CarriedLink { parts, qpn, peer_qpn, local, peer, engine } = link;
        if !self.slots.iter().any(|slot| slot.qpn == Some(qpn)) {
            return Err(Errno(libc::ENOSPC.unsigned_abs()));
        }
        let local = self.port_at(local).ok_or(Errno(libc::EADDRNOTAVAIL.unsigned_abs()))?;
        let request_bytes = parts.request_bytes;
        let endpoint = parts.endpoint(Arc::new(bell)).ok_or(Errno::EPROTO)?;
        let (source, source_port) = (local.ip(), local.port());
        let index = self.links.attach(LinkEnd {
            endpoint,
            request_bytes,
            qpn,
            peer_qpn,
            flow: IcrcFlow { source, destination: peer, source_port },
            peer_port: ENGINE_PORT,
            features: peer_features::ALL,
        });
        self.links.hold_requests(qpn, true);
        for slot in self.slots.iter_mut().filter(|slot| slot.qpn == Some(qpn)) {
            slot.index = Some(index);
        }
        let until = clock.saturating_add(PORT_TIME);
        self.ways.insert(qpn, WayToPeer::new(peer_qpn, local, peer, engine, until));
        self.change(qpn);
        Ok(source_port)
    }

    /// Opens a socket at an address of this process's network namespace, if there is none: the new
    /// one.
    ///
    /// # Errors
    /// As [`CarriedSocket::open`].
    pub(super) fn open_socket(&mut self, local: IpAddr) -> io::Result<Option<&CarriedSocket>> {
        if self.port_at(local).is_some() {
            return Ok(None);
        }
        if !is_one_address(local) {
            return Err(rustix::io::Errno::ADDRNOTAVAIL.into());
        }
        self.sockets.push(CarriedSocket::open(local)?);
        Ok(self.sockets.last())
    }

    fn port_at(&self, local: IpAddr) -> Option<SocketAddr> {
        self.sockets.iter().map(|socket| socket.local()).find(|at| at.ip() == local)
    }

    /// The links: each queue pair, its peer's, and our port.
    pub(super) fn ports(&self) -> impl Iterator<Item = (Qpn, Qpn, u16)> {
        self.ways.iter().map(|(qpn, way)| (*qpn, way.peer_qpn, way.local.port()))
    }

    /// How many links there are.
    pub(super) fn count(&self) -> usize {
        self.ways.len()
    }

    /// Packets for this peer are to go to this port: the way there is tried.
    pub(super) fn set_peer_port(&mut self, qpn: Qpn, peer_qpn: Qpn, port: u16) {
        let Some(way) = self.ways.get_mut(&qpn).filter(|way| way.peer_qpn == peer_qpn) else {
            return;
        };
        if way.peer.port() == port || matches!(way.stage, Stage::Resting { .. }) {
            return;
        }
        way.peer.set_port(port);
        let mut nonce = [0; 16];
        random::fill(&mut nonce);
        way.stage = Stage::Tried(WayTrial::new(qpn, peer_qpn, u128::from_ne_bytes(nonce)));
        self.links.set_peer_port(qpn, port);
        self.links.hold_requests(qpn, true);
        self.change(qpn);
    }

    /// This link is to come to rest, and to be given to the engine.
    pub(super) fn give(&mut self, qpn: Qpn, peer_qpn: Qpn, clock: u64) {
        if let Some(way) = self.ways.get_mut(&qpn).filter(|way| way.peer_qpn == peer_qpn)
            && !matches!(way.stage, Stage::Resting { until: Some(_) })
        {
            way.stage = Stage::Resting { until: Some(clock.saturating_add(REST_TIME)) };
            self.links.rest(qpn);
            self.change(qpn);
        }
    }

    fn change(&mut self, qpn: Qpn) {
        if !self.changing.contains(&qpn) {
            self.changing.push(qpn);
        }
    }

    /// Whether this link is carried.
    pub(super) fn has(&self, qpn: Qpn, peer_qpn: Qpn) -> bool {
        self.ways.get(&qpn).is_some_and(|way| way.peer_qpn == peer_qpn)
    }

    /// The queue pair is going: what its peer waits for is said, then nothing of it is left.
    pub(super) fn end(&mut self, qpn: Qpn, clock: u64) {
        if self.ways.contains_key(&qpn) {
            let now = self.links.now(clock);
            self.hear();
            let ServedLinks { links, sockets, .. } = self;
            links.detach_with_last_words(qpn, now, |to, train, segment| {
                send(sockets, to, train, segment);
            });
        }
        self.forget(qpn);
    }

    /// This link is served here no longer, nor waited for.
    pub(super) fn forget(&mut self, qpn: Qpn) -> Option<WayToPeer> {
        self.free_slot(qpn);
        self.changing.retain(|changing| *changing != qpn);
        let way = self.ways.remove(&qpn);
        let ways = &self.ways;
        self.sockets.retain(|socket| ways.values().any(|way| way.local == socket.local()));
        way
    }

    /// What became of links since the last call.
    pub(super) fn take_outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Nothing calls until then if nothing happens.
    pub(super) fn sleeps(&mut self, until: Option<u64>) {
        self.links.sleeps(until);
    }

    /// A turn: reads the sockets, unless there is only something to send; hears queue pairs; sends.
    pub(super) fn turn(&mut self, clock: u64, driver: Driver) -> TurnReport {
        let now = self.links.now(clock);
        let came = matches!(driver, Driver::Poll | Driver::Thread) && self.receive(now);
        self.hear();
        let tried = self.go_on(clock, Self::try_way);
        let company = match driver {
            Driver::Poll | Driver::Thread => Company::MayCome,
            Driver::Post | Driver::Last => Company::None,
        };
        let ServedLinks { links, sockets, .. } = self;
        let next = links.turn(now, company, |to, train, segment| {
            send(sockets, to, train, segment);
        });
        let is_busy = links.is_busy();
        // A queue pair hears of its failure by the link.
        while links.next_failure().is_some() {}
        let rested = self.go_on(clock, |served, qpn, clock| served.export(qpn, clock, now));
        let next = match (next, tried.into_iter().chain(rested).min()) {
            (Next::At(at), Some(due)) => Next::At(at.min(due)),
            (Next::Never, Some(due)) => Next::At(due),
            (next, _) => next,
        };
        TurnReport { next, has_received: came, is_busy }
    }

    /// Reads the sockets. True: something came.
    fn receive(&mut self, now: Now) -> bool {
        let ServedLinks { links, sockets, ways, buffer, .. } = self;
        let mut any = false;
        for socket in sockets.iter() {
            for _ in 0..BATCHES {
                let Ok(Some(received)) = socket.receive(buffer) else { break };
                any = true;
                let train = buffer.get(..received.length).unwrap_or_default();
                if may_have_trials(train, received.stride) {
                    for datagram in train.chunks(received.stride.max(1)) {
                        hear_trial(ways, socket, received.from, datagram);
                    }
                }
                let flow = IcrcFlow {
                    source: received.from.ip(),
                    destination: socket.local().ip(),
                    source_port: received.from.port(),
                };
                links.arrived(now, &flow, Ecn::of(received.ecn), (train, received.stride));
            }
        }
        match any {
            true => links.has_read_some(),
            false => links.has_read_all(),
        }
        any
    }

    /// Links whose queue pairs did something are to be served.
    fn hear(&mut self) {
        let ServedLinks { links, page, slots, .. } = self;
        if page.has_ready() {
            page.take_ready(|number| {
                let slot = slots.get(number as usize);
                if let Some(index) = slot.and_then(|slot| slot.index) {
                    links.touch(index);
                }
            });
        }
    }

    /// Goes on with trials, or with links that come to rest. When to do so again.
    #[inline]
    fn go_on(
        &mut self,
        clock: u64,
        mut step: impl FnMut(&mut Self, Qpn, u64) -> Option<u64>,
    ) -> Option<u64> {
        if self.changing.is_empty() {
            return None;
        }
        let changing = self.changing.clone();
        changing.into_iter().filter_map(|qpn| step(self, qpn, clock)).min()
    }

    /// Goes on with the trial of a way. When to do so again.
    fn try_way(&mut self, qpn: Qpn, clock: u64) -> Option<u64> {
        let ServedLinks { links, sockets, ways, .. } = self;
        let way = ways.get_mut(&qpn)?;
        loop {
            let step = match &mut way.stage {
                Stage::Tried(trial) => trial.poll(clock),
                Stage::Untold { until } if clock < *until => TrialStep::WaitUntil(*until),
                Stage::Untold { .. } => TrialStep::Failed,
                Stage::Open | Stage::Resting { .. } => return None,
            };
            match step {
                TrialStep::Send(question) => {
                    let own = |socket: &&CarriedSocket| socket.local() == way.local;
                    if let Some(socket) = sockets.iter().find(own) {
                        // What is not sent is tried again.
                        let _ = socket.send(&question, question.len(), &way.peer);
                    }
                }
                TrialStep::WaitUntil(at) => return Some(at),
                TrialStep::Passed => {
                    way.stage = Stage::Open;
                    links.hold_requests(qpn, false);
                    self.changing.retain(|changing| *changing != qpn);
                    return None;
                }
                TrialStep::Failed => {
                    // Nothing hurries: packets that come are answered until then.
                    way.stage = Stage::Resting { until: None };
                    links.rest(qpn);
                    return None;
                }
            }
        }
    }

    /// Takes a link out that has come to rest, or has not in time. When to do so again.
    fn export(&mut self, qpn: Qpn, clock: u64, now: Now) -> Option<u64> {
        let Stage::Resting { until } = self.ways.get(&qpn)?.stage else { return None };
        let given = self.links.export(qpn, now);
        if given.is_none() && until.is_none_or(|until| clock < until) {
            return until;
        }
        self.links.detach(qpn);
        let WayToPeer { peer_qpn, engine, .. } = self.forget(qpn)?;
        self.outcomes.push(match given.and_then(|given| given.to_bytes()) {
            Some(state) => Outcome::Given { qpn, peer_qpn, state, engine },
            None => Outcome::Failed { qpn },
        });
        None
    }
}

/// Whether that names one interface's address. A link-local one does not without an interface.
fn is_one_address(local: IpAddr) -> bool {
    let is_link_local = match local {
        IpAddr::V4(_) => false,
        IpAddr::V6(local) => local.is_unicast_link_local(),
    };
    !(is_link_local || local.is_unspecified() || local.is_multicast())
}

/// Sends a train, whole or not at all: the transport sends again what is lost.
fn send(sockets: &[CarriedSocket], (flow, port): (&IcrcFlow, u16), train: &[u8], segment: usize) {
    let own = |socket: &&CarriedSocket| socket.local().ip() == flow.source;
    let Some(socket) = sockets.iter().find(own) else { return };
    let to = SocketAddr::new(flow.destination, port);
    for _ in 0..TRIES {
        match socket.send(train, segment, &to) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::yield_now();
            }
            // A kernel or a device that cuts no trains apart.
            Err(_) if train.len() > segment => {
                for datagram in train.chunks(segment.max(1)) {
                    let _ = socket.send(datagram, datagram.len(), &to);
                }
                return;
            }
            _ => return,
        }
    }
}

/// Whether datagrams of a train are as long as those of a trial.
fn may_have_trials(train: &[u8], stride: usize) -> bool {
    let stride = stride.max(1);
    stride == way_trial::DATAGRAM_BYTES || train.len() % stride == way_trial::DATAGRAM_BYTES
}

/// Hears a datagram that tries a way, if it is one, and answers it. Only the port that the peer is
/// said to have counts: it is answered when this end knows where to send.
fn hear_trial(
    ways: &mut HashMap<Qpn, WayToPeer>,
    socket: &CarriedSocket,
    from: SocketAddr,
    datagram: &[u8],
) {
    let Some(trial) = way_trial::read(datagram) else { return };
    let (TrialDatagram::Question(names) | TrialDatagram::Answer(names)) = &trial;
    let qpn = names.to;
    let Some(way) = ways.get_mut(&qpn) else { return };
    if !way.leads_to(from) || way.local != socket.local() {
        return;
    }
    match (&trial, &mut way.stage) {
        (TrialDatagram::Question(names), _) => {
            if let Some(answer) = names.answers(qpn, way.peer_qpn) {
                // A lost answer is asked for again.
                let _ = socket.send(&answer, answer.len(), &from);
            }
        }
        (TrialDatagram::Answer(names), Stage::Tried(trial)) => drop(trial.hears(names)),
        (TrialDatagram::Answer(_), _) => {}
    }
}
