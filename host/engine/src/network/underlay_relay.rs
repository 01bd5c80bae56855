//! Carries packets of vNICs with virtual addresses over the underlay, in a thread of its own.
//!
//! In: packets at UDP port 4791 of this host's underlay addresses; packets of vNICs, from the other
//! ends of their ports. Out: the same, the other way round. A packet goes to the vNIC in whose
//! range of QPNs its destination is, of those with that underlay address; any other is dropped
//! without an answer. Whether its sender is a peer the packet thread finds out. A vNIC sends from
//! its own underlay address alone.
//!
//! An address alone is no proof of a sender: other programs of a peer's host send from it, too. All
//! daemons send from UDP port 4791, which no other process of the host has. So a packet from
//! another source port is dropped.
//!
//! A packet for an underlay address of this host goes to the vNIC there at once, if that is of the
//! sender's virtual network; it is never sent out. So no socket takes a packet from such an
//! address: any process of the host's own namespace could have sent that. The control plane gives
//! the sockets, one for each underlay address, and takes them back.
//!
//! The packet thread hears later than this one that a vNIC is closed, and its queue pairs then send
//! their last packets: an acknowledgement or a datagram that its peer waits for. So a vNIC that is
//! closed gets no packets any more, but what it sends is carried until its port is closed.
//!
//! Packets of an encrypted tenant leave and arrive by PSP, at UDP port 1000
//! (`underlay_relay/tenant_tunnels.rs`). What comes for it at port 4791 is dropped.
//!
//! A virtual machine's agent has a port, too, by which it and the packet thread tell each other
//! that a doorbell was rung. That is passed on between the two ports. Datagrams of the agent are of
//! no virtual network, and dropped.

mod host_sockets;
mod multicast_copies;
mod outgoing_packets;
mod tenant_tunnels;
mod vnic_lookup_tables;

use crate::command::Encryption;
use crate::event_outbox::Outbox;
use crate::network::roce_port::Arrival;
use crate::network::virtual_network_senders::NetworkPlaces;
use crate::network::{handshake_datagram, multicast_copy_codec};
use host_sockets::HostSockets;
use multicast_copies::GroupCopies;
use omniverb_psp::tunnel::Addresses;
use omniverb_sys::proxied_udp::{self, MESSAGE_MAX, PAYLOAD_MAX, ProxiedHeader, ProxiedMessage};
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{EventFd, Poller, clock, seqpacket};
use omniverb_terms::VnicId;
use omniverb_transport::Ecn;
use outgoing_packets::{destination, is_here, pass_on, send_out, send_to_group};
use quinn_udp::{EcnCodepoint, RecvMeta};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tenant_tunnels::TenantTunnels;
use vnic_lookup_tables::Seats;

pub use vnic_lookup_tables::Seat;

/// That of RoCE v2.
const PORT: u16 = omniverb_wire::PORT;
/// Bytes that the kernel merges at most.
const BUFFER_BYTES: usize = 64 << 10;
/// Batches taken before others get their turn: one of the kernel's each.
const BUFFERS: usize = 4;
/// Packets of one vNIC that are taken before others get their turn.
const PACKETS_PER_TURN: usize = 64;
/// How long the thread is waited for, which does what it is told in its next iteration.
const ORDER_MAX: Duration = Duration::from_secs(1);

/// Tokens of the poller: a kind in the top byte, a number below.
mod token {
    pub(super) const ORDERS: u64 = 1 << 56;
    pub(super) const HOST: u64 = 2 << 56;
    pub(super) const VNIC: u64 = 3 << 56;
    pub(super) const AGENT: u64 = 4 << 56;
    pub(super) const CLOSED_VNIC: u64 = 5 << 56;
    pub(super) const PSP: u64 = 6 << 56;
    pub(super) const NUMBER: u64 = (1 << 56) - 1;
}

/// By which the thread says whether it could do something.
type Outcome = mpsc::Sender<io::Result<()>>;

enum Order {
    Open(Box<Seat>, Outcome),
    Close(VnicId),
    /// The socket of UDP port 4791 at an underlay address; `None`: there is none any more.
    Socket(IpAddr, Option<OwnedFd>),
    /// Packets of a virtual network are encrypted with these keys from now on, or no more.
    Encrypt(u64, Option<Encryption>),
    /// The port of PSP, if there is one.
    PspPort(Option<Arc<UdpPort>>),
    /// A vNIC is in a group from now on, or no longer.
    JoinGroup(VnicId, IpAddr),
    LeaveGroup(VnicId, IpAddr),
    /// All vNICs of a virtual network.
    Places(u64, Arc<NetworkPlaces>),
}

