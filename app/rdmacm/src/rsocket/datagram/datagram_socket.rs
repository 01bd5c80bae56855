//! Implements a datagram socket: the kernel's, a queue pair, and known peers.
//!
//! A peer that is sent something for the first time gets it through the kernel, with our queue
//! pair's number in front; the answer has the number of its own, and what follows goes from queue
//! pair to queue pair. All of that happens within calls: what comes through the kernel meanwhile
//! waits there.

use core::ffi::c_int;
use core::net::SocketAddr;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libc::{O_NONBLOCK, sockaddr_storage};
use omniverb_sys::EventFd;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::kernel_socket::{IpFamily, KernelSocket};
use super::peer_table::Peers;
use super::socket_address;
use super::ud_queue_pair::{DATAGRAM_MAX, UdPort};
use super::wire_format::{self, DatagramPurpose, HEADER_MAX, KernelDatagramHeader};
use crate::errno::of;
use crate::rsocket::buffer_settings::Settings;
use crate::rsocket::flow_control::ReadMode;
use crate::rsocket::iovec::IovecCursor;
use crate::rsocket::queue_pair::Queues;
use crate::rsocket::readiness_wait::WaitableState;
use crate::rsocket::waiter_election::WaiterElection;

/// Of so many looks at least one is for the kernel, however much comes to the queue pair.
const TURNS: u32 = 16;

/// Where a datagram is that was not read.
pub(super) enum DatagramPlace {
    /// In a room of the port's, behind a header of so many bytes.
    Room(u32, usize),
    /// It came through the kernel.
    Kept(Box<[u8]>),
}

pub(super) struct ArrivedDatagram {
    pub(super) from: SocketAddr,
    pub(super) bytes: usize,
    pub(super) place: DatagramPlace,
}

/// How the queue pair does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QpHealth {
    /// Nothing of it has completed.
    New,
    /// Something of it has completed well.
    Works,
    /// It has failed, and has worked.
    Failed,
    /// It has failed from the beginning.
    NeverWorked,
}

impl QpHealth {
    /// Whether it has failed.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::NeverWorked)
    }

    /// Something has completed well.
    pub(super) fn mark_working(&mut self) {
        *self = if self.is_over() { Self::Failed } else { Self::Works };
    }

    /// From now on it has failed, for good.
    pub(super) fn mark_failed(&mut self) {
        *self = match self {
            Self::New | Self::NeverWorked => Self::NeverWorked,
            Self::Works | Self::Failed => Self::Failed,
        };
    }
}

/// A datagram socket, but for its number: a call has all of it locked.
pub(crate) struct Inner {
    // In front of the port, whose protection domain their ways have.
    pub(super) peers: Peers,
    pub(super) port: Option<UdPort>,
    pub(crate) kernel: KernelSocket,
    connected: Option<SocketAddr>,
    pub(super) arrived: VecDeque<ArrivedDatagram>,
    /// How many of them came through the kernel.
    pub(super) kept: usize,
    gate: WaiterElection,
    pub(super) health: QpHealth,
    /// It may have completed more than was taken.
    pub(super) has_more: bool,
    /// Tells a sleeper without a queue pair that there is one.
    news: EventFd,
    turns: u32,
    pub(crate) settings: Settings,
    /// Nanoseconds that `SO_RCVTIMEO` says.
    pub(crate) receive_limit: Option<u64>,
    pub(crate) traffic_class: u8,
    /// `O_NONBLOCK` and what else `F_SETFL` said.
    pub(crate) flags: c_int,
    /// What `F_SETFD` said.
    pub(crate) descriptor_flags: c_int,
}

/// An address as C has it.
pub(super) fn storage(address: SocketAddr) -> sockaddr_storage {
    socket_address::to_c(match address {
        SocketAddr::V6(six) if six.ip().to_canonical().is_ipv6() => six.into(),
        _ => SocketAddr::new(address.ip().to_canonical(), address.port()),
    })
    .0
}

/// The same of our own, which a queue pair is bound to: at any port.
pub(super) fn storage_of_own(mut address: SocketAddr) -> sockaddr_storage {
    address.set_port(0);
    storage(address)
}

impl Inner {
    /// As [`Datagrams::new`](super::calls::Datagrams::new).
    pub(crate) fn new(
        family: IpFamily,
        flags: c_int,
        descriptor_flags: c_int,
    ) -> Result<Inner, Errno> {
        Ok(Inner {
            peers: Peers::default(),
            port: None,
            kernel: KernelSocket::new(family)?,
            connected: None,
            arrived: VecDeque::new(),
            kept: 0,
            gate: WaiterElection::default(),
            health: QpHealth::New,
            has_more: false,
            news: EventFd::new().map_err(|_| Errno::EMFILE)?,
            turns: 0,
            settings: Settings::default().within_bounds(),
            receive_limit: None,
            traffic_class: 0,
            flags,
            descriptor_flags,
        })
    }

