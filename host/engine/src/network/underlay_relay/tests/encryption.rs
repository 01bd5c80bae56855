//! Tests that packets of encrypted virtual networks reach vNICs of their tenant alone.

use super::{give_socket, relay_with_events, seat};
use crate::command::Event;
use crate::event_queues::Events;
use crate::network::underlay_relay::*;
use omniverb_psp::tunnel::{Refusal, Tunnel, is_message};
use omniverb_psp::{SpiBlock, TenantKey};
use omniverb_sys::udp_socket::bound_to;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Instead of port 1000, which needs a privilege; a port of each test's own.
fn psp_port(here: IpAddr, number: u16) -> Arc<UdpPort> {
    let receiver = bound_to(SocketAddr::new(here, number)).unwrap();
    let sender = bound_to(SocketAddr::new(here, 0)).unwrap();
    let source = std::net::UdpSocket::from(sender.try_clone().unwrap()).local_addr().unwrap();
    let files = vec![receiver, sender];
    Arc::new(UdpPort::join(number, files, &[(source.port(), false)]).unwrap())
}

fn encryption(key: u8) -> Option<Encryption> {
    let keys = vec![TenantKey::new([key; 16])];
    Some(Encryption { port: None, keys, lifetime: Duration::from_secs(3600) })
}

/// A host with a vNIC of each of two tenants: of the network 1 with the first numbers, of 2 with
/// the next.
pub(super) struct OneHost {
    pub(super) relay: UnderlayRelay,
    pub(super) events: Events,
    pub(super) here: IpAddr,
    pub(super) ends: Vec<OwnedFd>,
}

impl OneHost {
    pub(super) fn new(last: u8, port: u16, keys: [Option<u8>; 2]) -> OneHost {
        let here = IpAddr::from([127, 7, 92, last]);
        let (mut relay, events) = relay_with_events();
        give_socket(&relay, here);
        relay.set_psp_port(Some(psp_port(here, port)));
        let ends = keys.into_iter().zip(0_u32..).map(|(key, number)| {
            let (own, end) = seqpacket::pair().unwrap();
            let seat = seat(u64::from(number) + 1, here, 0x40_0000 + 0x400 * number, end);
            let encryption = key.and_then(encryption);
            relay.open(Seat { network: u64::from(number) + 1, encryption, ..seat }).unwrap();
            own
        });
        let ends = ends.collect();
        OneHost { relay, events, here, ends }
    }

    /// Sends a packet of one of the vNICs.
    fn sends(&self, from: usize, to: &OneHost, qpn: u32, text: &[u8]) {
        let head = ProxiedHeader {
            local: Some(self.here),
            remote: to.here,
            interface: 0,
            port: PORT,
            ecn: 2,
        };
        let message = [&head.written()[..], &packet(qpn, text)].concat();
        seqpacket::try_send(self.ends[from].as_fd(), &message, &[]).unwrap();
    }

    /// The next packet that one of the vNICs gets, within a while.
    pub(super) fn gets(&self, at: usize, limit: Duration) -> Option<(IpAddr, Vec<u8>)> {
        let end = self.ends[at].as_fd();
        if !omniverb_sys::eventfd::readable(end, Some(limit)).unwrap() {
            return None;
        }
        let mut buffer = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, _) = seqpacket::receive(end, &mut buffer, mode).ok()?;
        // Nothing: the other end is closed.
        let (head, contents) = ProxiedHeader::read(&buffer[..length])?;
        Some((head.remote, contents.to_vec()))
    }
}

fn packet(qpn: u32, text: &[u8]) -> Vec<u8> {
    [&[100, 0, 0xff, 0xff], &qpn.to_be_bytes()[..], text].concat()
}

pub(super) const LONG: Duration = Duration::from_secs(20);
pub(super) const SHORT: Duration = Duration::from_millis(200);
/// A QPN of each network.
pub(super) const QPNS: [u32; 2] = [0x40_0004, 0x40_0404];

