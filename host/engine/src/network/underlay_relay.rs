//! Carries packets of vNICs with virtual addresses over the underlay, in a thread of its own.
//!
//! In: packets at UDP port 4791 of this host's underlay addresses; packets of vNICs, from the other
//! ends of their ports. Out: the same, the other way round. A packet goes to the vNIC in whose
//! range of QPNs its destination is, of those with that underlay address; any other is dropped
//! without an answer. Whether its sender is a peer the packet thread finds out. A vNIC sends from
//! its own underlay address alone.
//!
//! vNICs of one host do not reach each other here. So nothing is heard from an address of this
//! host: any process of its own namespace could have sent that.

use crate::network::handshake_datagram;
use omniverb_sys::proxied_udp::{HEAD_BYTES, MESSAGE_MAX, PAYLOAD_MAX, ProxiedHeader};
use omniverb_sys::thread_watchdog::ThreadPulse;
use omniverb_sys::udp_socket::bound_to;
use omniverb_sys::{EventFd, Poller, seqpacket};
use omniverb_terms::{Qpn, VnicId};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

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

/// Tokens of the poller: a kind in the top byte, a number below.
mod token {
    pub(super) const ORDERS: u64 = 1 << 56;
    pub(super) const HOST: u64 = 2 << 56;
    pub(super) const VNIC: u64 = 3 << 56;
    pub(super) const NUMBER: u64 = (1 << 56) - 1;
}

/// A vNIC whose packets are carried.
#[derive(Debug)]
pub struct Seat {
    /// By which the control plane closes it.
    pub vnic: VnicId,
    /// The address of this host that its packets carry.
    pub underlay: IpAddr,
    /// Its QPNs: the first, and how many.
    pub qpns: (Qpn, u32),
    /// The other end of its port.
    pub end: OwnedFd,
}

enum Order {
    Host(IpAddr, OwnedFd),
    Open(Seat),
    Close(VnicId),
}

