//! Sorts what comes to a datagram socket: its sender, whether it is heard, and what it says of
//! others' queue pairs. In: what completed, and the kernel's datagrams. Out: those that wait to be
//! read.

use core::net::SocketAddr;

use omniverb_sys::clock;
use omniverb_terms::Errno;

use super::datagram_socket::{ArrivedDatagram, DatagramPlace, Inner, storage, storage_of_own};
use super::kernel_socket::IpFamily;
use super::ud_queue_pair::{DATAGRAM_MAX, UdCompletion, UdPort};
use super::wire_format::{self, DatagramPurpose, KernelDatagramHeader, ROUTE_BYTES};

/// Datagrams of the kernel's that are taken at a time: others want something, too.
const TAKEN: usize = 32;

impl Inner {
    /// Takes what came to the queue pair; what comes meanwhile is for another look, or a peer that
    /// sends fast enough could keep us here.
    pub(super) fn take_completed(&mut self) {
        self.has_more = false;
        for _ in 0..self.port.as_ref().map_or(0, UdPort::rooms) {
            let Some(done) = self.port.as_mut().and_then(UdPort::poll) else { return };
            match done {
                UdCompletion::Failed => self.health.mark_failed(),
                UdCompletion::Sent => self.health.mark_working(),
                UdCompletion::Received(room, bytes, qpn) => {
                    self.health.mark_working();
                    self.take_datagram(room, bytes, qpn);
                }
            }
        }
        self.has_more = self.port.is_some();
    }

    fn take_datagram(&mut self, room: u32, bytes: usize, qpn: u32) {
        let Some(port) = &self.port else { return };
        let (route, front) = port.front(room);
        let front = &front[..front.len().min(bytes)];
        let named = wire_format::named(front).filter(|(from, _)| {
            IpFamily::of(*from) == self.kernel.family() && self.is_heard(*from)
        });
        let named = named.filter(|(from, _)| self.is_sent_by(*from, &route, qpn));
        match named {
            Some((from, header)) => {
                // With the interface, which is not said, of link-local addresses.
                let from = self.peers.find(from).map_or(from, |peer| peer.address);
                let place = DatagramPlace::Room(room, header);
                self.arrived.push_back(ArrivedDatagram { from, bytes: bytes - header, place });
            }
            None => self.give_back(room),
        }
    }

    /// Whether a datagram that names this sender is from there, by its route header.
    fn is_sent_by(&mut self, from: SocketAddr, route: &[u8; ROUTE_BYTES], qpn: u32) -> bool {
        if wire_format::may_be(from.ip(), wire_format::sender(route)) {
            // Another socket of its host's, perhaps.
            let known = self.peers.find(from).and_then(|peer| peer.qpn);
            return known.is_none_or(|known| known == qpn);
        }
        let (Some(gid), Some(port)) = (wire_format::sender_gid(route), &self.port) else {
            return false;
        };
        let (kernel, traffic_class) = (&self.kernel, self.traffic_class);
        port.has_virtual_gid()
            && self.peers.is_from(
                from,
                (gid, qpn),
                clock::now(),
                || kernel.source(from),
                |own, to| port.way(&storage_of_own(own), &storage(to), traffic_class).ok(),
            )
    }

    pub(super) fn give_back(&mut self, room: u32) {
        if self.port.as_ref().is_some_and(|port| port.take(room).is_err()) {
            self.health.mark_failed();
        }
    }

    /// Takes what came through the kernel.
    pub(super) fn take_knocks(&mut self) {
        let mut bytes = [0; DATAGRAM_MAX];
        for _ in 0..TAKEN {
            match self.kernel.receive(&mut bytes) {
                Ok((count, from)) => {
                    let said = KernelDatagramHeader::decode(&bytes[..count], from.ip());
                    if let Some((knock, header)) = said {
                        self.take_kernel_datagram(from, knock, &bytes[header..count]);
                    }
                }
                Err(Errno::EAGAIN) => return,
                // There is no receiver where something was sent to: datagrams get lost.
                Err(_) => {}
            }
        }
    }

    fn take_kernel_datagram(&mut self, from: SocketAddr, knock: KernelDatagramHeader, data: &[u8]) {
        let kernel = &self.kernel;
        if let Ok(peer) = self.peers.of(from, || kernel.source(from)) {
            peer.qpn = Some(knock.qpn);
            let source = peer.source;
            if knock.purpose == DatagramPurpose::Data {
                self.tell(from, source);
            }
        }
        let most = self.settings.within_bounds().receive_queue;
        if knock.purpose == DatagramPurpose::Data && self.kept < usize::from(most) {
            self.kept += 1;
            let place = DatagramPlace::Kept(data.into());
            self.arrived.push_back(ArrivedDatagram { from, bytes: data.len(), place });
        }
    }
}
