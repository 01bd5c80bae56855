//! Serves all RC links of one host, in turns: takes packets, makes trains, and says when it wants
//! to be called again.
//!
//! The host brings the time, hands in what its sockets got ([`HostedLinks::arrived`]), says which
//! links' applications did something ([`HostedLinks::touch`]), and sends what a turn makes
//! ([`HostedLinks::turn`]). Nothing here limits, captures or encrypts: links for which that is to
//! be done have another host.

mod handover;

use crate::link_clock::{LinkClock, Now};
use crate::missed_doorbell_poll::Recheck;
use crate::packet_train::Train;
use crate::pages::mapped_pages::MappedPages;
use crate::queue_pair::connected_qp::Connected;
use crate::queue_pair::connection_parameters::Trains;
use crate::train_numbering::Numbering;
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::Endpoint;
use omniverb_terms::{Qpn, Service};
use omniverb_transport::{Counters, Ecn, Status};
use omniverb_wire::{
    IcrcFlow, IcrcVerdict, Identification, Opcode, Operation, PORT, Packet, PreparedIcrc,
    WritePattern, WriteRun,
};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Links served in one turn.
const LINKS_AT_ONCE: usize = 32;
/// Packets that one link sends in one turn.
const PACKETS_AT_ONCE: usize = 128;
/// Turns at most in which a link that goes says its last words.
const LAST_TURNS: usize = 64;
/// How long an acknowledgement may wait for the application's answer, in nanoseconds: less than a
/// system call takes.
const HOLD_MAX: u64 = 2_000;

/// A link to be served: this end of it, and where its packets go.
pub struct LinkEnd {
    /// Our end; the application has the other one.
    pub endpoint: Endpoint,
    /// Bytes of its request rings.
    pub request_bytes: usize,
    /// The application's QP.
    pub qpn: Qpn,
    /// The QP at the other side of the network.
    pub peer_qpn: Qpn,
    /// From us to the peer.
    pub flow: IcrcFlow,
    /// The UDP port that the peer's packets are sent to.
    pub peer_port: u16,
    /// Bits of [`crate::peer_features`] that the peer has.
    pub features: u32,
}

/// What an application may do between this turn and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// It is given what came now, and may answer: an acknowledgement waits for a moment, so that
    /// both leave together.
    MayCome,
    /// It has had its chance.
    None,
}

/// When to call [`HostedLinks::turn`] again, if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: links wait to be served.
    Now,
    /// At this time of the clock, in nanoseconds.
    At(u64),
    /// There is nothing to wait for.
    Never,
}

struct HostedLink<P> {
    connected: Connected<P>,
    qpn: Qpn,
    peer_qpn: Qpn,
    flow: IcrcFlow,
    peer_port: u16,
    /// When its alarm goes off, by links' time, as in [`HostedLinks::alarms`].
    alarm: Option<u64>,
    is_queued: bool,
    /// Requests of its application are under way.
    is_busy: bool,
    /// Its acknowledgement has been waiting for company since then.
    held_since: Option<u64>,
    recheck: Recheck,
}

/// The links of one host.
pub struct HostedLinks<P> {
    links: Vec<Option<Box<HostedLink<P>>>>,
    by_qpn: HashMap<Qpn, usize>,
    /// By links' time.
    alarms: BTreeSet<(u64, usize)>,
    /// Those that are to be served, each once.
    queue: VecDeque<usize>,
    /// Those whose acknowledgement waits.
    held: Vec<usize>,
    failures: Vec<(Qpn, Qpn, Status)>,
    /// Links whose requests are under way.
    busy: usize,
    clock: LinkClock,
    train: Train,
    /// Packets that one call sends.
    train_max: usize,
    /// For packets as those that arrived last.
    prepared: Option<PreparedIcrc>,
    allowance: Allowance,
}

impl<P: MappedPages> HostedLinks<P> {
    /// None yet. `clock`: nanoseconds of the monotonic clock; `train_max`: packets that one call
    /// of the host sends.
    #[must_use]
    pub fn new(clock: u64, train_max: usize, allowance: Allowance) -> HostedLinks<P> {
        HostedLinks {
            links: Vec::new(),
            by_qpn: HashMap::new(),
            alarms: BTreeSet::new(),
            queue: VecDeque::new(),
            held: Vec::new(),
            failures: Vec::new(),
            busy: 0,
            clock: LinkClock::new(clock),
            train: Train::new(),
            train_max: train_max.max(1),
            prepared: None,
            allowance,
        }
    }

