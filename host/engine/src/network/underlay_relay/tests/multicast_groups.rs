//! Tests that what is sent to a group reaches members of the sender's virtual network alone.

use super::encryption::{LONG, OneHost, QPNS, SHORT};
use crate::network::underlay_relay::*;
use omniverb_terms::{Gid, Qpn};
use std::net::SocketAddr;

fn group(last: u8) -> IpAddr {
    IpAddr::from([239, 20, 0, last])
}

/// A packet to all members, of this QPN.
fn packet(source: u32, text: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20];
    packet[0] = 0x64;
    packet[5..8].copy_from_slice(&Qpn::MULTICAST.0.to_be_bytes()[1..]);
    packet[17..20].copy_from_slice(&source.to_be_bytes()[1..]);
    packet.extend_from_slice(text);
    packet
}

/// Sends it as one of the vNICs of a host.
fn sends(host: &OneHost, from: usize, to: IpAddr, packet: &[u8]) {
    let head =
        ProxiedHeader { local: Some(host.here), remote: to, interface: 0, port: PORT, ecn: 2 };
    let message = [&head.written()[..], packet].concat();
    seqpacket::try_send(host.ends[from].as_fd(), &message, &[]).unwrap();
}

/// Two hosts with vNICs of both networks, which know each other's.
fn two(last: u8, port: u16, keys: [Option<u8>; 2]) -> [OneHost; 2] {
    let hosts = [0, 1].map(|more| OneHost::new(last + more, port, keys));
    for (network, qpn) in QPNS.into_iter().enumerate() {
        let vnics = hosts.iter().map(|host| {
            let IpAddr::V4(here) = host.here else { panic!("an IPv6 address") };
            (host.here, Qpn(qpn & !1023), 1024, Gid::from(here))
        });
        let places = Arc::new(NetworkPlaces::new(vnics));
        hosts.iter().for_each(|host| host.relay.set_places(network as u64 + 1, places.clone()));
    }
    hosts
}

fn reach_their_own([a, b]: [OneHost; 2]) {
    for vnic in [1, 2] {
        b.relay.join_group(VnicId(vnic), group(1));
        a.relay.join_group(VnicId(vnic), group(1));
    }
    for (network, qpn) in QPNS.into_iter().enumerate() {
        let message = packet(qpn, &[network as u8; 9]);
        sends(&a, network, group(2), &packet(qpn, b"another group"));
        sends(&a, network, group(1), &message);
        let expected = Some((a.here, message));
        assert_eq!(b.gets(network, LONG), expected);
        assert_eq!(a.gets(network, LONG), expected, "its own");
    }
    for host in [&a, &b] {
        assert_eq!([host.gets(0, SHORT), host.gets(1, SHORT)], [None, None], "nothing else");
    }
    // Once it has left the group, and once it has left the network.
    b.relay.leave_group(VnicId(1), group(1));
    sends(&a, 0, group(1), &packet(QPNS[0], b"left"));
    assert!(a.gets(0, LONG).is_some());
    assert_eq!(b.gets(0, SHORT), None);
    let mut b = b;
    b.relay.join_group(VnicId(1), group(1));
    b.relay.close(VnicId(1));
    sends(&a, 0, group(1), &packet(QPNS[0], b"gone"));
    assert_eq!(b.gets(0, SHORT), None);
}

#[test]
fn groups_reach_members_of_the_network_on_all_hosts() {
    reach_their_own(two(20, 41_006, [None, None]));
}

#[test]
fn groups_of_encrypted_networks_reach_their_own_members() {
    reach_their_own(two(22, 41_007, [Some(1), Some(2)]));
}

/// It has no processes, and ignores handshakes.
#[test]
fn of_a_host_that_does_not_answer_copies_nothing_is_told() {
    let [a, b] = two(36, 41_013, [Some(1), Some(2)]);
    drop(b);
    let end = std::time::Instant::now() + Duration::from_millis(1200);
    while std::time::Instant::now() < end {
        sends(&a, 0, group(1), &packet(QPNS[0], b"copy"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(a.events.take().is_none());
}

#[test]
fn copies_of_strangers_and_in_plain_for_encrypted_networks_are_dropped() {
    let [a, b] = two(24, 41_008, [Some(1), None]);
    for vnic in [1, 2] {
        a.relay.join_group(VnicId(vnic), group(1));
    }
    let OneHost { relay, here: there, .. } = b;
    drop(relay);
    // The port of the daemon there is free in a moment.
    let end = std::time::Instant::now() + LONG;
    let daemon = loop {
        match std::net::UdpSocket::bind((there, PORT)) {
            Ok(socket) => break socket,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
    };
    let copy = |source| multicast_copy_codec::write(group(1), &packet(source, b"copy"));
    for datagram in [
        copy(QPNS[0]),
        copy(0x40_0800),
        packet(QPNS[1], b"no group"),
        multicast_copy_codec::write([10, 0, 0, 1].into(), &packet(QPNS[1], b"no group")),
        copy(QPNS[1]),
    ] {
        daemon.send_to(&datagram, SocketAddr::new(a.here, PORT)).unwrap();
    }
    assert_eq!(a.gets(1, LONG), Some((there, packet(QPNS[1], b"copy"))));
    assert_eq!([a.gets(0, SHORT), a.gets(1, SHORT)], [None, None], "nothing else");
}