    /// Of a call with these flags.
    pub(crate) fn mode(&self, flags: c_int) -> BlockingMode {
        match (self.flags & O_NONBLOCK, flags & libc::MSG_DONTWAIT) {
            (0, 0) => BlockingMode::Blocking,
            _ => BlockingMode::NonBlocking,
        }
    }

    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Something can be sent.
    pub(crate) fn can_send(&self) -> bool {
        !self.health.is_over() && self.port.as_ref().is_none_or(UdPort::has_room)
    }

    /// Nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.health.is_over() || self.port.as_ref().is_none_or(UdPort::is_idle)
    }

    /// It has no queue pair, whose size could not be changed any more.
    pub(crate) fn is_new(&self) -> bool {
        self.port.is_none()
    }

    /// Gives it an address.
    pub(crate) fn bind(&mut self, to: SocketAddr) -> Result<(), Errno> {
        self.kernel.bind(to)?;
        self.peers.forget();
        Ok(())
    }

    /// Has it send to that peer, and receive from no other.
    pub(crate) fn connect(&mut self, to: Option<SocketAddr>) -> Result<(), Errno> {
        self.connected = self.kernel.connect(to)?;
        self.peers.forget();
        if let Some(peer) = self.connected {
            let kernel = &self.kernel;
            let source = self.peers.of(peer, || kernel.source(peer))?.source;
            self.open(source)?;
            let unread = core::mem::take(&mut self.arrived);
            for datagram in unread {
                if self.is_heard(datagram.from) {
                    self.arrived.push_back(datagram);
                } else {
                    self.release_datagram(datagram);
                }
            }
        }
        Ok(())
    }

    /// The queue pair, made if there is none.
    fn open(&mut self, source: SocketAddr) -> Result<&mut UdPort, Errno> {
        if self.port.is_none() {
            self.port = Some(UdPort::new(&storage_of_own(source), &self.settings)?);
            self.health = QpHealth::New;
            self.news.signal();
        }
        self.port.as_mut().ok_or(Errno::ENODEV)
    }

    /// The queue pair has failed: there is another, of which peers are told that may know it. No
    /// thread sleeps.
    fn close(&mut self) {
        let has_worked = self.health != QpHealth::NeverWorked;
        (self.health, self.has_more) = (QpHealth::New, false);
        self.gate.taken();
        self.news.take();
        self.port = None;
        let known = self.peers.forget_queues();
        self.arrived.retain(|datagram| matches!(datagram.place, DatagramPlace::Kept(_)));
        // One that fails from the beginning is not made over and over.
        if !has_worked {
            return;
        }
        for (peer, source) in known {
            self.tell(peer, source);
        }
    }

    /// Tells a peer of our queue pair. Where there is none to be had, the kernel's way will do.
    pub(super) fn tell(&mut self, peer: SocketAddr, source: SocketAddr) {
        if let Ok(port) = self.open(source) {
            let knock = KernelDatagramHeader { purpose: DatagramPurpose::Answer, qpn: port.qpn() }
                .encode(source.ip());
            let _ = self.kernel.send(knock.bytes(), peer, BlockingMode::NonBlocking);
        }
    }

    pub(super) fn is_heard(&self, from: SocketAddr) -> bool {
        let is_same = |peer: SocketAddr| (peer.ip(), peer.port()) == (from.ip(), from.port());
        self.connected.is_none_or(is_same)
    }

    /// Sends to a peer; `None`: to the one that it is connected with.
    ///
    /// # Errors
    /// `EDESTADDRREQ`: it is not. `EMSGSIZE`: more than fits. `EAGAIN`: no [room](Self::can_send).
    /// What the kernel says.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_to`].
    pub(crate) unsafe fn send(
        &mut self,
        to: Option<SocketAddr>,
        data: &mut IovecCursor<'_>,
        mode: BlockingMode,
    ) -> Result<usize, Errno> {
        let to = to.or(self.connected).ok_or(of(libc::EDESTADDRREQ))?;
        if IpFamily::of(to) != self.kernel.family() {
            return Err(of(libc::EAFNOSUPPORT));
        }
        let is_known = self.peers.find(to).is_some_and(|peer| peer.qpn.is_some());
        if !is_known || self.health.is_over() {
            self.progress();
        }
        if self.health.is_over() {
            return Err(Errno::EAGAIN);
        }
        let total = data.left();
        let kernel = &self.kernel;
        let source = self.peers.of(to, || kernel.source(to))?.source;
        self.open(source)?;
        self.peers.mark_sent_to(to);
        let (Some(port), Ok(peer)) = (&mut self.port, self.peers.of(to, || Ok(source))) else {
            return Err(Errno::ENODEV);
        };
        let name = wire_format::name(source);
        if let Some(qpn) = peer.qpn {
            if peer.way.is_none() {
                let own = storage_of_own(source);
                peer.way = Some(port.way(&own, &storage(to), self.traffic_class)?);
            }
            if let Some(way) = &peer.way
                && total <= way.longest.saturating_sub(name.bytes().len())
            {
                // SAFETY: the caller's promise.
                let sent = unsafe { port.send(way, qpn, name.bytes(), data) };
                return sent.map(|()| total);
            }
        }
        let knock = KernelDatagramHeader { purpose: DatagramPurpose::Data, qpn: port.qpn() }
            .encode(source.ip());
        let header = knock.bytes();
        let mut bytes = [0; DATAGRAM_MAX + HEADER_MAX];
        // What the other side has room for.
        if total > DATAGRAM_MAX - header.len() {
            return Err(of(libc::EMSGSIZE));
        }
        bytes[..header.len()].copy_from_slice(header);
        // SAFETY: the caller's promise; there is room.
        unsafe { data.copy_to(bytes[header.len()..].as_mut_ptr(), total) };
        self.kernel.send(&bytes[..header.len() + total], to, mode)?;
        Ok(total)
    }

    /// Gives the program the oldest datagram, if there is one: its length and its sender.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_from`].
    pub(crate) unsafe fn read(
        &mut self,
        data: &mut IovecCursor<'_>,
        reading: ReadMode,
    ) -> Option<(usize, SocketAddr)> {
        let datagram = self.arrived.front()?;
        let (from, bytes) = (datagram.from, datagram.bytes);
        let count = bytes.min(data.left());
        // SAFETY: the caller's promise.
        unsafe {
            match (&datagram.place, &self.port) {
                (DatagramPlace::Kept(kept), _) => data.copy_from(kept.as_ptr(), count),
                (&DatagramPlace::Room(room, header), Some(port)) => {
                    port.give(room, header..header + count, data);
                }
                (DatagramPlace::Room(..), None) => {}
            }
        }
        if reading == ReadMode::Take
            && let Some(datagram) = self.arrived.pop_front()
        {
            self.release_datagram(datagram);
        }
        Some((bytes, from))
    }

    fn release_datagram(&mut self, datagram: ArrivedDatagram) {
        match datagram.place {
            DatagramPlace::Room(room, _) => self.give_back(room),
            DatagramPlace::Kept(_) => self.kept -= 1,
        }
    }
}