    /// Serves one more link; its number, by which it is touched. An older one of the same QP ends.
    /// It takes packets from the turn on that finds its application's QP in RTR: earlier ones are
    /// lost, and sent again.
    pub fn attach(&mut self, end: LinkEnd) -> usize {
        self.detach(end.qpn);
        let link = self.new_link(end);
        self.insert(link)
    }

    fn new_link(&self, end: LinkEnd) -> Box<HostedLink<P>> {
        let LinkEnd { endpoint, request_bytes, qpn, peer_qpn, flow, peer_port, features } = end;
        let connected = Connected::new(
            endpoint,
            Service::Rc,
            (qpn, peer_qpn),
            features,
            request_bytes,
            self.allowance.clone(),
            if features == 0 { Trains::OneByOne } else { Trains::AcknowledgementFirst },
        );
        Box::new(HostedLink {
            connected,
            qpn,
            peer_qpn,
            flow,
            peer_port,
            alarm: None,
            is_queued: false,
            is_busy: false,
            held_since: None,
            recheck: Recheck::default(),
        })
    }

    fn insert(&mut self, link: Box<HostedLink<P>>) -> usize {
        let qpn = link.qpn;
        let free = self.links.iter().position(Option::is_none);
        let index = free.unwrap_or(self.links.len());
        match free {
            Some(index) => self.links[index] = Some(link),
            None => self.links.push(Some(link)),
        }
        self.by_qpn.insert(qpn, index);
        self.touch(index);
        index
    }

    /// The link of a QP ends at once: nothing is taken or sent any more.
    pub fn detach(&mut self, qpn: Qpn) {
        if let Some(mut link) = self.remove(qpn) {
            link.connected.close();
        }
    }

    /// The application's QP goes, and its link with it. The peer still hears what it may be waiting
    /// for, within a bounded number of turns, by `send` as in [`Self::turn`].
    pub fn detach_with_last_words(
        &mut self,
        qpn: Qpn,
        now: Now,
        mut send: impl FnMut((&IcrcFlow, u16), &[u8], usize),
    ) {
        let Some(index) = self.by_qpn.get(&qpn).copied() else { return };
        if let Some(link) = self.link(index) {
            link.connected.leave(now.links);
        }
        for _ in 0..LAST_TURNS {
            if !self.serve(index, now, Company::None, &mut send) {
                break;
            }
        }
        self.detach(qpn);
    }

    fn remove(&mut self, qpn: Qpn) -> Option<Box<HostedLink<P>>> {
        let index = self.by_qpn.remove(&qpn)?;
        let link = self.links.get_mut(index)?.take()?;
        self.busy -= usize::from(link.is_busy);
        if let Some(at) = link.alarm {
            self.alarms.remove(&(at, index));
        }
        self.queue.retain(|queued| *queued != index);
        self.held.retain(|held| *held != index);
        Some(link)
    }

    /// The application at this link did something.
    pub fn touch(&mut self, index: usize) {
        if let Some(link) = self.link(index) {
            link.recheck.news();
        }
        self.enqueue(index);
    }

    fn enqueue(&mut self, index: usize) {
        let queued = self.link(index).map(|link| std::mem::replace(&mut link.is_queued, true));
        if queued == Some(false) {
            self.queue.push_back(index);
        }
    }

    fn link(&mut self, index: usize) -> Option<&mut HostedLink<P>> {
        self.links.get_mut(index)?.as_deref_mut()
    }

    /// Packets for the peer of a QP go to this UDP port from now on.
    pub fn set_peer_port(&mut self, qpn: Qpn, port: u16) {
        let index = self.by_qpn.get(&qpn).copied();
        if let Some(link) = index.and_then(|index| self.link(index)) {
            link.peer_port = port;
        }
    }

