//! Drives a whole daemon's tables with arbitrary bytes: for fuzzing, and for the tests here.
//!
//! Any input must leave the tables consistent, and when all clients have gone, empty.

use crate::testing::cm_calls_from_bytes;
use crate::testing::counting_entropy::CountingEntropy;
use crate::testing::packed_extent_layout::Packed;
use crate::testing::peer_model::Mirror;
use crate::{
    Access, Action, Adoption, Arrived, Channel, Client, ControlLimits, Datapath, Directory, Flat,
    Identity, Limits, MemoryFacts, Pace, PairWindows, Policy, ProbeId, PtraceDomain, RateLimit,
    Reach, Secret, SessionId, SharedLimit, Tenancy, TenantId, UnderlayRoute, VnicAddress, VnicId,
};
use omniverb_fairness::Holder;
use omniverb_session::Message;
use omniverb_session::body::{Adopted, AttachGroup, CreateQp, Hello, ROLE_VERBS};
use omniverb_session::carried_links::{AttachLink, CarriedPort};
use omniverb_terms::{Errno, Gid, Qpn, Service};
use omniverb_wire::PortNotice;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;

/// Rows that are looked through after every step.
const MANY: usize = 128;

/// A daemon that executes all actions at once, with a network of a few vNICs.
pub struct Bench {
    /// The tables under test.
    pub tenancy: Tenancy,
    /// Nanoseconds; moves only by [`Bench::wait`].
    pub now: u64,
    /// Pairs of vNICs (from, to) that the network keeps apart.
    pub walls: BTreeSet<(u64, u64)>,
    /// Between which of these probes stay under way.
    pub silent: BTreeSet<(u64, u64)>,
    /// An unanswered probe may have been lost in front of us.
    pub flooded: bool,
    /// Features of the other Omniverb.
    pub features: u32,
    /// vNICs whose sockets could not be opened.
    pub closed: BTreeSet<u64>,
    /// Addresses that are not of the vNIC of their number, but of this one.
    pub moved: BTreeMap<u64, u64>,
    /// vNICs that are introduced as virtual machines'.
    pub machines: BTreeSet<u64>,
    /// Which life of theirs vNICs have that come.
    pub life: u64,
    /// The model of the other parties.
    pub mirror: Mirror,
    /// Times that something was carried out.
    steps: usize,
    /// The messages to clients.
    pub told: Vec<Action>,
}

/// The vNIC of this number.
#[must_use]
pub fn vnic(number: u64) -> VnicId {
    VnicId(number)
}

fn address(number: u64) -> VnicAddress {
    VnicAddress {
        ip: ip(number),
        interface: 2,
        reach: Reach::Global,
        is_loopback: false,
        mtu: 1500,
    }
}

/// The address of the vNIC of this number, as the network below knows it.
#[must_use]
pub fn ip(number: u64) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number as u8).into()
}

/// The route from one vNIC to another.
#[must_use]
pub fn underlay(from: u64, to: u64) -> UnderlayRoute {
    UnderlayRoute::plain(ip(from), ip(to), 0)
}

/// The name of a vNIC, where names are addresses.
#[must_use]
pub fn gid(number: u64) -> Gid {
    ip(number).into()
}

impl Bench {
    /// An empty daemon whose own vNIC is number 1.
    #[must_use]
    pub fn new(limits: Limits) -> Bench {
        Bench::with_directory(limits, Box::new(Flat))
    }

    /// Like `new`, with a directory whose names are not addresses.
    #[must_use]
    pub fn with_directory(limits: Limits, directory: Box<dyn Directory>) -> Bench {
        let until = 1 + limits.resume_window_ns;
        let entropy = Box::<CountingEntropy>::default();
        let mut tenancy = Tenancy::with_directory(limits, entropy, 7, directory);
        // As if there had been an earlier daemon, which had given out the claimed numbers.
        tenancy.inherit(Secret([8, 9]), until);
        let mirror = Mirror::default();
        Bench {
            tenancy,
            now: 1,
            mirror,
            walls: BTreeSet::new(),
            silent: BTreeSet::new(),
            flooded: false,
            features: 1,
            closed: BTreeSet::new(),
            moved: BTreeMap::new(),
            machines: BTreeSet::new(),
            life: 0,
            steps: 0,
            told: Vec::new(),
        }
    }

    /// A process in a vNIC connects.
    pub fn open(&mut self, session: u64, number: u64) {
        self.open_as(session, number, &Holder::new(&format!("/tenants/{number}"), 0));
    }