/// The thread, as the control plane holds it. Dropping it ends the thread.
pub struct UnderlayRelay {
    orders: Option<mpsc::Sender<Order>>,
    wake: Arc<EventFd>,
    hosts: BTreeSet<IpAddr>,
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
            hosts: Vec::new(),
            seats: BTreeMap::new(),
            ranges: BTreeMap::new(),
            buffer: vec![0; BUFFERS * BUFFER_BYTES],
        };
        let builder = std::thread::Builder::new().name("underlay".into());
        let thread = builder.spawn(move || relay.run(&pulse))?;
        let (orders, thread) = (Some(orders), Some(thread));
        Ok(UnderlayRelay { orders, wake, hosts: BTreeSet::new(), thread })
    }

    /// Carries a vNIC's packets from now on, in place of what was carried for it before.
    ///
    /// # Errors
    /// UDP port 4791 of its underlay address cannot be had: `EADDRINUSE`, or `EADDRNOTAVAIL` if
    /// this host does not have the address. It is tried again for the next vNIC.
    pub fn open(&mut self, seat: Seat) -> io::Result<()> {
        let underlay = seat.underlay;
        if !self.hosts.contains(&underlay) {
            let socket = bound_to(SocketAddr::new(underlay, PORT))?;
            self.hosts.insert(underlay);
            self.order(Order::Host(underlay, socket));
        }
        self.order(Order::Open(seat));
        Ok(())
    }

    /// Carries a vNIC's packets no longer.
    pub fn close(&self, vnic: VnicId) {
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
    hosts: Vec<Host>,
    seats: BTreeMap<VnicId, Seat>,
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
                    token::HOST => self.receive(number as usize),
                    token::VNIC => self.send(VnicId(number)),
                    _ => {}
                }
            }
        }
    }

    fn take_orders(&mut self) -> bool {
        self.wake.take();
        loop {
            match self.inbox.try_recv() {
                Ok(Order::Host(address, socket)) => self.add_host(address, socket),
                Ok(Order::Open(seat)) => self.open(seat),
                Ok(Order::Close(vnic)) => self.close(vnic),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn add_host(&mut self, address: IpAddr, socket: OwnedFd) {
        let Ok(state) = UdpSocketState::new((&socket).into()) else { return };
        let number = self.hosts.len() as u64;
        if self.poller.add(&socket, token::HOST | number).is_ok() {
            self.hosts.push(Host { address, socket, state });
        }
    }

    fn open(&mut self, seat: Seat) {
        self.close(seat.vnic);
        let (first, count) = seat.qpns;
        // vNICs have numbers of the daemon's own, which never come near these bits.
        if self.poller.add(&seat.end, token::VNIC | seat.vnic.0 & token::NUMBER).is_ok() {
            self.ranges.insert((seat.underlay, first.0), (first.0 + count, seat.vnic));
            self.seats.insert(seat.vnic, seat);
        }
    }

    fn close(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.remove(&vnic) else { return };
        let _ = self.poller.remove(&seat.end);
        // The numbers may be another vNIC's already.
        let range = (seat.underlay, seat.qpns.0.0);
        if self.ranges.get(&range).is_some_and(|(_, of)| *of == vnic) {
            self.ranges.remove(&range);
        }
    }

    /// The vNIC in whose range a QPN is.
    fn seat_of(&self, underlay: IpAddr, qpn: Qpn) -> Option<&Seat> {
        let range = (underlay, u32::MIN)..=(underlay, qpn.0);
        let (_, (end, vnic)) = self.ranges.range(range).next_back()?;
        if qpn.0 < *end { self.seats.get(vnic) } else { None }
    }

    /// Takes what has come to an underlay address.
    fn receive(&mut self, number: usize) {
        let Some(host) = self.hosts.get(number) else { return };
        let mut meta = [RecvMeta::default(); BUFFERS];
        let mut bytes = std::mem::take(&mut self.buffer);
        let mut slices: Vec<IoSliceMut<'_>> =
            bytes.chunks_mut(BUFFER_BYTES).map(IoSliceMut::new).collect();
        let count = host.state.recv((&host.socket).into(), &mut slices, &mut meta).unwrap_or(0);
        for (slice, meta) in slices.iter().zip(&meta[..count]) {
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
        if self.hosts.iter().any(|host| host.address == remote) {
            return;
        }
        let Some(seat) = destination(datagram).and_then(|qpn| self.seat_of(underlay, qpn)) else {
            return;
        };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let port = meta.addr.port();
        let head = ProxiedHeader { local: Some(underlay), remote, interface: 0, port, ecn };
        let mut message = Vec::with_capacity(HEAD_BYTES + datagram.len());
        message.extend_from_slice(&head.written());
        message.extend_from_slice(datagram);
        // A message without room is lost, as in a network.
        let _ = seqpacket::try_send(seat.end.as_fd(), &message, &[]);
    }

    /// Sends what a vNIC has for other hosts.
    fn send(&mut self, vnic: VnicId) {
        let Some(seat) = self.seats.get(&vnic) else { return };
        let Some(host) = self.hosts.iter().find(|host| host.address == seat.underlay) else {
            return;
        };
        let mut message = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        for _ in 0..PACKETS_PER_TURN {
            let length = match seqpacket::receive(seat.end.as_fd(), &mut message, mode) {
                Ok((length, _)) if length > 0 => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The port is closed.
                Ok(_) | Err(_) => return self.close(vnic),
            };
            // One byte alone says that a doorbell was rung, which is for virtual machines.
            let Some((head, contents)) =
                ProxiedHeader::read(message.get(..length).unwrap_or_default())
            else {
                continue;
            };
            let is_own = head.local == Some(seat.underlay) && !head.remote.is_multicast();
            if !is_own || self.hosts.iter().any(|host| host.address == head.remote) {
                continue;
            }
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
}

/// The QPN that a packet is for.
fn destination(datagram: &[u8]) -> Option<Qpn> {
    match datagram.first_chunk::<DESTINATION_END>()? {
        [.., high, middle, low] => Some(Qpn(u32::from_be_bytes([0, *high, *middle, *low]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::thread_watchdog::ThreadPulses;

    #[test]
    fn a_packet_goes_to_the_vnic_that_has_its_number_and_comes_from_no_other_address() {
        let pulse = ThreadPulses::default().minor("underlay");
        let mut relay = UnderlayRelay::start(pulse).unwrap();
        let [here, there] = [2, 3].map(|last| IpAddr::from([127, 7, 91, last]));
        let (one, one_end) = seqpacket::pair().unwrap();
        let (two, two_end) = seqpacket::pair().unwrap();
        let seat = |vnic, underlay, first, end| Seat {
            vnic: VnicId(vnic),
            underlay,
            qpns: (Qpn(first), 1024),
            end,
        };
        relay.open(seat(1, here, 0x40_0000, one_end)).unwrap();
        relay.open(seat(2, here, 0x40_0400, two_end)).unwrap();
        let remote = bound_to(SocketAddr::new(there, PORT)).unwrap();
        let remote = std::net::UdpSocket::from(remote);
        remote.set_nonblocking(false).unwrap();
        remote.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let packet = |qpn: u32| {
            let mut packet = vec![100, 0, 0xff, 0xff, 0];
            packet.extend_from_slice(&qpn.to_be_bytes()[1..]);
            packet
        };
        // A process of this host that says it is one of its vNICs: those are not heard from here.
        let forger = std::net::UdpSocket::bind((here, 0)).unwrap();
        forger.send_to(&packet(0x40_0004), SocketAddr::new(here, PORT)).unwrap();
        // Out of the ranges; in the second one.
        for qpn in [0x3f_ffff, 0x40_0800, 5, 0x40_0404] {
            remote.send_to(&packet(qpn), SocketAddr::new(here, PORT)).unwrap();
        }
        let mut buffer = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::Blocking;
        let (length, _) = seqpacket::receive(two.as_fd(), &mut buffer, mode).unwrap();
        let (head, contents) = ProxiedHeader::read(&buffer[..length]).unwrap();
        assert_eq!(
            (head.local, head.remote, contents),
            (Some(here), there, &packet(0x40_0404)[..])
        );
        let mode = seqpacket::BlockingMode::NonBlocking;
        for end in [&one, &two] {
            assert!(seqpacket::receive(end.as_fd(), &mut buffer, mode).is_err(), "nothing else");
        }
        // Back, and in another's name.
        for local in [there, here] {
            let head = ProxiedHeader {
                local: Some(local),
                remote: there,
                interface: 0,
                port: PORT,
                ecn: 2,
            };
            let message =
                [&head.written()[..], b"12345678", &local.to_string().into_bytes()].concat();
            seqpacket::try_send(two.as_fd(), &message, &[]).unwrap();
        }
        let (length, from) = remote.recv_from(&mut buffer).unwrap();
        assert_eq!((from, length), (SocketAddr::new(here, PORT), 8 + here.to_string().len()));
        assert!(relay.open(seat(3, IpAddr::from([192, 0, 2, 77]), 0x41_0000, one)).is_err());
        // The numbers of one that is closed are another's already.
        let (four, four_end) = seqpacket::pair().unwrap();
        relay.open(seat(4, here, 0x40_0400, four_end)).unwrap();
        relay.close(VnicId(2));
        remote.send_to(&packet(0x40_0404), SocketAddr::new(here, PORT)).unwrap();
        let limit = std::time::Duration::from_secs(20);
        let is_heard = omniverb_sys::eventfd::readable(four.as_fd(), Some(limit));
        assert!(is_heard.unwrap(), "it is deaf");
    }
}