    /// Whether requests of some application are under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Whether there is no link.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_qpn.is_empty()
    }

    /// The counters of a QP's connection.
    #[must_use]
    pub fn counters(&self, qpn: Qpn) -> Option<Counters> {
        let index = *self.by_qpn.get(&qpn)?;
        Some(self.links.get(index)?.as_deref()?.connected.numbers())
    }

    /// The next connection that has failed, each once: its QP, the peer's, and why.
    pub fn next_failure(&mut self) -> Option<(Qpn, Qpn, Status)> {
        self.failures.pop()
    }

    /// The time, by the clock and for links, now that the clock says this.
    pub fn now(&mut self, clock: u64) -> Now {
        self.clock.look(clock)
    }

    /// The host sleeps until then if nothing happens; what is missed beyond that is not counted
    /// against peers.
    pub fn sleeps(&mut self, until: Option<u64>) {
        self.clock.sleeps(until);
    }

    /// Datagrams came out of a socket, of `stride` bytes each but for the last. `flow`: from the
    /// peer to us.
    pub fn arrived(
        &mut self,
        now: Now,
        flow: &IcrcFlow,
        ecn: Ecn,
        (mut train, stride): (&[u8], usize),
    ) {
        let stride = stride.max(1);
        // An acknowledgement that travelled with what answers it is heard first.
        let last = (train.len().max(1) - 1) / stride * stride;
        if last > 0 && acknowledges(&train[last..]) {
            let (before, acknowledgement) = train.split_at(last);
            self.packet(now, flow, ecn, acknowledgement, &mut Numbering::new(None));
            train = before;
        }
        let mut ids = Numbering::new(self.prepared);
        while !train.is_empty() {
            let mut count = match ecn {
                Ecn::Unmarked => self.run(now, flow, (train, stride), &mut ids),
                Ecn::CongestionExperienced => 0,
            };
            if count == 0 {
                self.packet(now, flow, ecn, &train[..stride.min(train.len())], &mut ids);
                count = 1;
            }
            train = &train[(count * stride).min(train.len())..];
        }
        self.prepared = ids.prepared;
    }

    /// The link that a packet from there is for. Only its own peer reaches a queue pair.
    fn receiver(&mut self, flow: &IcrcFlow, packet: &Packet<'_>) -> Option<usize> {
        let index = *self.by_qpn.get(&packet.bth().destination())?;
        let link = self.link(index)?;
        let (own, port) = (link.flow, link.peer_port);
        let is_peer = own.destination == flow.source && own.source == flow.destination;
        // An engine sends from ports of its choice, a process from the one that it says.
        (is_peer && (port == PORT || port == flow.source_port)).then_some(index)
    }

    /// Takes the run that a train begins with. So many datagrams of it were taken.
    fn run(
        &mut self,
        now: Now,
        flow: &IcrcFlow,
        (train, stride): (&[u8], usize),
        ids: &mut Numbering,
    ) -> usize {
        let Some(run) = WriteRun::of(train, stride) else { return 0 };
        let Some(index) = run.packet().and_then(|packet| self.receiver(flow, &packet)) else {
            return 0;
        };
        let sound = run.datagrams().take_while(|one| ids.sound(flow, one)).count();
        // The one that ended it is damaged, and dropped.
        let looked_at = (sound + 1).min(run.count());
        let Some(link) = self.link(index) else { return 0 };
        match run.first(sound) {
            Some(first) if link.connected.take_run(now.links, &first) => {}
            _ => {
                let sound = run.datagrams().take(sound);
                for packet in sound.filter_map(|one| Packet::parse(one).ok()) {
                    link.connected.packet(now.links, &packet, Ecn::Unmarked);
                }
            }
        }
        self.touch(index);
        looked_at
    }

    /// Takes one datagram. What is no packet, is damaged, or has no receiver, is dropped.
    fn packet(
        &mut self,
        now: Now,
        flow: &IcrcFlow,
        ecn: Ecn,
        datagram: &[u8],
        ids: &mut Numbering,
    ) {
        let Ok(packet) = Packet::parse(datagram) else { return };
        let Some(index) = self.receiver(flow, &packet) else { return };
        match ids.check(flow, datagram) {
            IcrcVerdict::Exact => ids.found(Identification::ZERO),
            IcrcVerdict::Solved(identification) => ids.found(identification),
            IcrcVerdict::Damaged => return,
        }
        // The mark that a notification came with says nothing of the way there.
        let ecn = if packet.opcode().is_notification() { Ecn::Unmarked } else { ecn };
        if let Some(link) = self.link(index) {
            link.connected.packet(now.links, &packet, ecn);
        }
        self.touch(index);
    }

    /// One turn: alarms go off, links are served, and trains leave by `send`, which gets the
    /// link's flow and its peer's port, packets, and the length of all but the last.
    pub fn turn(
        &mut self,
        now: Now,
        company: Company,
        mut send: impl FnMut((&IcrcFlow, u16), &[u8], usize),
    ) -> Next {
        // Answers may lie unread in the sockets: those come first.
        if !self.clock.is_behind() {
            while let Some((at, index)) = self.alarms.first().copied().filter(|a| a.0 <= now.links)
            {
                self.alarms.remove(&(at, index));
                if let Some(link) = self.link(index) {
                    link.alarm = None;
                    link.connected.timeout(now.links);
                }
                self.enqueue(index);
            }
        }
        if company == Company::None {
            for index in std::mem::take(&mut self.held) {
                self.enqueue(index);
            }
        }
        for _ in 0..LINKS_AT_ONCE.min(self.queue.len()) {
            let Some(index) = self.queue.pop_front() else { break };
            self.serve(index, now, company, &mut send);
        }
        self.next()
    }

    /// When to be called again, if nothing happens before.
    #[must_use]
    pub fn next(&self) -> Next {
        if !self.queue.is_empty() || self.clock.is_behind() {
            return Next::Now;
        }
        match self.alarms.first() {
            Some((at, _)) => Next::At(self.clock.clock_at(*at)),
            None => Next::Never,
        }
    }

    /// Whether acknowledgements wait for company: a turn without company sends them.
    #[must_use]
    pub fn holds_some(&self) -> bool {
        !self.held.is_empty()
    }

    /// A batch was read from the sockets; there may be more.
    pub fn has_read_some(&mut self) {
        self.clock.has_read();
    }

    /// The sockets are empty.
    pub fn has_read_all(&mut self) {
        self.clock.is_back();
    }

    /// Serves a link. True: there is more to do.
    fn serve(
        &mut self,
        index: usize,
        now: Now,
        company: Company,
        send: &mut impl FnMut((&IcrcFlow, u16), &[u8], usize),
    ) -> bool {
        let HostedLinks { links, train, train_max, .. } = self;
        let Some(link) = links.get_mut(index).and_then(Option::as_deref_mut) else { return false };
        link.is_queued = false;
        let mut more = link.connected.serve(now.links);
        let held = link.waits_for_company(now.links) && company == Company::MayCome;
        if !held {
            more |= link.transmit(now.links, train, *train_max, send);
        }
        link.connected.after();
        let is_busy = link.connected.application.has_requests_under_way();
        self.busy += usize::from(is_busy);
        self.busy -= usize::from(std::mem::replace(&mut link.is_busy, is_busy));
        if link.connected.take_rings_since() {
            link.recheck.news();
        }
        link.recheck.served(now.links);
        let again = link.recheck.due().filter(|_| link.connected.waits());
        let next = link.connected.next_timeout().into_iter().chain(again).min();
        if let Some(at) = next
            && link.alarm.is_none_or(|before| at < before)
        {
            if let Some(before) = link.alarm.replace(at) {
                self.alarms.remove(&(before, index));
            }
            self.alarms.insert((at, index));
        }
        if let Some(status) = link.connected.take_failure() {
            self.failures.push((link.qpn, link.peer_qpn, status));
        }
        if held && !self.held.contains(&index) {
            self.held.push(index);
        }
        if more {
            self.touch(index);
        }
        more
    }
}