    /// A process of a holder connects.
    pub fn open_as(&mut self, session: u64, number: u64, holder: &Holder) {
        let circle = Some(PtraceDomain { namespaces: [1, 2, 3], group: 0 });
        self.open_within(session, number, holder, circle);
    }

    /// A process of a holder connects, whose namespaces are known or not.
    pub fn open_within(
        &mut self,
        session: u64,
        number: u64,
        holder: &Holder,
        circle: Option<PtraceDomain>,
    ) {
        let holder = holder.clone();
        self.introduce(number, self.life);
        let client = Client { vnic: vnic(number), pid: 1000, uid: 0, circle, holder };
        self.tenancy.open(SessionId(session), client);
    }

    /// Sets the identity of a numbered vNIC: one life of it, as its proof has it.
    pub fn introduce(&mut self, number: u64, life: u64) {
        let guid = (0x0200_0000_0000_0000 | number).to_be_bytes();
        let (name, proof) = (format!("net-{number}"), [1, 4, number, life]);
        let access = match self.machines.contains(&number) {
            true => Access::Window,
            false => Access::Any,
        };
        let identity = Identity { name, alias: None, guid, proof };
        self.tenancy.introduce(vnic(number), identity, access);
    }

    /// The message with which the process of a session keeps a number that was given to it.
    #[must_use]
    pub fn claim(&self, session: u64, service: Service, qpn: Qpn, issued: u64) -> CreateQp {
        let ticket = self.tenancy.ticket(SessionId(session), (qpn, service), issued);
        CreateQp { qpn, issued, ticket, ..CreateQp::new(service, 1, 0) }
    }

    /// A process says something; what comes of it is carried out.
    pub fn say(&mut self, session: u64, arrived: &Arrived) {
        let session = SessionId(session);
        let actions = self.tenancy.handle(session, arrived, self.now);
        self.mirror.said(&self.tenancy, session, arrived);
        self.carry_out(actions);
    }

    /// A process dies.
    pub fn end(&mut self, session: u64) {
        let actions = self.tenancy.end(SessionId(session), self.now);
        self.mirror.ended(SessionId(session));
        self.carry_out(actions);
    }

    /// Lets time pass, and has done what was due by then.
    pub fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        let actions = self.tenancy.tick(self.now);
        self.carry_out(actions);
    }

    /// Plays the daemon.
    ///
    /// # Panics
    /// If a message to a party is inconsistent with earlier ones.
    pub fn carry_out(&mut self, actions: Vec<Action>) {
        let mut queue = std::collections::VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            let more = match &action {
                Action::ReadAddresses { vnic } => {
                    let own = (0..6).filter(|number| self.owner(*number) == vnic.0);
                    let own: Vec<VnicAddress> = own.map(address).collect();
                    self.tenancy.addresses(*vnic, &own, self.now)
                }
                Action::Manage { vnic, underlay, datagram, .. } => {
                    self.manage(*vnic, underlay, datagram)
                }
                Action::Probe { id, vnic, source, destination, .. } => {
                    self.probe(*id, *vnic, (*source, *destination))
                }
                Action::Drop { session, .. } => {
                    self.mirror.ended(*session);
                    self.tenancy.end(*session, self.now)
                }
                _ => Vec::new(),
            };
            self.mirror.told(&action);
            self.told.push(action);
            queue.extend(more);
        }
        self.mirror.check(&self.tenancy);
        // Where there are very many rows, not for each of them.
        self.steps += 1;
        if self.steps.is_multiple_of(1 + self.tenancy.receipts() / MANY) {
            self.tenancy.check_accounts();
        }
    }
}

impl Bench {
    /// The link to the engine, if there is one, could not be made.
    pub fn fail_engine_link(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.mirror.failed(qpn, peer_qpn);
        let actions = self.tenancy.engine_link_failed(qpn, peer_qpn);
        self.carry_out(actions);
    }

    /// The vNIC that has the address of this number.
    fn owner(&self, number: u64) -> u64 {
        self.moved.get(&number).copied().unwrap_or(number)
    }

    /// Carries management datagrams in the same network.
    fn manage(&mut self, from: VnicId, way: &UnderlayRoute, datagram: &[u8]) -> Vec<Action> {
        let to = self.owner(u64::from(Gid::from(way.remote).bytes()[15]));
        let closed = self.closed.contains(&from.0) || self.closed.contains(&to);
        if closed || !(1..=3).contains(&to) || self.walls.contains(&(from.0, to)) {
            return Vec::new();
        }
        let way = UnderlayRoute { local: way.remote, remote: way.local, ..*way };
        self.tenancy.management(vnic(to), Qpn::GENERAL_SERVICES, &way, datagram, self.now)
    }