impl WaitableState for Inner {
    fn progress(&mut self) {
        self.take_completed();
        // A sleeper on descriptors is to see first that something is there, and has them then.
        if !self.gate.is_open() {
            return;
        }
        if self.health.is_over() {
            self.close();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.arrived.is_empty() || self.turns.is_multiple_of(TURNS) {
            self.take_knocks();
        }
    }

    fn fd(&self) -> RawFd {
        self.kernel.fd()
    }

    fn queues(&self) -> Option<&Queues> {
        self.port.as_ref().map(UdPort::queues)
    }

    fn gate(&mut self) -> &mut WaiterElection {
        &mut self.gate
    }

    fn news(&self) -> RawFd {
        self.news.as_fd().as_raw_fd()
    }

    fn has_more(&self) -> bool {
        self.has_more
    }
}

#[cfg(test)]
impl Inner {
    pub(crate) fn knows(&self, peer: SocketAddr) -> bool {
        self.peers.find(peer).is_some_and(|peer| peer.qpn.is_some())
    }

    pub(crate) fn knows_queue(&self, peer: SocketAddr, qpn: u32) -> bool {
        self.peers.find(peer).is_some_and(|peer| peer.qpn == Some(qpn))
    }

    /// Of our queue pair.
    pub(crate) fn qpn(&self) -> Option<u32> {
        self.port.as_ref().map(UdPort::qpn)
    }

    pub(crate) fn arrived(&self) -> usize {
        self.arrived.len()
    }

    pub(crate) fn take_all(&mut self) {
        self.take_knocks();
    }
}
