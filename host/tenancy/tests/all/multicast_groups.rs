//! Tests multicast groups: attachment, its link, its charge, and its end.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::limits::GROUPS_MAX;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, Limits, Path, PathReason, Reach, VnicAddress};
use omniverb_terms::{Errno, Gid, Qpn, Service};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn group(number: u8) -> Gid {
    Ipv4Addr::new(239, 1, 2, number).into()
}

fn attach(bench: &mut Bench, session: u64, qpn: Qpn, gid: Gid) -> Option<Message> {
    call(bench, session, AttachGroup { qpn, reserved: 0, gid })
}

fn attached(bench: &mut Bench, session: u64, qpn: Qpn, gid: Gid) -> Qpn {
    match attach(bench, session, qpn, gid) {
        Some(Message::GroupAttached(attached)) if attached.qpn == qpn => attached.peer_qpn,
        other => panic!("{other:?}"),
    }
}

fn two() -> (Bench, [Qpn; 2]) {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let qps = [1, 2].map(|session| qp(&mut bench, session, Service::Ud));
    (bench, qps)
}

#[test]
fn packets_of_a_group_come_by_a_link_of_its_own() {
    let (mut bench, [a, _]) = two();
    let peer = attached(&mut bench, 1, a, group(1));
    assert!(peer.is_group());
    let links = engine_links(&bench);
    let [link] = links.as_slice() else { panic!("{links:?}") };
    assert_eq!((link.vnic, link.within, link.features), (vnic(1), None, 0));
    let remote: IpAddr = Ipv4Addr::new(239, 1, 2, 1).into();
    assert_eq!((link.underlay.remote, link.underlay.local), (remote, gid(1).address()));
    assert_eq!((link.ready.peer_qpn, link.ready.engine), (peer, 1));
    assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Group)]);
    assert_ne!(attached(&mut bench, 1, a, group(2)), peer);
    // A process that has lost the link asks for it anew; one is what it counts as.
    bench.told.clear();
    assert_eq!(attached(&mut bench, 1, a, group(1)), peer);
    assert_eq!((detached(&bench), paths(&bench, 1).len()), (vec![(a, peer)], 2));
    // Detached from one, it is in the other still.
    bench.told.clear();
    call(&mut bench, 1, DisconnectQp { qpn: a, peer_qpn: peer }).unwrap();
    assert_eq!(detached(&bench), [(a, peer)]);
    assert_eq!(paths(&bench, 1).len(), 1);
    assert_eq!(attached(&mut bench, 1, a, group(3)), peer, "its number is free again");
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn malformed_attachments_are_refused() {
    let (mut bench, [a, b]) = two();
    let rc = qp(&mut bench, 1, Service::Rc);
    assert_eq!(errno(attach(&mut bench, 1, rc, group(1))), Errno::EINVAL);
    assert_eq!(errno(attach(&mut bench, 1, a, gid(2))), Errno::EINVAL);
    assert_eq!(errno(attach(&mut bench, 1, b, group(1))), Errno::ENOENT, "another process's");
    // The end of a group is no single peer.
    let named = ConnectQp { dgid: group(1), ..to(a, 1, Qpn(77), 2) };
    assert_eq!(errno(call(&mut bench, 1, named)), Errno::EINVAL);
    for service in [Service::Rc, Service::Uc] {
        let qpn = qp(&mut bench, 1, service);
        for peer in [Qpn(77), Qpn::MULTICAST] {
            bench.told.clear();
            let named = ConnectQp { dgid: group(1), ..to(qpn, 1, peer, 2) };
            assert_eq!(errno(call_once(&mut bench, 1, named)), Errno::EINVAL);
            let asks = |action: &Action| matches!(action, Action::Probe { .. });
            assert!(!bench.told.iter().any(asks), "a group is asked");
        }
    }
}

#[test]
fn sending_to_a_group_probes_no_host() {
    let (mut bench, [a, _]) = two();
    bench.told.clear();
    let named = ConnectQp { dgid: group(1), ..to(a, 1, Qpn::MULTICAST, 2) };
    assert!(matches!(call_once(&mut bench, 1, named), Some(Message::Connected(_))));
    assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Group)]);
    assert_eq!(engine_links(&bench).len(), 1);
}

#[test]
fn groups_are_bounded() {
    let (mut bench, [a, _]) = two();
    for number in 0..GROUPS_MAX as u8 {
        attached(&mut bench, 1, a, group(number));
    }
    assert_eq!(errno(attach(&mut bench, 1, a, group(200))), Errno::ENOMEM);
    // As many as a socket may be in: another queue pair has no others.
    let other = qp(&mut bench, 1, Service::Ud);
    assert_eq!(errno(attach(&mut bench, 1, other, group(200))), Errno::ENOMEM);
    attached(&mut bench, 1, other, group(0));
    let mut bench = bench_with(Limits { groups_per_session: 2, ..Limits::default() });
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Ud);
    attached(&mut bench, 1, a, group(0));
    attached(&mut bench, 1, a, group(1));
    assert_eq!(errno(attach(&mut bench, 1, a, group(2))), Errno::ENOMEM);
}