    /// The network: vNICs 1 to 3 are here, number 4 is another Omniverb's, there are no others.
    fn probe(
        &mut self,
        id: ProbeId,
        from: VnicId,
        (source, destination): (Option<IpAddr>, IpAddr),
    ) -> Vec<Action> {
        let number = u64::from(Gid::from(destination).bytes()[15]);
        let to = self.owner(number);
        let known = destination == ip(number) && !self.walls.contains(&(from.0, to));
        if self.closed.contains(&from.0) {
            return self.tenancy.probe_failed(id, self.now);
        }
        let mut more = match to {
            1..=3 if known && !self.closed.contains(&to) => {
                let first = || ip((0..6).find(|n| self.owner(*n) == from.0).unwrap_or(9));
                let source = source.unwrap_or_else(first);
                self.tenancy.probe_arrived(id, (source, vnic(to)), self.now)
            }
            4 if known => {
                self.tenancy.probe_replied(id, (destination, from), self.features, self.now)
            }
            _ => Vec::new(),
        };
        // In vain if that vNIC has no process.
        if self.silent.contains(&(from.0, to)) {
            return more;
        }
        more.extend(match self.flooded {
            true => self.tenancy.probe_unheard(id, self.now),
            false => self.tenancy.probe_unanswered(id, self.now),
        });
        more
    }
}