/// Whether more can come from a vNIC's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortState {
    Open,
    Closed,
}

/// A vNIC that sends.
#[derive(Clone, Copy, Debug)]
enum SeatKey {
    Served(VnicId),
    Leaving(u64),
}

/// The thread, as the control plane holds it. Dropping it ends the thread.
pub struct UnderlayRelay {
    orders: Option<mpsc::Sender<Order>>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl UnderlayRelay {
    /// Starts the thread, which shows by `pulse` that it goes on, and tells of events by `outbox`.
    ///
    /// # Errors
    /// `EMFILE`, `EAGAIN` and the like.
    pub(crate) fn start(pulse: ThreadPulse, outbox: Outbox) -> io::Result<UnderlayRelay> {
        let (orders, inbox) = mpsc::channel();
        let (wake, poller) = (Arc::new(EventFd::new()?), Poller::new()?);
        poller.add(&*wake, token::ORDERS)?;
        let mut relay = Relay {
            poller,
            inbox,
            wake: wake.clone(),
            hosts: HostSockets::default(),
            seats: Seats::default(),
            leaving: BTreeMap::new(),
            last_leaving: 0,
            tunnels: TenantTunnels::new(outbox, clock::now()),
            is_psp_port_closing: false,
            copies: GroupCopies::new(clock::now()),
            turn: 0,
            buffer: vec![0; BUFFERS * BUFFER_BYTES],
        };
        let builder = std::thread::Builder::new().name("underlay".into());
        let thread = builder.spawn(move || relay.run(&pulse))?;
        let (orders, thread) = (Some(orders), Some(thread));
        Ok(UnderlayRelay { orders, wake, thread })
    }

    /// Carries a vNIC's packets from now on, in place of what was carried for it before.
    ///
    /// # Errors
    /// The kernel cannot watch another descriptor, and nothing is carried: `ENOSPC`, `ENOMEM`. If
    /// the thread is late, that is not known.
    pub fn open(&mut self, seat: Seat) -> io::Result<()> {
        let (done, outcome) = mpsc::channel();
        self.order(Order::Open(Box::new(seat), done));
        match outcome.recv_timeout(ORDER_MAX) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Packets at an underlay address pass by this socket of its UDP port 4791 from now on, or no
    /// more.
    pub fn set_socket(&self, underlay: IpAddr, socket: Option<OwnedFd>) {
        self.order(Order::Socket(underlay, socket));
    }

    /// Carries no packets to a vNIC any more, and none from it once its port is closed.
    pub fn close(&mut self, vnic: VnicId) {
        self.order(Order::Close(vnic));
    }

    /// Encrypts what the vNICs of a virtual network exchange with other hosts, or no longer. The
    /// port of it is [given apart](Self::set_psp_port).
    pub fn encrypt(&self, network: u64, encryption: Option<Encryption>) {
        self.order(Order::Encrypt(network, encryption));
    }

    /// Encrypted packets pass by this port of the host's own network namespace. Without one none
    /// do.
    pub fn set_psp_port(&self, port: Option<Arc<UdpPort>>) {
        self.order(Order::PspPort(port));
    }

    /// A vNIC is in a group of its virtual network: it gets what others there send to it.
    pub fn join_group(&self, vnic: VnicId, group: IpAddr) {
        self.order(Order::JoinGroup(vnic, group));
    }

    /// It is in it no longer.
    pub fn leave_group(&self, vnic: VnicId, group: IpAddr) {
        self.order(Order::LeaveGroup(vnic, group));
    }

    /// All vNICs of a virtual network are these now.
    pub fn set_places(&self, network: u64, places: Arc<NetworkPlaces>) {
        self.order(Order::Places(network, places));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
            self.wake.signal();
        }
    }
}

impl Drop for UnderlayRelay {
    fn drop(&mut self) {
        self.orders = None;
        self.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Relay {
    poller: Poller,
    inbox: mpsc::Receiver<Order>,
    wake: Arc<EventFd>,
    /// By the numbers of their tokens.
    hosts: HostSockets,
    seats: Seats,
    /// Closed vNICs whose ports the packet thread still has, by the numbers of their tokens.
    leaving: BTreeMap<u64, Seat>,
    last_leaving: u64,
    tunnels: TenantTunnels,
    /// The port of PSP is closed once no encrypted vNIC is leaving.
    is_psp_port_closing: bool,
    copies: GroupCopies,
    /// Iterations of the thread.
    turn: u64,
    buffer: Vec<u8>,
}

impl Relay {
    /// Serves until the control plane drops its end.
    fn run(&mut self, pulse: &ThreadPulse) {
        let mut ready = Vec::new();
        loop {
            pulse.rest();
            let due = self.tunnels.next_timeout();
            let limit = due.map(|due| Duration::from_nanos(due.saturating_sub(clock::now())));
            if self.poller.wait(limit, &mut ready).is_err() {
                return;
            }
            pulse.work();
            self.turn += 1;
            if due.is_some() {
                self.tunnels.timeout(clock::now());
            }
            for of in ready.drain(..) {
                let number = of & token::NUMBER;
                match of & !token::NUMBER {
                    token::ORDERS if !self.take_orders() => return,
                    token::HOST => self.receive(number),
                    token::VNIC => self.send(VnicId(number)),
                    token::CLOSED_VNIC => self.send_last(number),
                    token::AGENT => self.hear_agent(VnicId(number)),
                    token::PSP => self.receive_encrypted(number as usize),
                    _ => {}
                }
            }
        }
    }

    fn take_orders(&mut self) -> bool {
        self.wake.take();
        loop {
            match self.inbox.try_recv() {
                Ok(Order::Open(seat, outcome)) => {
                    let _ = outcome.send(self.open(*seat));
                }
                Ok(Order::Close(vnic)) => self.leave(vnic),
                Ok(Order::Socket(underlay, socket)) => self.set_socket(underlay, socket),
                Ok(Order::Encrypt(network, encryption)) => self.encrypt(network, encryption),
                Ok(Order::PspPort(port)) => self.set_psp_port(port),
                Ok(Order::JoinGroup(vnic, group)) => self.join_group(vnic, group),
                Ok(Order::LeaveGroup(vnic, group)) => self.seats.leave_group(vnic, group),
                Ok(Order::Places(network, places)) => {
                    self.seats.set_places(network, &places);
                    self.copies.note_new_hosts(network);
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn set_socket(&mut self, underlay: IpAddr, socket: Option<OwnedFd>) {
        let Relay { hosts, poller, .. } = self;
        if let Some(before) = hosts.remove(underlay) {
            let _ = poller.remove(&before.socket);
        }
        if let Some(socket) = socket {
            // Without memory to watch it nothing arrives there, as if the network lost it.
            let _ = hosts
                .add(underlay, socket, |socket, number| poller.add(socket, token::HOST | number));
        }
    }

    fn set_psp_port(&mut self, port: Option<Arc<UdpPort>>) {
        // What encrypted vNICs send last passes by it.
        let is_needed = self.leaving.values().any(|seat| self.tunnels.has(seat.network));
        self.is_psp_port_closing = port.is_none() && is_needed;
        if self.is_psp_port_closing || self.tunnels.has_port(port.as_ref()) {
            return;
        }
        for socket in self.tunnels.files() {
            let _ = self.poller.remove(socket);
        }
        self.tunnels.set_port(port);
        for (socket, number) in self.tunnels.files().zip(0..) {
            let _ = self.poller.add(socket, token::PSP | number);
        }
    }

    fn encrypt(&mut self, network: u64, encryption: Option<Encryption>) {
        let now = clock::now();
        match encryption {
            None => {
                self.seats.set_encryption(network, None);
                self.tunnels.end(network);
            }
            Some(encryption) => {
                let encryption = Encryption { port: None, ..encryption };
                self.seats.set_encryption(network, Some(&encryption));
                for seat in self.seats.of_network(network).filter(|seat| seat.has_far_peers) {
                    let user = (seat.vnic, seat.underlay);
                    self.tunnels.join(network, user, encryption.clone(), now);
                }
            }
        }
    }

    /// A vNIC is in a group. Other hosts of an encrypted network may have found this one silent so
    /// far, and ask it for keys ever more rarely: they hear that it is there.
    fn join_group(&mut self, vnic: VnicId, group: IpAddr) {
        let (Relay { seats, hosts, tunnels, copies, .. }, now) = (self, clock::now());
        seats.join_group(vnic, group);
        let Some(seat) = seats.get(vnic).filter(|seat| tunnels.has(seat.network)) else { return };
        if !copies.may_introduce(seat.network, now) {
            return;
        }
        let others = seat.places.hosts().filter(|host| !is_here(seats, hosts, *host));
        let ends = others.map(|remote| Addresses { local: seat.underlay, remote });
        tunnels.introduce(seat.network, ends, now);
    }

    fn open(&mut self, mut seat: Seat) -> io::Result<()> {
        let (vnic, network) = (seat.vnic, seat.network);
        self.leave(vnic);
        if let Some(encryption) = &mut seat.encryption {
            encryption.port = None;
            let encryption = encryption.clone();
            self.tunnels.join(network, (vnic, seat.underlay), encryption, clock::now());
        }
        let watched = self.watch(seat);
        if watched.is_err() {
            self.leave(vnic);
        }
        watched
    }

    fn watch(&mut self, seat: Seat) -> io::Result<()> {
        // vNICs have numbers of the daemon's own, which never come near these bits.
        let number = seat.vnic.0 & token::NUMBER;
        let agents = seat.agent.iter().flat_map(|port| port.sockets());
        let watched = agents.map(|socket| self.poller.add(socket, token::AGENT | number));
        let watched = self.poller.add(&seat.end, token::VNIC | number).and(watched.collect());
        self.seats.add(seat);
        watched.map_err(|error: io::Error| {
            let text =
                format!("its packets are not carried, its own port cannot be watched: {error}");
            io::Error::new(error.kind(), text)
        })
    }

    /// A vNIC gets no packets any more. What it sends is watched for until its port is closed, and
    /// stays encrypted if it was.
    fn leave(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.remove(vnic) else { return };
        if self.seats.of_network(seat.network).next().is_none() {
            self.copies.forget(seat.network);
        }
        let _ = self.poller.remove(&seat.end);
        for socket in seat.agent.iter().flat_map(|port| port.sockets()) {
            let _ = self.poller.remove(socket);
        }
        self.last_leaving += 1;
        let number = self.last_leaving;
        match self.poller.add(&seat.end, token::CLOSED_VNIC | number) {
            Ok(()) => drop(self.leaving.insert(number, Seat { agent: None, ..seat })),
            Err(_) => self.has_left(&seat),
        }
    }

    /// Nothing more comes of a vNIC by this port. By another it may, encrypted or not.
    fn has_left(&mut self, seat: &Seat) {
        let is_there = |other: &Seat| {
            let is_same = (other.vnic, other.network) == (seat.vnic, seat.network);
            is_same && other.encryption.is_some()
        };
        if !self.seats.all().chain(self.leaving.values()).any(is_there) {
            self.tunnels.leave(seat.network, seat.vnic);
        }
        if self.is_psp_port_closing {
            self.set_psp_port(None);
        }
    }

    /// Takes what has come to an underlay address.
    fn receive(&mut self, number: u64) {
        let Some(host) = self.hosts.get(number) else { return };
        let address = host.address;
        let mut meta = [RecvMeta::default(); BUFFERS];
        let mut bytes = std::mem::take(&mut self.buffer);
        let mut slices: Vec<IoSliceMut<'_>> =
            bytes.chunks_mut(BUFFER_BYTES).map(IoSliceMut::new).collect();
        let count = host.state.recv((&host.socket).into(), &mut slices, &mut meta).unwrap_or(0);
        for (slice, meta) in slices.iter().zip(&meta[..count]) {
            // The kernel merges packets of one source port alone.
            if meta.addr.port() != PORT {
                continue;
            }
            let batch = slice.get(..meta.len).unwrap_or_default();
            for datagram in batch.chunks(meta.stride.max(1)) {
                self.deliver(address, meta, datagram);
            }
        }
        self.buffer = bytes;
    }

    fn deliver(&mut self, underlay: IpAddr, meta: &RecvMeta, datagram: &[u8]) {
        let remote = meta.addr.ip().to_canonical();
        if is_here(&self.seats, &self.hosts, remote) {
            return;
        }
        let ends = Addresses { local: underlay, remote };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        if let Some(copy) = multicast_copy_codec::read(datagram) {
            let Relay { seats, tunnels, copies, turn, .. } = self;
            if !copies.may_arrive(remote, clock::now()) {
                return;
            }
            // One that came in plain is of no encrypted network.
            let mut networks = seats.networks_in(copy.0).filter(|network| !tunnels.has(*network));
            let network = networks.find(|network| seats.may_send(*network, ends, copy.1));
            return network.into_iter().for_each(|network| {
                copies.deliver(seats, network, (ends, ecn), copy, *turn);
            });
        }
        if datagram.len() > PAYLOAD_MAX || handshake_datagram::begins(datagram) {
            return;
        }
        let to = destination(datagram).and_then(|qpn| self.seats.with_qpn(underlay, qpn));
        let Some(seat) = to else { return };
        if self.tunnels.has(seat.network) {
            return self.tunnels.heard_plain(seat.network, ends);
        }
        let local = Some(underlay);
        seat.put(&ProxiedHeader { local, remote, interface: 0, port: PORT, ecn }, datagram);
    }

    /// Takes what has come to a socket of the port of PSP: packets go to vNICs of the tenant whose
    /// they are.
    fn receive_encrypted(&mut self, socket: usize) {
        let Relay { tunnels, seats, hosts, copies, turn, .. } = self;
        let is_here = |address| is_here(seats, hosts, address);
        tunnels.receive(socket, clock::now(), is_here, |network, arrival, packet| {
            let Arrival { flow, ecn, .. } = arrival;
            let (local, remote) = (flow.destination, flow.source);
            let ecn = match ecn {
                Ecn::Unmarked => EcnCodepoint::Ect0,
                Ecn::CongestionExperienced => EcnCodepoint::Ce,
            };
            let ecn = ecn as u8;
            if let Some(copy) = multicast_copy_codec::read(packet) {
                let ends = Addresses { local, remote };
                if seats.may_send(network, ends, copy.1) {
                    copies.deliver(seats, network, (ends, ecn), copy, *turn);
                }
                return;
            }
            if packet.len() > PAYLOAD_MAX {
                return;
            }
            let to = destination(packet).and_then(|qpn| seats.with_qpn(local, qpn));
            let Some(seat) = to.filter(|seat| seat.network == network) else { return };
            let local = Some(local);
            seat.put(&ProxiedHeader { local, remote, interface: 0, port: PORT, ecn }, packet);
        });
    }

    /// Sends what a vNIC has for its peers.
    fn send(&mut self, vnic: VnicId) {
        if self.send_some(SeatKey::Served(vnic)) == PortState::Closed {
            self.leave(vnic);
        }
    }

    /// Sends the last packets of a vNIC that is closed, until nothing more can come.
    fn send_last(&mut self, number: u64) {
        if self.send_some(SeatKey::Leaving(number)) == PortState::Closed
            && let Some(seat) = self.leaving.remove(&number)
        {
            let _ = self.poller.remove(&seat.end);
            self.has_left(&seat);
        }
    }

    fn send_some(&mut self, key: SeatKey) -> PortState {
        let Relay { hosts, seats, leaving, tunnels, copies, turn, .. } = self;
        let seat = match key {
            SeatKey::Served(vnic) => seats.get(vnic),
            SeatKey::Leaving(number) => leaving.get(&number),
        };
        let Some(seat) = seat else { return PortState::Open };
        let mut message = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        for _ in 0..PACKETS_PER_TURN {
            let length = match seqpacket::receive(seat.end.as_fd(), &mut message, mode) {
                Ok((length, _)) if length > 0 => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => return PortState::Closed,
            };
            let message = message.get(..length).unwrap_or_default();
            if proxied_udp::is_word(message) {
                if let Some(agent) = seat.agent.as_deref().and_then(UdpPort::carried) {
                    agent.say();
                }
                continue;
            }
            let Some((head, contents)) = ProxiedHeader::read(message) else { continue };
            if head.local != Some(seat.underlay) {
                continue;
            }
            if head.remote.is_multicast() {
                let parts = (&*hosts, &mut *tunnels, &*seats);
                send_to_group(parts, (copies, *turn), seat, &head, contents);
            } else if is_here(seats, hosts, head.remote) {
                pass_on(seats, seat, &head, contents);
            } else {
                send_out((hosts, tunnels), seat, (head.remote, head.ecn), contents);
            }
        }
        PortState::Open
    }

    /// Passes on that a process of a virtual machine has rung, once however often it has.
    fn hear_agent(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.get(vnic) else { return };
        let Some(agent) = seat.agent.as_deref().and_then(UdpPort::carried) else { return };
        let mut buffer = [0; MESSAGE_MAX];
        let mut has_rung = false;
        for _ in 0..PACKETS_PER_TURN {
            match agent.receive(&mut buffer) {
                ProxiedMessage::Word => has_rung = true,
                ProxiedMessage::Datagram(..) => {}
                ProxiedMessage::Nothing => break,
                ProxiedMessage::Over => {
                    // An empty message ends the vNIC's port as well, which the daemon is told.
                    let _ = seqpacket::try_send(seat.end.as_fd(), &[], &[]);
                    return self.leave(vnic);
                }
            }
        }
        if has_rung {
            proxied_udp::say(seat.end.as_fd());
        }
    }
}

#[cfg(test)]
mod tests;
