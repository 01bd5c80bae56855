//! Sends and receives on a vNIC's UDP port (4791, or PSP's), by sockets or a machine's proxy.

use omniverb_sys::proxied_udp::{MESSAGE_MAX, ProxiedHeader, ProxiedMessage, ProxiedSocket};
use omniverb_sys::udp_socket::{UdpPort, UdpSender};
use omniverb_transport::Ecn;
use omniverb_wire::{DATAGRAM_MAX, IcrcFlow, Identification, PORT};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one receive buffer: as much as the kernel merges.
const BUFFER_BYTES: usize = 64 << 10;
/// Receive buffers: few, so that what the kernel put there is still in the cache when it is read.
/// (With 32 of them, packets were read from memory: a fifth of the engine's time.)
const BUFFERS: usize = 8;
/// Times a train is tried while the socket is full.
const TRIES: u32 = 100;
/// Budget: messages taken from a carrying process before other sockets are read.
const CARRIED_PER_TURN: usize = 32;
/// Packets of a train that is carried: it saves nothing there, but on the way to links of ours.
const CARRIED_TRAIN: usize = 32;
/// Explicit congestion notification: the bits that say that marks are understood.
const CAPABLE: u8 = 2;

/// Memory for received datagrams, shared by all ports of a thread.
pub(crate) struct Buffers {
    bytes: Vec<u8>,
    meta: Vec<RecvMeta>,
}

impl Buffers {
    pub(crate) fn new() -> Buffers {
        Buffers { bytes: vec![0; BUFFERS * BUFFER_BYTES], meta: vec![RecvMeta::default(); BUFFERS] }
    }
}

/// Where a datagram came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) flow: IcrcFlow,
    pub(crate) interface: u32,
    /// How it was marked on the way.
    pub(crate) ecn: Ecn,
    /// Its known identification.
    pub(crate) identification: Option<Identification>,
    /// A capture of this vNIC's packets has it already.
    pub(crate) is_captured: bool,
}

/// Whether the network took a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Taken,
    /// It did not, or there is no way to it.
    Lost,
}

/// The sockets of one vNIC: one to receive and one to send for each address family, or none where
/// another process carries its datagrams.
pub(crate) struct Sockets {
    port: Arc<UdpPort>,
    /// The carrying process has ended the port.
    over: AtomicBool,
    receivers: Vec<UdpSocketState>,
    senders: Vec<UdpSocketState>,
}

impl Sockets {
    pub(crate) fn new(port: Arc<UdpPort>) -> io::Result<Sockets> {
        let over = AtomicBool::new(false);
        if port.carried().is_some() {
            return Ok(Sockets { port, over, receivers: Vec::new(), senders: Vec::new() });
        }
        let state = |socket: BorrowedFd<'_>| UdpSocketState::new((&socket).into());
        let receivers = port.sockets().map(state).collect::<io::Result<_>>()?;
        let senders = port.senders().iter();
        let senders =
            senders.map(|sender| state(sender.socket.as_fd())).collect::<io::Result<_>>()?;
        Ok(Sockets { port, over, receivers, senders })
    }

    /// The port, if another process carries it.
    pub(crate) fn carried(&self) -> Option<Arc<UdpPort>> {
        self.port.carried().map(|_| self.port.clone())
    }