/// Drives a daemon with arbitrary bytes.
///
/// # Panics
/// If the tables, or the engine's, are not empty after all clients have gone: a leak.
pub fn exercise(bytes: &[u8]) {
    let limits = Limits {
        sessions_per_vnic: 3,
        qps_per_session: 6,
        qps_per_vnic: 10,
        mrs_per_session: 4,
        links_per_session: 6,
        links_per_vnic: 9,
        datagram_links_per_neighbour: 2,
        grants_per_session: 2,
        extents_per_region: 2,
        extents_per_session: 3,
        extents_per_vnic: 4,
        extents: 5,
        extent_bytes: 0x2000,
        granted_per_session: 3,
        strangers_per_vnic: 2,
        groups_per_session: 2,
        groups_per_vnic: 3,
        engine_links_per_vnic: 5,
        engine_links: 8,
        engine_connections: 6,
        carried_links: 3,
        carried_links_per_vnic: 2,
        vnics: 2,
        sessions: 5,
        probes_per_vnic: 2,
        cm_ids_per_session: 6,
        cm_ids_per_vnic: 9,
        ..Limits::default()
    };
    let mut bench = Bench::new(limits);
    if bytes.len() % 2 == 1 {
        bench.tenancy.lay_out(Box::new(Packed::new(0x6000)));
    }
    if bytes.len() % 4 > 1 {
        // A machine, which says that it has another's address as well.
        bench.machines.insert(2);
        bench.moved.insert(if bytes.len() % 8 > 3 { 1 } else { 5 }, 2);
        bench.life = u64::from(bytes.len() % 16 > 7);
        let windows = PairWindows { free: 1, room: 3, ..PairWindows::default() };
        bench.tenancy.set_pair_windows(vnic(2), windows);
        bench.tenancy.set_has_memory(vnic(2), bytes.len() % 32 > 15);
    }
    if bytes.len() % 64 > 31 {
        bench.tenancy.let_processes_carry();
        bench.features |= PortNotice::FEATURE;
    }
    let mut rest = bytes;
    let mut opened = BTreeSet::new();
    // One step: two bytes of what to do, then the message if it is one.
    while let Some((&[what, selector], after)) = rest.split_first_chunk::<2>() {
        rest = after;
        let session = u64::from(selector % 6);
        if opened.insert(session) {
            bench.open(session, 1 + session % 3);
            if selector & 0x80 != 0 {
                let resume = u32::from(selector & 0x40 != 0);
                let message = Hello { role: ROLE_VERBS, resume, name: [0; 16] }.into();
                let memory = Some(MemoryFacts { is_final: true, is_write_sealed: true });
                let channel = Channel::Calls;
                bench.say(session, &Arrived { channel, tag: 0, message, memory });
            }
        }
        match what % 16 {
            0 => {
                bench.end(session);
                opened.remove(&session);
            }
            1 => bench.wait(u64::from(selector) * 50_000_000),
            2 => {
                let _ = bench.walls.insert((u64::from(selector >> 4), u64::from(selector & 15)));
                if selector & 0x88 == 0x88 {
                    bench.closed.insert(u64::from(selector & 3));
                }
            }
            4 => policy(&mut bench, selector),
            5 => {
                let Some((&[qpn, source, from, at], after)) = rest.split_first_chunk::<4>() else {
                    break;
                };
                rest = after;
                let numbers = (Qpn(u32::from(qpn % 16) + 2), Qpn(u32::from(source % 16) + 2));
                let route = underlay(u64::from(at % 4), u64::from(from % 6));
                let at = vnic(u64::from(at % 4));
                let actions = bench.tenancy.stranger(at, numbers, &route, bench.now);
                bench.carry_out(actions);
            }
            6 => {
                // A key that a session has, if one exists.
                let key = bench.told.iter().rev().find_map(|action| match action {
                    Action::Reply { message: Message::MrRegistered(mr), .. } => Some(mr.rkey),
                    _ => None,
                });
                let (qpn, peer) =
                    (Qpn(u32::from(selector >> 4) + 2), Qpn(u32::from(selector & 15) + 2));
                let key = key.unwrap_or_default();
                let range = (0x1000 * u64::from(what), u64::from(selector) << 8);
                let actions = bench.tenancy.engine_wants((qpn, peer), key, range, bench.now);
                bench.carry_out(actions);
            }
            7 => hand_out(&mut bench, selector),
            9 => {
                let pace = if selector & 8 == 0 { Pace::KeepsUp } else { Pace::Behind };
                bench.tenancy.set_pace(SessionId(u64::from(selector & 7) % 6), pace);
            }
            10 => {
                let Some((&[at, value], after)) = rest.split_first_chunk::<2>() else { break };
                rest = after;
                forge(&mut bench, selector, (at, value));
            }
            11 => {
                let Some((deed, after)) = rest.split_first_chunk::<4>() else { break };
                rest = after;
                let (tag, memory, channel) = (0, None, Channel::Calls);
                let message = cm_calls_from_bytes::call(*deed);
                bench.say(session, &Arrived { channel, tag, message, memory });
            }
            12 => {
                // The numbers of queue pairs are counted by the bench, from 2 on.
                let (qpn, gid) = (Qpn(u32::from(selector >> 4) + 2), group(selector));
                let message = AttachGroup { qpn, reserved: 0, gid }.into();
                let (tag, memory, channel) = (0, None, Channel::Calls);
                bench.say(session, &Arrived { channel, tag, message, memory });
            }
            13 if selector & 8 == 8 => {
                let Some((&[qpn, value, port, number], after)) = rest.split_first_chunk::<4>()
                else {
                    break;
                };
                rest = after;
                let ends = (Qpn(u32::from(qpn % 16) + 2), Qpn(u32::from(value % 80) + 2));
                carry(&mut bench, session, ends, (selector, port, number.into()));
            }
            8 => {
                let vnic = vnic(u64::from(selector % 4));
                let actions = match selector & 16 {
                    0 => bench.tenancy.end_capture(vnic),
                    _ => bench.tenancy.begin_capture(vnic),
                };
                bench.carry_out(actions);
            }
            3 => {
                let (a, b) = (Qpn(u32::from(selector >> 4) + 2), Qpn(u32::from(selector & 15) + 2));
                let actions = bench.tenancy.link_failed(a, b, bench.now);
                bench.carry_out(actions);
                bench.fail_engine_link(a, b);
            }
            _ => {
                let length = rest.first().map_or(0, |n| usize::from(*n));
                let Some(message) = rest.get(1..1 + length) else { break };
                rest = &rest[1 + length..];
                if let Ok((tag, mut message)) = omniverb_session::decode(message) {
                    // Half of the sessions that claim a number had it, sooner or later.
                    if let Message::CreateQp(m) = &mut message
                        && what & 128 == 0
                        && let Some(service) = Service::from_qp_type(m.qp_type)
                    {
                        let issued = u64::from(selector >> 6);
                        m.ticket =
                            bench.tenancy.ticket(SessionId(session), (m.qpn, service), issued);
                        m.issued = issued;
                    }
                    let channel = match message {
                        Message::Adopted(_) | Message::Released(_) => Channel::Events,
                        _ => Channel::Calls,
                    };
                    let memory =
                        Some(MemoryFacts { is_final: what & 64 != 0, is_write_sealed: true });
                    bench.say(session, &Arrived { channel, tag, message, memory });
                }
            }
        }
    }
    for session in opened {
        bench.end(session);
    }
    assert!(bench.mirror.is_empty(), "the engine has links without owner");
    bench.tenancy.check_accounts();
    assert!(bench.tenancy.is_empty(), "rows are left after all clients have gone");
}

