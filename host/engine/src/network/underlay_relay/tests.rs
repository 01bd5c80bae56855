//! Tests which packets the relay of the underlay passes on, to which vNICs, and its sockets.

mod encryption;
mod multicast_groups;

use super::*;
use crate::event_queues::Events;
use omniverb_sys::thread_watchdog::ThreadPulses;
use omniverb_sys::udp_socket::bound_to;
use omniverb_terms::Qpn;
use quinn_udp::{Transmit, UdpSocketState};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

#[test]
fn a_packet_goes_to_the_vnic_that_has_its_number_and_comes_from_no_other_address() {
    let mut relay = relay();
    let [here, there] = [2, 3].map(|last| IpAddr::from([127, 7, 91, last]));
    let (one, one_end) = seqpacket::pair().unwrap();
    let (two, two_end) = seqpacket::pair().unwrap();
    give_socket(&relay, here);
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
    let nearby = IpAddr::from([127, 7, 91, 10]);
    let (near, near_end) = seqpacket::pair().unwrap();
    let near_seat = Seat { has_far_peers: false, ..seat(5, nearby, 0x40_0800, near_end) };
    relay.open(near_seat).unwrap();
    let forger = std::net::UdpSocket::bind((nearby, PORT)).unwrap();
    forger.send_to(&packet(0x40_0004), SocketAddr::new(here, PORT)).unwrap();
    // Out of the ranges; in the second one.
    for qpn in [0x3f_ffff, 0x40_0800, 5, 0x40_0404] {
        remote.send_to(&packet(qpn), SocketAddr::new(here, PORT)).unwrap();
    }
    let mut buffer = [0; MESSAGE_MAX];
    let mode = seqpacket::BlockingMode::Blocking;
    let (length, _) = seqpacket::receive(two.as_fd(), &mut buffer, mode).unwrap();
    let (head, contents) = ProxiedHeader::read(&buffer[..length]).unwrap();
    assert_eq!((head.local, head.remote, contents), (Some(here), there, &packet(0x40_0404)[..]));
    let mode = seqpacket::BlockingMode::NonBlocking;
    for end in [&one, &two, &near] {
        assert!(seqpacket::receive(end.as_fd(), &mut buffer, mode).is_err(), "nothing else");
    }
    // Back, and in another's name.
    for local in [there, here] {
        let head =
            ProxiedHeader { local: Some(local), remote: there, interface: 0, port: PORT, ecn: 2 };
        let message = [&head.written()[..], b"12345678", &local.to_string().into_bytes()].concat();
        seqpacket::try_send(two.as_fd(), &message, &[]).unwrap();
    }
    let (length, from) = remote.recv_from(&mut buffer).unwrap();
    assert_eq!((from, length), (SocketAddr::new(here, PORT), 8 + here.to_string().len()));
    // The numbers of one that is closed are another's already.
    let (four, four_end) = seqpacket::pair().unwrap();
    relay.open(seat(4, here, 0x40_0400, four_end)).unwrap();
    relay.close(VnicId(2));
    remote.send_to(&packet(0x40_0404), SocketAddr::new(here, PORT)).unwrap();
    let limit = std::time::Duration::from_secs(20);
    let is_heard = omniverb_sys::eventfd::readable(four.as_fd(), Some(limit));
    assert!(is_heard.unwrap(), "it is deaf");
}

/// Gives a relay the socket of port 4791 of an address.
pub(super) fn give_socket(relay: &UnderlayRelay, here: IpAddr) {
    relay.set_socket(here, Some(bound_to(SocketAddr::new(here, PORT)).unwrap()));
}

/// A vNIC of the network 1, with peers on other hosts.
pub(super) fn seat(vnic: u64, underlay: IpAddr, first: u32, end: OwnedFd) -> Seat {
    Seat {
        vnic: VnicId(vnic),
        network: 1,
        underlay,
        has_far_peers: true,
        qpns: (Qpn(first), 1024),
        end,
        agent: None,
        places: Arc::default(),
        encryption: None,
    }
}

fn relay() -> UnderlayRelay {
    relay_with_events().0
}

/// A relay, and what it tells.
pub(super) fn relay_with_events() -> (UnderlayRelay, Events) {
    let (events, ready) = (Events::default(), Arc::new(EventFd::new().unwrap()));
    let outbox = Outbox::new(events.clone(), ready);
    let pulse = ThreadPulses::default().minor("underlay");
    (UnderlayRelay::start(pulse, outbox).unwrap(), events)
}

