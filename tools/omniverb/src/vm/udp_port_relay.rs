//! Carries UDP port 4791 of a machine for the engine of its host.
//!
//! In: datagrams of the network; messages of the engine. Out: the same, the other way round. It
//! does not parse them: the engine finds their receivers.

use omniverb_sys::proxied_udp::{HEAD_BYTES, PAYLOAD_MAX, ProxiedHeader};
use omniverb_sys::udp_socket::UdpPort;
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;

/// That of RoCE v2.
const PORT: u16 = 4791;
/// Bytes that the kernel merges at most.
const BUFFER_BYTES: usize = 64 << 10;
/// Batches taken before others get their turn: one of the kernel's each.
const BUFFERS: usize = 4;

/// UDP port 4791 of the guest, for the engine.
pub(super) struct Network {
    port: UdpPort,
    states: Vec<UdpSocketState>,
    bytes: Vec<u8>,
}

impl Network {
    /// Opens it.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket in the machine has it: Linux's own software RNIC, perhaps.
    pub(super) fn open() -> io::Result<Network> {
        let port = UdpPort::open(PORT)?;
        let state = |socket: BorrowedFd<'_>| UdpSocketState::new((&socket).into());
        let states = port.sockets().map(state).collect::<io::Result<_>>()?;
        Ok(Network { port, states, bytes: vec![0; BUFFERS * BUFFER_BYTES] })
    }

    /// The sockets, for watching: one for IPv4, and perhaps one for IPv6.
    pub(super) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.port.sockets().collect()
    }

    /// Takes what has come by one of the sockets: as messages for the engine.
    pub(super) fn receive(&mut self, index: usize) -> Vec<Vec<u8>> {
        let found = self.port.sockets().zip(&self.states).nth(index);
        let Some((socket, state)) = found else { return Vec::new() };
        let mut meta = [RecvMeta::default(); BUFFERS];
        let mut slices: Vec<IoSliceMut<'_>> =
            self.bytes.chunks_mut(BUFFER_BYTES).map(IoSliceMut::new).collect();
        let Ok(count) = state.recv((&socket).into(), &mut slices, &mut meta) else {
            return Vec::new();
        };
        let batches = slices.iter().zip(&meta[..count]);
        batches.flat_map(|(slice, meta)| messages(slice, meta)).collect()
    }

    /// Sends a message of the engine. A datagram that the network does not take is lost.
    pub(super) fn send(&self, message: &[u8]) {
        let Some((head, contents)) = ProxiedHeader::read(message) else { return };
        let six = head.remote.is_ipv6();
        let found = self.port.sockets().zip(&self.states).nth(usize::from(six));
        let Some((socket, state)) = found else { return };
        let destination = match head.remote {
            IpAddr::V4(_) => SocketAddr::new(head.remote, PORT),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, PORT, 0, head.interface).into(),
        };
        let ecn = EcnCodepoint::from_bits(head.ecn);
        let (segment_size, src_ip) = (None, head.local);
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip };
        let _ = state.try_send((&socket).into(), &transmit);
    }
}

/// The datagrams of a batch, as messages.
fn messages(slice: &[u8], meta: &RecvMeta) -> Vec<Vec<u8>> {
    let Some(local) = meta.dst_ip else { return Vec::new() };
    let interface = match meta.addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(from) => from.scope_id(),
    };
    let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
    let (remote, port) = (meta.addr.ip(), meta.addr.port());
    let head = ProxiedHeader { local: Some(local), remote, interface, port, ecn }.written();
    let all = slice.get(..meta.len).unwrap_or(&[]).chunks(meta.stride.max(1));
    let short = all.filter(|one| one.len() <= PAYLOAD_MAX);
    let mut found = Vec::new();
    for one in short {
        let mut message = Vec::with_capacity(HEAD_BYTES + one.len());
        message.extend_from_slice(&head);
        message.extend_from_slice(one);
        found.push(message);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datagram_of_a_batch_is_a_message() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut meta = RecvMeta::default();
        meta.addr = SocketAddr::new(ip("10.0.0.2"), 50_000);
        (meta.len, meta.stride) = (2500, 1000);
        (meta.ecn, meta.dst_ip) = (Some(EcnCodepoint::Ce), Some(ip("10.0.0.1")));
        let bytes: Vec<u8> = (0..4096).map(|at| (at / 1000) as u8).collect();
        let found = messages(&bytes, &meta);
        assert_eq!(found.len(), 3);
        for (at, (message, length)) in found.iter().zip([1000, 1000, 500]).enumerate() {
            let (head, payload) = ProxiedHeader::read(message).unwrap();
            assert_eq!((head.remote, head.port, head.ecn), (ip("10.0.0.2"), 50_000, 3));
            assert_eq!((head.local, payload.len()), (Some(ip("10.0.0.1")), length));
            assert!(payload.iter().all(|byte| usize::from(*byte) == at));
        }
        // Longer than any of RoCE v2: left out.
        (meta.len, meta.stride) = (9000, 9000);
        assert!(messages(&[0; 9000], &meta).is_empty());
        (meta.len, meta.stride, meta.dst_ip) = (2500, 1000, None);
        assert!(messages(&bytes, &meta).is_empty());
    }
}