/// A group, or another multicast address.
fn group(number: u8) -> Gid {
    match number & 8 {
        0 => Ipv4Addr::new(239, 0, 0, number & 7).into(),
        _ => gid(u64::from(number & 3)),
    }
}

/// The owner asked for pages last hands out some.
fn hand_out(bench: &mut Bench, selector: u8) {
    let asked = bench.told.iter().rev().find_map(|action| match action {
        Action::Event { session, message: Message::Adopt(adopt) }
        | Action::Adopt { session, adopt, .. } => Some((session.0, adopt.token)),
        Action::Pin { session, pin, .. } => Some((session.0, pin.token)),
        _ => None,
    });
    let Some((session, token)) = asked else { return };
    if selector & 0xc0 == 0xc0 {
        let actions = bench.tenancy.memory_failed(token);
        return bench.carry_out(actions);
    }
    let errno = Errno(if selector & 2 == 0 { 0 } else { u32::from(selector >> 2 & 15) });
    let message = Adopted { token, errno, epoch: 0 }.into();
    let memory = Some(MemoryFacts { is_final: true, is_write_sealed: selector & 1 == 0 });
    bench.say(session, &Arrived { channel: Channel::Events, tag: 0, message, memory });
}

/// A process, or another Omniverb, says something of a link that a process may carry.
fn carry(
    bench: &mut Bench,
    session: u64,
    (qpn, peer_qpn): (Qpn, Qpn),
    (selector, port, number): (u8, u8, u64),
) {
    let port = [0, 80, 4791, 1024 + u32::from(port)][usize::from(port & 3)];
    let message = match selector & 0x30 {
        0x00 => CarriedPort { qpn, peer_qpn, port, reserved: 0 }.into(),
        0x10 => AttachLink::fresh(qpn, peer_qpn).into(),
        _ => {
            let is_question = selector & 0x10 == 0;
            let (from, to, port) = (peer_qpn, qpn, port as u16);
            let notice =
                PortNotice { from, to, port, is_question, number: number + 1, heard: number };
            let (at, sender) = (u64::from(selector & 3), ip(u64::from(selector >> 5) % 5));
            let actions = bench.tenancy.port_notice(vnic(at), sender, &notice, bench.now);
            return bench.carry_out(actions);
        }
    };
    let (tag, memory, channel) = (0, None, Channel::Calls);
    bench.say(session, &Arrived { channel, tag, message, memory });
}

/// Changes the policy of a vNIC.
fn policy(bench: &mut Bench, selector: u8) {
    let key = vnic(u64::from(selector % 4));
    let limit = RateLimit { bits_per_second: 1_000_000, burst_bytes: 1500 };
    let policy = Policy {
        datapath: if selector & 16 == 0 { Datapath::Direct } else { Datapath::Forwarded },
        limit: (selector & 32 != 0).then_some(limit),
        operations: NonZeroU32::new(u32::from(selector & 8)),
        faults: None,
        adoption: Adoption::ALL[usize::from(selector >> 2 & 3) % 3],
        tenant: TenantId(u32::from(selector >> 7)),
        encryption: None,
        shared_limit: if selector & 48 == 48 { SharedLimit::Exists } else { SharedLimit::None },
        control: ControlLimits {
            queue_pairs: (selector & 3 == 3).then_some(2),
            ..Default::default()
        },
    };
    let actions = match selector & 64 {
        0 => bench.tenancy.forget_policy(key),
        _ => bench.tenancy.set_policy(key, policy).1,
    };
    bench.carry_out(actions);
}

/// A sent message is sent again, with a byte of it changed or not, by the same sender or another.
fn forge(bench: &mut Bench, selector: u8, (at, value): (u8, u8)) {
    let sent = bench.told.iter().rev().filter_map(|action| match action {
        Action::Manage { datagram, .. } => Some(datagram.clone()),
        _ => None,
    });
    let Some(mut datagram) = sent.take(usize::from(selector >> 6) + 1).last() else { return };
    if let Some(byte) = datagram.get_mut(usize::from(at)) {
        *byte ^= value;
    }
    let (to, from) = (u64::from(selector % 4), u64::from(selector >> 2 & 7));
    let actions = bench.tenancy.management(
        vnic(to),
        Qpn::GENERAL_SERVICES,
        &underlay(to, from),
        &datagram,
        bench.now,
    );
    bench.carry_out(actions);
}
