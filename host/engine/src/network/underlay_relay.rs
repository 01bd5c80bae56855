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
//! address: any process of the host's own namespace could have sent that. An underlay address has a
//! socket as long as some vNIC needs it.
//!
//! The packet thread hears later than this one that a vNIC is closed, and its queue pairs then send
//! their last packets: an acknowledgement or a datagram that its peer waits for. So a vNIC that is
//! closed gets no packets any more, but what it sends is carried until its port is closed.
//!
//! A virtual machine's agent has a port, too, by which it and the packet thread tell each other
//! that a doorbell was rung. That is passed on between the two ports. Datagrams of the agent are of
//! no virtual network, and dropped.

use crate::network::handshake_datagram;
use omniverb_sys::proxied_udp::{
    self, HEAD_BYTES, MESSAGE_MAX, PAYLOAD_MAX, ProxiedHeader, ProxiedMessage,
};
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::udp_socket::{UdpPort, bound_early_to, bound_to};
use omniverb_sys::{EventFd, Poller, seqpacket};
use omniverb_terms::{Qpn, VnicId};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// That of RoCE v2.
const PORT: u16 = omniverb_wire::PORT;
/// Bytes that the kernel merges at most.
const BUFFER_BYTES: usize = 64 << 10;
/// Batches taken before others get their turn: one of the kernel's each.
const BUFFERS: usize = 4;
/// Packets of one vNIC that are taken before others get their turn.
const PACKETS_PER_TURN: usize = 64;
/// Bytes of a packet up to the end of its destination QPN.
const DESTINATION_END: usize = 8;
/// How long the thread is waited for, which does what it is told in its next iteration.
const ORDER_MAX: Duration = Duration::from_secs(1);

/// Tokens of the poller: a kind in the top byte, a number below.
mod token {
    pub(super) const ORDERS: u64 = 1 << 56;
    pub(super) const HOST: u64 = 2 << 56;
    pub(super) const VNIC: u64 = 3 << 56;
    pub(super) const AGENT: u64 = 4 << 56;
    pub(super) const CLOSED_VNIC: u64 = 5 << 56;
    pub(super) const NUMBER: u64 = (1 << 56) - 1;
}

/// A vNIC whose packets are carried.
#[derive(Debug)]
pub struct Seat {
    /// By which the control plane closes it.
    pub vnic: VnicId,
    /// Its virtual network, by a number that no other has. Only vNICs of one reach each other.
    pub network: u64,
    /// The address of this host that its packets carry.
    pub underlay: IpAddr,
    /// The host gets that address about now, and may lose it for a while.
    pub is_added: bool,
    /// Whether it has peers on other hosts. Without them it needs no socket.
    pub has_far_peers: bool,
    /// Its QPNs: the first, and how many.
    pub qpns: (Qpn, u32),
    /// The other end of its port.
    pub end: OwnedFd,
    /// The port of the agent, if it is a virtual machine's.
    pub agent: Option<Arc<UdpPort>>,
}

/// By which the thread says whether it could do something.
type Outcome = mpsc::Sender<io::Result<()>>;

enum Order {
    Open(Seat, Outcome),
    Close(VnicId),
}

/// Whether more can come from a vNIC's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortState {
    Open,
    Closed,
}