/// A packet for queue pair `qpn` at `remote`, as a vNIC at `local` sends it.
fn sent(local: IpAddr, remote: IpAddr, qpn: u32) -> Vec<u8> {
    let head = ProxiedHeader { local: Some(local), remote, interface: 0, port: PORT, ecn: 2 };
    [&head.written()[..], &[100, 0, 0xff, 0xff], &qpn.to_be_bytes()].concat()
}

#[test]
fn a_packet_from_another_source_port_is_dropped() {
    let mut relay = relay();
    let [here, there] = [8, 9].map(|last| IpAddr::from([127, 7, 91, last]));
    let (own, end) = seqpacket::pair().unwrap();
    give_socket(&relay, here);
    relay.open(seat(1, here, 0x40_0000, end)).unwrap();
    let packet = |last: u8| [&[100, 0, 0xff, 0xff, 0, 0x40, 0, 4][..], &[last]].concat();
    // Another program of the peer's host; the daemon there.
    let forger = std::net::UdpSocket::bind((there, 0)).unwrap();
    let daemon = std::net::UdpSocket::bind((there, PORT)).unwrap();
    for (socket, last) in [(&forger, 1), (&daemon, 2)] {
        socket.send_to(&packet(last), SocketAddr::new(here, PORT)).unwrap();
    }
    // Merged, as the kernel gives them: two packets in one message.
    let merged = [packet(3), packet(3)].concat();
    let state = UdpSocketState::new((&forger).into()).unwrap();
    let train = Transmit {
        destination: SocketAddr::new(here, PORT),
        ecn: None,
        contents: &merged,
        segment_size: Some(packet(3).len()),
        src_ip: None,
    };
    state.try_send((&forger).into(), &train).unwrap();
    daemon.send_to(&packet(4), SocketAddr::new(here, PORT)).unwrap();
    let mut buffer = [0; MESSAGE_MAX];
    for last in [2, 4] {
        let mode = seqpacket::BlockingMode::Blocking;
        let (length, _) = seqpacket::receive(own.as_fd(), &mut buffer, mode).unwrap();
        let (head, contents) = ProxiedHeader::read(&buffer[..length]).unwrap();
        assert_eq!((head.remote, head.port, contents), (there, PORT, &packet(last)[..]));
    }
}

#[test]
fn vnics_of_one_host_reach_each_other_within_their_virtual_network_alone() {
    let mut relay = relay();
    let here = IpAddr::from([127, 7, 91, 4]);
    let ends: Vec<OwnedFd> = [(1, 7), (2, 7), (3, 8)]
        .map(|(vnic, network)| {
            let (own, end) = seqpacket::pair().unwrap();
            let seat = seat(vnic.into(), here, 0x40_0000 + 0x400 * vnic, end);
            relay.open(Seat { network, has_far_peers: false, ..seat }).unwrap();
            own
        })
        .into();
    // Nothing leaves the host: no socket is there.
    assert!(std::net::UdpSocket::bind((here, PORT)).is_ok());
    // In another's name; of another network; of no vNIC; right.
    let other = IpAddr::from([127, 7, 91, 5]);
    for message in [
        sent(other, here, 0x40_0802),
        sent(here, here, 0x40_0c02),
        sent(here, here, 0x40_1802),
        sent(here, here, 0x40_0803),
    ] {
        seqpacket::try_send(ends[0].as_fd(), &message, &[]).unwrap();
    }
    let mut buffer = [0; MESSAGE_MAX];
    let mode = seqpacket::BlockingMode::Blocking;
    let (length, _) = seqpacket::receive(ends[1].as_fd(), &mut buffer, mode).unwrap();
    assert_eq!(buffer[..length], sent(here, here, 0x40_0803));
    let mode = seqpacket::BlockingMode::NonBlocking;
    for end in &ends {
        assert!(seqpacket::receive(end.as_fd(), &mut buffer, mode).is_err(), "nothing else");
    }
}

#[test]
fn an_address_has_the_socket_that_it_was_given_last_and_vnics_here_need_none() {
    let mut relay = relay();
    let here = IpAddr::from([127, 7, 91, 6]);
    let (one, one_end) = seqpacket::pair().unwrap();
    let (two, two_end) = seqpacket::pair().unwrap();
    for (vnic, end) in [(1, one_end), (2, two_end)] {
        relay.open(seat(vnic.into(), here, 0x40_0000 + 0x400 * vnic, end)).unwrap();
    }
    let hears = |end: &OwnedFd| {
        let limit = Some(Duration::from_secs(20));
        let is_heard = omniverb_sys::eventfd::readable(end.as_fd(), limit).unwrap();
        let mut buffer = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        assert!(is_heard && seqpacket::receive(end.as_fd(), &mut buffer, mode).is_ok());
    };
    seqpacket::try_send(one.as_fd(), &sent(here, here, 0x40_0802), &[]).unwrap();
    hears(&two);
    let there = std::net::UdpSocket::bind(("127.7.91.11", PORT)).unwrap();
    let arrives = || {
        let packet = [100, 0, 0xff, 0xff, 0, 0x40, 8, 2];
        there.send_to(&packet, SocketAddr::new(here, PORT)).unwrap();
        hears(&two);
    };
    give_socket(&relay, here);
    arrives();
    relay.set_socket(here, None);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let again = loop {
        match bound_to(SocketAddr::new(here, PORT)) {
            Ok(socket) => break socket,
            Err(error) => assert!(std::time::Instant::now() < end, "it stays: {error}"),
        }
    };
    relay.set_socket(here, Some(again));
    arrives();
}