#[test]
fn two_encrypted_tenants_share_addresses_and_reach_their_own_vnics_alone() {
    let a = OneHost::new(1, 41_001, [Some(1), Some(2)]);
    let mut b = OneHost::new(2, 41_001, [Some(1), Some(2)]);
    // The first one waits for the handshake.
    for (network, qpn) in QPNS.into_iter().enumerate() {
        a.sends(network, &b, qpn, b"to its own");
        let expected = (a.here, packet(qpn, b"to its own"));
        assert_eq!(b.gets(network, LONG), Some(expected));
    }
    // Numbers of the other tenant; then of its own, so that the first would have come before.
    a.sends(0, &b, QPNS[1], b"to another");
    a.sends(1, &b, QPNS[0], b"to another");
    for (network, qpn) in QPNS.into_iter().enumerate() {
        a.sends(network, &b, qpn, b"behind");
        assert_eq!(b.gets(network, LONG).unwrap().1, packet(qpn, b"behind"));
    }
    // Back.
    b.sends(1, &a, QPNS[1], b"back");
    assert_eq!(a.gets(1, LONG).unwrap().1, packet(QPNS[1], b"back"));
    // A vNIC that has left its tenant gets no more.
    b.relay.close(VnicId(1));
    a.sends(0, &b, QPNS[0], b"too late");
    assert_eq!(b.gets(0, SHORT).map(|(_, contents)| contents), None);
    a.sends(1, &b, QPNS[1], b"the other stays");
    assert_eq!(b.gets(1, LONG).unwrap().1, packet(QPNS[1], b"the other stays"));
}

#[test]
fn packets_in_plain_are_for_plain_tenants_alone() {
    let host = OneHost::new(4, 41_002, [Some(1), None]);
    let there = IpAddr::from([127, 7, 92, 5]);
    let daemon = std::net::UdpSocket::bind((there, PORT)).unwrap();
    for qpn in QPNS {
        daemon.send_to(&packet(qpn, b"plain"), SocketAddr::new(host.here, PORT)).unwrap();
    }
    assert_eq!(host.gets(1, LONG), Some((there, packet(QPNS[1], b"plain"))));
    assert_eq!(host.gets(0, SHORT), None);
    // What it sends does not come in plain, and what the other sends does.
    let remote = OneHost { here: there, ..OneHost::new(6, 41_003, [None, None]) };
    host.sends(0, &remote, QPNS[0], b"secret");
    host.sends(1, &remote, QPNS[1], b"plain");
    daemon.set_nonblocking(false).unwrap();
    daemon.set_read_timeout(Some(LONG)).unwrap();
    let mut buffer = [0; 100];
    let length = daemon.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..length], packet(QPNS[1], b"plain"));
}

/// Its old port is not closed yet when it is opened again.
#[test]
fn a_vnic_that_is_opened_again_without_encryption_sends_in_plain_once_its_old_port_is_closed() {
    let mut host = OneHost::new(33, 41_011, [Some(1), None]);
    let there = IpAddr::from([127, 7, 92, 34]);
    let daemon = std::net::UdpSocket::bind((there, PORT)).unwrap();
    daemon.set_read_timeout(Some(SHORT)).unwrap();
    let remote = OneHost { here: there, ..OneHost::new(35, 41_012, [None, None]) };
    let (own, end) = seqpacket::pair().unwrap();
    host.relay.open(seat(1, host.here, 0x40_0000, end)).unwrap();
    let old = std::mem::replace(&mut host.ends[0], own);
    host.sends(0, &remote, QPNS[0], b"too early");
    let mut buffer = [0; 100];
    assert!(daemon.recv(&mut buffer).is_err(), "what its old port brings may be secret");
    drop(old);
    let end = std::time::Instant::now() + LONG;
    loop {
        host.sends(0, &remote, QPNS[0], b"plain");
        if let Ok(length) = daemon.recv(&mut buffer) {
            assert_eq!(buffer[..length], packet(QPNS[0], b"plain"));
            return;
        }
        assert!(std::time::Instant::now() < end, "it stays encrypted");
    }
}