/// The thread, as the control plane holds it. Dropping it ends the thread.
pub struct UnderlayRelay {
    orders: Option<mpsc::Sender<Order>>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl UnderlayRelay {
    /// Starts the thread, which shows by `pulse` that it goes on.
    ///
    /// # Errors
    /// `EMFILE`, `EAGAIN` and the like.
    pub fn start(pulse: ThreadPulse) -> io::Result<UnderlayRelay> {
        let (orders, inbox) = mpsc::channel();
        let (wake, poller) = (Arc::new(EventFd::new()?), Poller::new()?);
        poller.add(&*wake, token::ORDERS)?;
        let mut relay = Relay {
            poller,
            inbox,
            wake: wake.clone(),
            hosts: BTreeMap::new(),
            seats: BTreeMap::new(),
            leaving: BTreeMap::new(),
            last_number: 0,
            ranges: BTreeMap::new(),
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
    /// UDP port 4791 of its underlay address cannot be had: `EADDRINUSE`, or `EADDRNOTAVAIL` if
    /// this host does not have the address. Packets to vNICs of this host are carried all the same.
    /// The port is tried again for the next vNIC, and is then this one's, too. Or the kernel cannot
    /// watch another descriptor, and nothing is carried: `ENOSPC`, `ENOMEM`. If the thread is late,
    /// neither is known.
    pub fn open(&mut self, seat: Seat) -> io::Result<()> {
        let (done, outcome) = mpsc::channel();
        self.order(Order::Open(seat, done));
        match outcome.recv_timeout(ORDER_MAX) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Carries no packets to a vNIC any more, and none from it once its port is closed.
    pub fn close(&mut self, vnic: VnicId) {
        self.order(Order::Close(vnic));
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

struct Host {
    address: IpAddr,
    socket: OwnedFd,
    state: UdpSocketState,
}

struct Relay {
    poller: Poller,
    inbox: mpsc::Receiver<Order>,
    wake: Arc<EventFd>,
    /// By the numbers of their tokens, each of which is used once.
    hosts: BTreeMap<u64, Host>,
    seats: BTreeMap<VnicId, Seat>,
    /// Closed vNICs whose ports the packet thread still has, by the numbers of their tokens.
    leaving: BTreeMap<u64, Seat>,
    last_number: u64,
    /// vNICs by underlay addresses and first QPNs; one past the last QPN.
    ranges: BTreeMap<(IpAddr, u32), (u32, VnicId)>,
    buffer: Vec<u8>,
}

impl Relay {
    /// Serves until the control plane drops its end.
    fn run(&mut self, pulse: &ThreadPulse) {
        let mut ready = Vec::new();
        loop {
            pulse.rest();
            if self.poller.wait(None, &mut ready).is_err() {
                return;
            }
            pulse.work();
            for of in ready.drain(..) {
                let number = of & token::NUMBER;
                match of & !token::NUMBER {
                    token::ORDERS if !self.take_orders() => return,
                    token::HOST => self.receive(number),
                    token::VNIC => self.send(VnicId(number)),
                    token::CLOSED_VNIC => self.send_last(number),
                    token::AGENT => self.hear_agent(VnicId(number)),
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
                    let _ = outcome.send(self.open(seat));
                }
                Ok(Order::Close(vnic)) => self.close(vnic),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Has a socket of a vNIC's underlay address, if there is none yet.
    fn add_host(&mut self, seat: &Seat) -> io::Result<()> {
        let address = seat.underlay;
        if self.hosts.values().any(|host| host.address == address) {
            return Ok(());
        }
        let open = if seat.is_added { bound_early_to } else { bound_to };
        let socket = open(SocketAddr::new(address, PORT))?;
        let state = UdpSocketState::new((&socket).into())?;
        let number = self.next_number();
        self.poller.add(&socket, token::HOST | number)?;
        self.hosts.insert(number, Host { address, socket, state });
        Ok(())
    }

    /// Closes sockets that no vNIC needs any more.
    fn close_unused_hosts(&mut self) {
        let Relay { poller, hosts, seats, leaving, .. } = self;
        let is_needed = |address: IpAddr| {
            let mut all = seats.values().chain(leaving.values());
            all.any(|seat| seat.has_far_peers && seat.underlay == address)
        };
        for (_, host) in hosts.extract_if(.., |_, host| !is_needed(host.address)) {
            let _ = poller.remove(&host.socket);
        }
    }

    /// Whether an address is this host's, as far as vNICs have it.
    fn is_here(&self, address: IpAddr) -> bool {
        let mut ranges = self.ranges.range((address, u32::MIN)..=(address, u32::MAX));
        ranges.next().is_some() || self.hosts.values().any(|host| host.address == address)
    }

    fn open(&mut self, seat: Seat) -> io::Result<()> {
        let vnic = seat.vnic;
        // First, so that a socket that it has already stays.
        let has_socket = if seat.has_far_peers { self.add_host(&seat) } else { Ok(()) };
        self.leave(vnic);
        let watched = self.watch(seat);
        if watched.is_err() {
            self.leave(vnic);
        }
        self.close_unused_hosts();
        watched.and(has_socket)
    }

    fn watch(&mut self, seat: Seat) -> io::Result<()> {
        let (first, count) = seat.qpns;
        // vNICs have numbers of the daemon's own, which never come near these bits.
        let number = seat.vnic.0 & token::NUMBER;
        let agents = seat.agent.iter().flat_map(|port| port.sockets());
        let watched = agents.map(|socket| self.poller.add(socket, token::AGENT | number));
        let watched = self.poller.add(&seat.end, token::VNIC | number).and(watched.collect());
        self.ranges.insert((seat.underlay, first.0), (first.0 + count, seat.vnic));
        self.seats.insert(seat.vnic, seat);
        watched.map_err(|error: io::Error| {
            let text =
                format!("its packets are not carried, its own port cannot be watched: {error}");
            io::Error::new(error.kind(), text)
        })
    }

    fn close(&mut self, vnic: VnicId) {
        self.leave(vnic);
        self.close_unused_hosts();
    }

    /// A vNIC gets no packets any more. What it sends is watched for until its port is closed.
    fn leave(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.remove(&vnic) else { return };
        let _ = self.poller.remove(&seat.end);
        for socket in seat.agent.iter().flat_map(|port| port.sockets()) {
            let _ = self.poller.remove(socket);
        }
        // The numbers may be another vNIC's already.
        let range = (seat.underlay, seat.qpns.0.0);
        if self.ranges.get(&range).is_some_and(|(_, of)| *of == vnic) {
            self.ranges.remove(&range);
        }
        let number = self.next_number();
        if self.poller.add(&seat.end, token::CLOSED_VNIC | number).is_ok() {
            self.leaving.insert(number, Seat { agent: None, ..seat });
        }
    }

    /// The vNIC in whose range a QPN is.
    fn seat_of(&self, underlay: IpAddr, qpn: Qpn) -> Option<&Seat> {
        let range = (underlay, u32::MIN)..=(underlay, qpn.0);
        let (_, (end, vnic)) = self.ranges.range(range).next_back()?;
        if qpn.0 < *end { self.seats.get(vnic) } else { None }
    }

    /// Takes what has come to an underlay address.
    fn receive(&mut self, number: u64) {
        let Some(host) = self.hosts.get(&number) else { return };
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
                self.deliver(host.address, meta, datagram);
            }
        }
        self.buffer = bytes;
    }

    fn deliver(&self, underlay: IpAddr, meta: &RecvMeta, datagram: &[u8]) {
        if datagram.len() > PAYLOAD_MAX || handshake_datagram::begins(datagram) {
            return;
        }
        let remote = meta.addr.ip().to_canonical();
        if self.is_here(remote) {
            return;
        }
        let Some(seat) = destination(datagram).and_then(|qpn| self.seat_of(underlay, qpn)) else {
            return;
        };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let local = Some(underlay);
        seat.put(&ProxiedHeader { local, remote, interface: 0, port: PORT, ecn }, datagram);
    }

    /// Sends what a vNIC has for its peers.
    fn send(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.get(&vnic) else { return };
        if self.send_some(seat) == PortState::Closed {
            self.close(vnic);
        }
    }

    /// The same of a vNIC that is closed, until nothing more can come.
    fn send_last(&mut self, number: u64) {
        let Some(seat) = self.leaving.get(&number) else { return };
        if self.send_some(seat) == PortState::Closed {
            let _ = self.poller.remove(&seat.end);
            self.leaving.remove(&number);
            self.close_unused_hosts();
        }
    }

    fn send_some(&self, seat: &Seat) -> PortState {
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
            if head.local != Some(seat.underlay) || head.remote.is_multicast() {
                continue;
            }
            if self.is_here(head.remote) {
                self.pass_on(seat, &head, contents);
            } else {
                self.send_out(seat, &head, contents);
            }
        }
        PortState::Open
    }

    /// Passes on that a process of a virtual machine has rung, once however often it has.
    fn hear_agent(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.get(&vnic) else { return };
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
                    return self.close(vnic);
                }
            }
        }
        if has_rung {
            proxied_udp::say(seat.end.as_fd());
        }
    }

    /// Gives a packet to a vNIC of this host, if that is of the sender's virtual network.
    fn pass_on(&self, sender: &Seat, head: &ProxiedHeader, contents: &[u8]) {
        let to = destination(contents).and_then(|qpn| self.seat_of(head.remote, qpn));
        let Some(to) = to.filter(|to| to.network == sender.network) else { return };
        let (local, remote) = (Some(head.remote), sender.underlay);
        to.put(&ProxiedHeader { local, remote, interface: 0, port: PORT, ecn: head.ecn }, contents);
    }

    fn send_out(&self, sender: &Seat, head: &ProxiedHeader, contents: &[u8]) {
        let mut hosts = self.hosts.values();
        let host = hosts.find(|host| sender.has_far_peers && host.address == sender.underlay);
        let Some(host) = host else { return };
        let transmit = Transmit {
            destination: SocketAddr::new(head.remote, PORT),
            ecn: EcnCodepoint::from_bits(head.ecn),
            contents,
            segment_size: None,
            src_ip: None,
        };
        let _ = host.state.try_send((&host.socket).into(), &transmit);
    }
}

impl Seat {
    /// Gives the vNIC a packet. One without room is lost, as in a network.
    fn put(&self, head: &ProxiedHeader, datagram: &[u8]) {
        let mut message = Vec::with_capacity(HEAD_BYTES + datagram.len());
        message.extend_from_slice(&head.written());
        message.extend_from_slice(datagram);
        let _ = seqpacket::try_send(self.end.as_fd(), &message, &[]);
    }
}

/// The QPN that a packet is for.
fn destination(datagram: &[u8]) -> Option<Qpn> {
    match datagram.first_chunk::<DESTINATION_END>()? {
        [.., high, middle, low] => Some(Qpn(u32::from_be_bytes([0, *high, *middle, *low]))),
    }
}

#[cfg(test)]
mod tests;