#[test]
fn a_vnic_that_cannot_be_watched_is_refused() {
    let mut relay = relay();
    let here = IpAddr::from([127, 7, 91, 13]);
    // No poller watches a file.
    let end = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let error = relay.open(seat(1, here, 0x40_0400, end)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn rings_pass_between_the_port_of_a_vnic_and_that_of_its_machines_agent() {
    let mut relay = relay();
    let here = IpAddr::from([127, 7, 91, 7]);
    let port = || Arc::new(UdpPort::carried_by_another(PORT, Box::new(drop)).unwrap());
    let (own, of_agent) = (port(), port());
    let [own, theirs] = [&own, &of_agent].map(|port| port.carried().unwrap());
    let agent = theirs.carriers_end().unwrap();
    let end = own.carriers_end().unwrap();
    let agent_port = Some(of_agent.clone());
    let seat = Seat { agent: agent_port, has_far_peers: false, ..seat(1, here, 0x40_0400, end) };
    relay.open(seat).unwrap();
    let mut buffer = [0; MESSAGE_MAX];
    own.say();
    let mode = seqpacket::BlockingMode::Blocking;
    let (length, _) = seqpacket::receive(agent.as_fd(), &mut buffer, mode).unwrap();
    assert!(proxied_udp::is_word(&buffer[..length]));
    // Its datagrams are not heard: neither by it nor by others of its virtual network.
    seqpacket::try_send(agent.as_fd(), &sent(here, here, 0x40_0402), &[]).unwrap();
    proxied_udp::say(agent.as_fd());
    let mut next = || loop {
        match own.receive(&mut buffer) {
            ProxiedMessage::Nothing => std::thread::yield_now(),
            ProxiedMessage::Word => break "word",
            ProxiedMessage::Over => break "over",
            ProxiedMessage::Datagram(..) => break "datagram",
        }
    };
    assert_eq!(next(), "word");
    // What ends the agent's port ends the vNIC's.
    seqpacket::try_send(agent.as_fd(), &[], &[]).unwrap();
    assert_eq!(next(), "over");
}

/// Queue pairs of a vNIC that is closed may still send: what their peers wait for.
#[test]
fn what_a_closed_vnic_sends_is_carried_until_its_port_is_closed() {
    let mut relay = relay();
    let [here, there] = [14, 15].map(|last| IpAddr::from([127, 7, 91, last]));
    let remote = std::net::UdpSocket::bind((there, PORT)).unwrap();
    remote.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut buffer = [0; MESSAGE_MAX];
    give_socket(&relay, here);
    for _ in 0..20 {
        let (own, end) = seqpacket::pair().unwrap();
        relay.open(seat(1, here, 0x40_0000, end)).unwrap();
        let count = PACKETS_PER_TURN as u32 + 20;
        (0..count).for_each(|qpn| {
            seqpacket::send(own.as_fd(), &sent(here, there, qpn), &[]).unwrap();
        });
        relay.close(VnicId(1));
        // Its next port is there before the last one is closed.
        let (next, next_end) = seqpacket::pair().unwrap();
        relay.open(seat(1, here, 0x40_0000, next_end)).unwrap();
        seqpacket::send(own.as_fd(), &sent(here, there, count), &[]).unwrap();
        drop(own);
        for qpn in 0..=count {
            let length = remote.recv(&mut buffer).expect("a packet is lost");
            assert_eq!(buffer[..length], [&[100, 0, 0xff, 0xff][..], &qpn.to_be_bytes()].concat());
        }
        // To the last one nothing comes.
        let packet = [100, 0, 0xff, 0xff, 0, 0x40, 0, 4];
        remote.send_to(&packet, SocketAddr::new(here, PORT)).unwrap();
        let is_heard = omniverb_sys::eventfd::readable(next.as_fd(), Some(Duration::from_secs(20)));
        assert!(is_heard.unwrap(), "it is deaf");
        relay.close(VnicId(1));
    }
}