#[test]
fn a_host_with_another_key_gets_nothing_and_is_told_of() {
    let a = OneHost::new(7, 41_004, [Some(1), Some(2)]);
    let b = OneHost::new(8, 41_004, [Some(9), Some(2)]);
    a.sends(0, &b, QPNS[0], b"secret");
    a.sends(1, &b, QPNS[1], b"right");
    assert_eq!(b.gets(1, LONG).unwrap().1, packet(QPNS[1], b"right"));
    let end = std::time::Instant::now() + LONG;
    let event = loop {
        if let Some(event) = a.events.take() {
            break event;
        }
        assert!(std::time::Instant::now() < end, "nothing is said");
        std::thread::sleep(Duration::from_millis(10));
    };
    let Event::Encryption { vnic, remote, refusal } = event else { panic!("another event") };
    assert_eq!((vnic, remote, refusal), (VnicId(1), b.here, Some(Refusal::NoAnswer)));
    assert_eq!(b.gets(0, SHORT), None);
    // The right key, without another start.
    b.relay.encrypt(1, encryption(1));
    let end = std::time::Instant::now() + LONG;
    while b.gets(0, SHORT).is_none() {
        a.sends(0, &b, QPNS[0], b"again");
        assert!(std::time::Instant::now() < end, "it goes on failing");
    }
    // In plain again, both.
    a.relay.encrypt(1, None);
    b.relay.encrypt(1, None);
    let end = std::time::Instant::now() + LONG;
    loop {
        a.sends(0, &b, QPNS[0], b"plain");
        if b.gets(0, SHORT).is_some_and(|(_, contents)| contents == packet(QPNS[0], b"plain")) {
            break;
        }
        assert!(std::time::Instant::now() < end, "it stays encrypted");
    }
}

#[test]
fn a_flood_of_unknown_numbers_is_answered_within_the_budget() {
    let host = OneHost::new(9, 41_005, [Some(1), Some(2)]);
    let there = IpAddr::from([127, 7, 92, 10]);
    let flooder = std::net::UdpSocket::bind((there, 41_005)).unwrap();
    flooder.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut answers = 0;
    for n in 0..4000_u32 {
        // Of blocks that are given out, and of others.
        let spi = n.wrapping_mul(0x0012_3457);
        let datagram = [&[17, 1, 0, 1][..], &spi.to_be_bytes(), &[0; 64]].concat();
        flooder.send_to(&datagram, SocketAddr::new(host.here, 41_005)).unwrap();
        // Messages that begin like ours.
        let message = [&b"OVPSP\0\x01\x01"[..], &n.to_be_bytes(), &[0; 28]].concat();
        flooder.send_to(&message, SocketAddr::new(host.here, 41_005)).unwrap();
    }
    let mut buffer = [0; 100];
    while flooder.recv(&mut buffer).is_ok() {
        answers += 1;
    }
    assert!((1..2500).contains(&answers), "{answers}");
    assert!(host.events.take().is_none(), "nothing of it is told");
    // Others are served.
    let other = OneHost::new(11, 41_005, [Some(1), Some(2)]);
    other.sends(0, &host, QPNS[0], b"served");
    assert_eq!(host.gets(0, LONG).unwrap().1, packet(QPNS[0], b"served"));
}

/// The other host, which is this test: a socket at its port of PSP.
struct FarHost {
    socket: std::net::UdpSocket,
    ends: (Addresses, u32),
    to: SocketAddr,
}

impl FarHost {
    fn new(here: IpAddr, to: SocketAddr) -> FarHost {
        let socket = std::net::UdpSocket::bind((here, to.port())).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        FarHost { socket, ends: (Addresses { local: here, remote: to.ip() }, 0), to }
    }