impl<P: MappedPages> HostedLink<P> {
    /// Whether all that is to be sent is an acknowledgement, for a short time now.
    fn waits_for_company(&mut self, now: u64) -> bool {
        let may = self.connected.may_wait();
        let since = *self.held_since.get_or_insert(now);
        let waits = may && now.saturating_sub(since) < HOLD_MAX;
        if !waits {
            self.held_since = None;
        }
        waits
    }

    /// Sends what there is, as far as a turn allows. True: there may be more.
    fn transmit(
        &mut self,
        now: u64,
        train: &mut Train,
        train_max: usize,
        send: &mut impl FnMut((&IcrcFlow, u16), &[u8], usize),
    ) -> bool {
        let (flow, port) = (self.flow, self.peer_port);
        let mut depart = |train: &mut Train| {
            let segment = train.segment();
            send((&flow, port), train.seal(&flow), segment);
        };
        let mut room = PACKETS_AT_ONCE;
        let mut more = true;
        while room > 0 {
            let Some(length) = self.connected.transmit(now, train.tail()) else {
                more = false;
                break;
            };
            room -= 1;
            if train.accepts(length, train_max) {
                train.append(length);
            } else {
                depart(train);
                train.restart(length);
            }
            if WritePattern::may_begin(train.latest(length)) {
                let (datagrams, free) = train.behind(train_max);
                let most = free.min(room);
                let alike = self.connected.transmit_alike(now, datagrams, length, most);
                train.extend(alike);
                room -= alike;
            }
            train.seal(&flow);
            // A turn ends with a train, not in the middle of one.
            if train.is_full(train_max) {
                let count = train.count();
                depart(train);
                train.clear();
                if room < count {
                    break;
                }
            }
        }
        if !train.is_empty() {
            depart(train);
            train.clear();
        }
        more
    }
}

/// Whether a datagram says that it is an acknowledgement.
fn acknowledges(datagram: &[u8]) -> bool {
    let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    datagram.first() == Some(&opcode.to_byte())
}

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod tests;