/// No program would ask for its link again.
#[test]
fn a_group_is_no_peer_to_disconnect_from() {
    let (mut bench, [a, _]) = two();
    let peer = attached(&mut bench, 1, a, group(1));
    let named = ConnectQp { dgid: group(1), ..to(a, 1, Qpn::MULTICAST, 2) };
    call_once(&mut bench, 1, named).unwrap();
    bench.told.clear();
    let actions = bench.tenancy.disconnect_vnic(vnic(1));
    bench.carry_out(actions);
    assert_eq!(detached(&bench), [(a, Qpn::MULTICAST)]);
    assert_eq!(paths(&bench, 1).len(), 1);
    // That it could not be joined is told.
    bench.told.clear();
    bench.fail_engine_link(a, peer);
    let told = events(&mut bench, 1);
    let ended = |message: &Message| match message {
        Message::LinkClosed(closed) => (closed.qpn, closed.peer_qpn) == (a, peer),
        _ => false,
    };
    assert!(told.iter().any(ended), "{told:?}");
    assert_eq!(paths(&bench, 1), []);
}

/// A quota of links is no reason to lose one that no program would ask for again.
#[test]
fn an_attachment_makes_way_for_no_other_link() {
    let mut bench = bench_with(Limits { links_per_session: 2, ..Limits::default() });
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Ud);
    let peer = attached(&mut bench, 1, a, group(0));
    for number in 50..60 {
        bench.wait(2_000_000_000);
        let _ = call(&mut bench, 1, to(a, 1, Qpn(number), 9));
    }
    assert!(!detached(&bench).contains(&(a, peer)));
}

/// Ending another would make no room for it.
#[test]
fn an_attachment_too_many_costs_no_link() {
    let mut bench = bench_with(Limits { groups_per_session: 1, ..Limits::default() });
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Ud);
    attached(&mut bench, 1, a, group(0));
    for number in 50..53 {
        call(&mut bench, 1, to(a, 1, Qpn(number), 9)).unwrap();
    }
    let before = paths(&bench, 1).len();
    assert_eq!(before, 4);
    for _ in 0..5 {
        bench.wait(2_000_000_000);
        assert_eq!(errno(attach(&mut bench, 1, a, group(1))), Errno::ENOMEM);
    }
    assert_eq!(paths(&bench, 1).len(), before);
}

fn address(ip: &str, interface: u32) -> VnicAddress {
    let ip = ip.parse().unwrap();
    VnicAddress { ip, interface, reach: Reach::Global, is_loopback: false, mtu: 1500 }
}

fn read(bench: &mut Bench, addresses: &[(&str, u32)]) {
    let all: Vec<_> = addresses.iter().map(|(ip, interface)| address(ip, *interface)).collect();
    bench.told.clear();
    let actions = bench.tenancy.addresses(vnic(1), &all, bench.now);
    bench.carry_out(actions);
}

/// By which address, at which interface, the last attachment is.
fn joined(bench: &Bench) -> (String, u32) {
    let underlay = engine_links(bench).last().unwrap().underlay;
    (underlay.local.to_string(), underlay.interface)
}

#[test]
fn groups_use_the_loopback_only_without_another_name() {
    let six: Gid = "ff15::1".parse::<Ipv6Addr>().unwrap().into();
    let (mut bench, [a, _]) = two();
    read(&mut bench, &[]);
    attached(&mut bench, 1, a, six);
    let peer = attached(&mut bench, 1, a, group(1));
    assert_eq!(joined(&bench), ("127.0.0.1".into(), 1));
    // There is a network now, of one kind.
    read(&mut bench, &[("10.0.0.1", 2)]);
    assert_eq!(detached(&bench), [(a, peer)]);
    let told = events(&mut bench, 1);
    let ended = |message: &Message| matches!(message, Message::LinkClosed(c) if c.qpn == a);
    assert!(told.iter().any(ended), "{told:?}");
    attached(&mut bench, 1, a, group(1));
    assert_eq!(joined(&bench), ("10.0.0.1".into(), 2));
    let other: Gid = "ff15::2".parse::<Ipv6Addr>().unwrap().into();
    assert_eq!(errno(attach(&mut bench, 1, a, other)), Errno::EADDRNOTAVAIL);
    // The link-local address that is made up leads nowhere.
    read(&mut bench, &[("10.0.0.1", 2), ("fd77::1", 2)]);
    attached(&mut bench, 1, a, other);
    assert_eq!(joined(&bench), ("fd77::1".into(), 2));
}

#[test]
fn attachments_end_with_their_interface() {
    let (mut bench, [a, _]) = two();
    read(&mut bench, &[("10.0.0.1", 2)]);
    let peer = attached(&mut bench, 1, a, group(1));
    // One more address is no reason.
    read(&mut bench, &[("10.0.0.77", 4), ("10.0.0.1", 2)]);
    assert_eq!(detached(&bench), []);
    read(&mut bench, &[("10.0.0.1", 3)]);
    assert_eq!(detached(&bench), [(a, peer)]);
    attached(&mut bench, 1, a, group(1));
    assert_eq!(joined(&bench), ("10.0.0.1".into(), 3));
    // Old addresses are read again first.
    bench.wait(1_000_000_000);
    bench.told.clear();
    attached(&mut bench, 1, a, group(2));
    assert!(bench.told.iter().any(|action| matches!(action, Action::ReadAddresses { .. })));
    assert_eq!(joined(&bench), ("10.0.0.1".into(), 2), "as the network is by now");
}