    /// Nothing will come any more: these are to be watched no longer.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Reads the messages of the carrying process. True: there may be more.
    fn receive_carried(
        &self,
        carried: &ProxiedSocket,
        mut each: impl FnMut(&Arrival, &[u8]),
    ) -> bool {
        let mut buffer = [0; MESSAGE_MAX];
        for _ in 0..CARRIED_PER_TURN {
            match carried.receive(&mut buffer) {
                ProxiedMessage::Datagram(head, datagram) => {
                    let Some(destination) = head.local else { continue };
                    let flow =
                        IcrcFlow { source: head.remote, destination, source_port: head.port };
                    let (interface, ecn) = (head.interface, Ecn::of(head.ecn));
                    let (identification, is_captured) = (None, false);
                    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
                    each(&arrival, datagram);
                }
                // That we have looked is all that was wanted.
                ProxiedMessage::Word => {}
                ProxiedMessage::Nothing => return false,
                ProxiedMessage::Over => {
                    self.over.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
        true
    }

    /// The sockets to watch.
    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.port.sockets()
    }

    /// Receives one batch from one of [`Self::files`]: trains of datagrams of one source, with the
    /// length of all but the last. True: there may be more.
    pub(crate) fn receive(
        &self,
        index: usize,
        buffers: &mut Buffers,
        mut each: impl FnMut(&Arrival, &[u8], usize),
    ) -> bool {
        if let Some(carried) = self.port.carried() {
            return self.receive_carried(carried, |arrival, datagram| {
                each(arrival, datagram, datagram.len().max(1));
            });
        }
        self.receive_in_place(index, buffers, |arrival, train, stride| each(arrival, train, stride))
    }

    /// As [`Self::receive`], of own sockets; datagrams may be changed where they lie.
    pub(crate) fn receive_in_place(
        &self,
        index: usize,
        buffers: &mut Buffers,
        mut each: impl FnMut(&Arrival, &mut [u8], usize),
    ) -> bool {
        let Some((socket, state)) = self.port.sockets().zip(&self.receivers).nth(index) else {
            return false;
        };
        let Buffers { bytes, meta } = buffers;
        let mut slices: Vec<IoSliceMut<'_>> =
            bytes.chunks_mut(BUFFER_BYTES).map(IoSliceMut::new).collect();
        let Ok(count) = state.recv((&socket).into(), &mut slices, meta) else { return false };
        for (slice, meta) in slices.iter_mut().zip(&meta[..count]) {
            let Some(arrival) = arrival(meta) else { continue };
            let received = slice.get_mut(..meta.len).unwrap_or_default();
            each(&arrival, received, meta.stride.max(1));
        }
        count == BUFFERS
    }

    /// The port that packets of this IP version leave from.
    pub(crate) fn source_port(&self, to: IpAddr) -> Option<u16> {
        if self.port.carried().is_some() {
            return Some(PORT);
        }
        let found = self.port.senders().iter().find(|sender| sender.is_ipv6 == to.is_ipv6());
        found.map(|sender| sender.number)
    }

    /// Packets that one call may send.
    pub(crate) fn train_max(&self, to: IpAddr) -> usize {
        if self.port.carried().is_some() {
            return CARRIED_TRAIN;
        }
        self.sender(to).map_or(1, |(_, state)| state.max_gso_segments())
    }

    fn sender(&self, to: IpAddr) -> Option<(BorrowedFd<'_>, &UdpSocketState)> {
        let found = self.port.senders().iter().zip(&self.senders);
        let mut found = found.filter(|(sender, _)| sender.is_ipv6 == to.is_ipv6());
        found.next().map(|(sender, state)| (sender.socket.as_fd(), state))
    }

    /// Answers a datagram of a stranger, by the port that it came to. A datagram that the network
    /// does not take is lost. Half of the send buffer is left to questions of our own: an address
    /// without a host keeps answers there for seconds.
    pub(crate) fn answer(&self, bytes: &[u8], to: IpAddr, interface: u32) {
        if self.port.is_half_free(to) {
            let _ = self.port.send(bytes, None, to, interface);
        }
    }

    /// Answers a datagram by this port, at the port that it came from.
    pub(crate) fn answer_port(&self, bytes: &[u8], to: (IpAddr, u16), interface: u32) {
        if self.port.is_half_free(to.0) {
            let _ = self.port.send_to_port(bytes, None, to, interface);
        }
    }

    /// A packet may be sent to a stranger, which leaves the other half of the send buffer to peers.
    pub(crate) fn may_send_to_stranger(&self, to: IpAddr) -> bool {
        let mut senders = self.port.senders().iter();
        senders.find(|sender| sender.is_ipv6 == to.is_ipv6()).is_none_or(UdpSender::is_half_free)
    }

    /// Sends a train of packets of `segment` bytes. Packets that the network does not take are
    /// lost, as anywhere in a network.
    pub(crate) fn send(
        &self,
        flow: &IcrcFlow,
        interface: u32,
        train: &[u8],
        segment: usize,
    ) -> Sent {
        self.send_to_port(flow, (self.port.number(), interface), train, segment)
    }

    /// As [`Self::send`], to this port of the peer. The ICRC is that of packets to port 4791.
    pub(crate) fn send_to_port(
        &self,
        flow: &IcrcFlow,
        (number, interface): (u16, u32),
        train: &[u8],
        segment: usize,
    ) -> Sent {
        if let Some(carried) = self.port.carried() {
            send_carried(carried, flow, (number, interface), train.chunks(segment.max(1)));
            return Sent::Taken;
        }
        let Some((socket, state)) = self.sender(flow.destination) else { return Sent::Lost };
        let destination = match flow.destination {
            IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, number)),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, number, 0, interface)),
        };
        let transmit = Transmit {
            destination,
            ecn: Some(EcnCodepoint::Ect0),
            contents: train,
            segment_size: (train.len() > segment).then_some(segment),
            src_ip: Some(flow.source),
        };
        for _ in 0..TRIES {
            match state.try_send((&socket).into(), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Ok(()) => return Sent::Taken,
                Err(_) => return Sent::Lost,
            }
        }
        Sent::Lost
    }
}

/// The carrying process sends each packet by itself, which its kernel numbers zero then.
fn send_carried<'a>(
    carried: &ProxiedSocket,
    flow: &IcrcFlow,
    (port, interface): (u16, u32),
    packets: impl Iterator<Item = &'a [u8]>,
) {
    let IcrcFlow { source, destination, .. } = *flow;
    let (local, remote) = (Some(source), destination);
    let head = ProxiedHeader { local, remote, interface, port, ecn: CAPABLE };
    let mut buffer = [0; DATAGRAM_MAX];
    for packet in packets {
        let Some(copy) = buffer.get_mut(..packet.len()) else { continue };
        copy.copy_from_slice(packet);
        flow.seal(copy, 0);
        carried.send(&head, copy);
    }
}

fn arrival(meta: &RecvMeta) -> Option<Arrival> {
    let (source, interface) = match meta.addr {
        SocketAddr::V4(from) => (IpAddr::V4(*from.ip()), 0),
        SocketAddr::V6(from) => (IpAddr::V6(*from.ip()), from.scope_id()),
    };
    let flow = IcrcFlow { source, destination: meta.dst_ip?, source_port: meta.addr.port() };
    let ecn = Ecn::of(meta.ecn.map_or(0, |codepoint| codepoint as u8));
    Some(Arrival { flow, interface, ecn, identification: None, is_captured: false })
}