    /// Shows one of its tunnels what comes, and answers, until a packet is opened that holds this.
    fn takes(&self, tunnel: &mut Tunnel, text: &[u8]) {
        let mut buffer = [0; 2000];
        loop {
            let length = self.socket.recv(&mut buffer).expect("nothing more comes");
            let datagram = &mut buffer[..length];
            if is_message(datagram) {
                tunnel.hear(self.ends, datagram, 1, || true);
            } else if let Ok((_, packet)) = tunnel.open(self.ends, datagram, 1, || true)
                && packet.ends_with(text)
            {
                return;
            }
            while let Some(out) = tunnel.next_outgoing() {
                self.socket.send_to(&out.bytes, self.to).unwrap();
            }
        }
    }
}

/// A tunnel that gives out the numbers of this block from its first one on.
fn from_first_number(key: u8, block: u8) -> Tunnel {
    let random = |bytes: &mut [u8]| match bytes.len() {
        4 => bytes.fill(0),
        _ => omniverb_sys::random::fill(bytes),
    };
    let keys = vec![TenantKey::new([key; 16])];
    let lifetime = 3600 * 1_000_000_000;
    Tunnel::sharing_port(SpiBlock::new(block), keys, lifetime, Box::new(random), 1)
}

/// The other host is restarted, and gives the second tenant the numbers that the first one had.
#[test]
fn a_tenant_whose_numbers_are_anothers_after_a_restart_of_the_other_host_is_heard_again() {
    let a = OneHost::new(30, 41_009, [Some(1), Some(2)]);
    let there = IpAddr::from([127, 7, 92, 31]);
    let to = OneHost { here: there, ..OneHost::new(32, 41_010, [None, None]) };
    let far = FarHost::new(there, SocketAddr::new(a.here, 41_009));
    for (swapped, late) in [([1, 2], 1), ([2, 1], 0)] {
        let mut before = from_first_number(swapped[0], 5);
        let first = usize::from(swapped[0]) - 1;
        a.sends(first, &to, QPNS[first], b"before");
        far.takes(&mut before, b"before");
        let mut after = from_first_number(swapped[1], 5);
        a.sends(late, &to, QPNS[late], b"after");
        far.takes(&mut after, b"after");
        // With the number that the other tenant has now. Both hear the word that answers this.
        a.sends(first, &to, QPNS[first], b"forged");
        let mut buffer = [0; 2000];
        let length = far.socket.recv(&mut buffer).unwrap();
        let opened = after.open(far.ends, &mut buffer[..length], 1, || true);
        assert_eq!(opened, Err(omniverb_psp::DropReason::Forged));
        let word = after.next_outgoing().expect("nobody is told");
        far.socket.send_to(&word.bytes, far.to).unwrap();
        let mut heir = from_first_number(swapped[0], 6);
        let mut is_heard = false;
        while !is_heard {
            let length = far.socket.recv(&mut buffer).expect("it asks for no other number");
            is_heard = heir.hear(far.ends, &buffer[..length], 1, || true);
        }
        let answer = heir.next_outgoing().unwrap();
        far.socket.send_to(&answer.bytes, far.to).unwrap();
        let end = std::time::Instant::now() + LONG;
        far.socket.set_read_timeout(Some(SHORT)).unwrap();
        let mut is_healed = false;
        while !is_healed {
            assert!(std::time::Instant::now() < end, "it goes on with the old number");
            a.sends(first, &to, QPNS[first], b"healed");
            while let Ok(length) = far.socket.recv(&mut buffer) {
                is_healed |= heir.open(far.ends, &mut buffer[..length], 1, || false).is_ok();
            }
        }
        far.socket.set_read_timeout(Some(LONG)).unwrap();
        // The next round begins without keys.
        for (network, key) in [(1, 1), (2, 2)] {
            a.relay.encrypt(network, encryption(key + 10));
            a.relay.encrypt(network, encryption(key));
        }
        while far.socket.set_nonblocking(true).is_ok() && far.socket.recv(&mut buffer).is_ok() {}
        far.socket.set_nonblocking(false).unwrap();
    }
}
