//! Tests which links go through the engine, why, and how such links end.

use crate::support::{self, *};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{
    Action, Arrived, Channel, Datapath, Limits, Path, PathReason, Policy, RateLimit, SessionId,
};
use omniverb_terms::{Errno, Qpn, Service};

/// vNIC number 4 of the bench is another Omniverb's; number 9 does not exist.
const OTHER: u64 = 4;
const NOBODY: u64 = 9;

fn closed(qpn: Qpn, peer_qpn: Qpn, reason: u32) -> Message {
    LinkClosed { qpn, peer_qpn, reason, reserved: 0 }.into()
}

fn forwarded() -> Policy {
    Policy { datapath: Datapath::Forwarded, ..Policy::default() }
}

fn limited() -> Policy {
    let limit = RateLimit { bits_per_second: 20_000_000, burst_bytes: 65536 };
    Policy { limit: Some(limit), ..Policy::default() }
}

fn faulty() -> Policy {
    let faults = omniverb_session::network_fault_text::faults("loss=1%").unwrap();
    Policy { faults, ..Policy::default() }
}

fn two() -> Bench {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    bench
}

/// Two vNICs, one of them with this policy; in `directory_restricted_vnics.rs` a forwarded one is
/// forwarded because there is no other way to it.
fn two_of_which(changed: u64, policy: Policy) -> Bench {
    let closed = RESTRICTED_ACCESS && policy == forwarded();
    let mut bench = if closed { bench_closed(Limits::default(), &[changed]) } else { bench() };
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    if !closed {
        drop(bench.tenancy.set_policy(vnic(changed), policy));
    }
    bench
}

#[test]
fn one_wish_is_enough_for_the_wire() {
    for (to_whom, path, why, features) in [
        (OTHER, Path::Omniverb, PathReason::Omniverb, 1),
        (NOBODY, Path::Roce, PathReason::Unanswered, 0),
    ] {
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            let mut bench = two();
            let a = qp(&mut bench, 1, service);
            let answer = call(&mut bench, 1, to(a, 1, Qpn(77), to_whom));
            assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
            let engine_links = engine_links(&bench);
            let [link] = engine_links.as_slice() else { panic!("{engine_links:?}") };
            let ready = &link.ready;
            assert_eq!((link.session, link.vnic, link.service), (SessionId(1), vnic(1), service));
            assert_eq!((link.within, link.features), (None, features));
            assert_eq!(
                (ready.qpn, ready.peer_qpn, ready.side, ready.bell_side),
                (a, Qpn(77), 0, 0)
            );
            assert_eq!((ready.loopback, ready.engine, ready.bell_new), (0, 1, 1));
            assert_eq!((ready.sgid, ready.dgid), (gid(1), gid(to_whom)));
            let small = (64 << 10, 4 << 10);
            let bytes = (ready.request_bytes, ready.response_bytes);
            assert_eq!(bytes == small, service == Service::Ud, "{bytes:?}");
            assert_eq!(paths(&bench, 1), [(path, why)]);
            assert!(links(&bench).is_empty());
            // A repeated call changes nothing.
            assert!(matches!(
                call(&mut bench, 1, to(a, 1, Qpn(77), to_whom)),
                Some(Message::Connected(Connected { ready: 1, .. }))
            ));
            assert_eq!(engine_links.len(), support::engine_links(&bench).len());
            bench.end(1);
            assert_eq!(detached(&bench), [(a, Qpn(77))]);
            bench.end(2);
            assert!(bench.tenancy.is_empty());
        }
    }
}

#[test]
fn datagram_peers_of_one_number_on_two_hosts() {
    let mut bench = two();
    let a = qp(&mut bench, 1, Service::Ud);
    for target_vnic in [OTHER, NOBODY, OTHER] {
        let answer = call(&mut bench, 1, to(a, 1, Qpn(17), target_vnic));
        assert!(matches!(answer, Some(Message::Connected(_))));
    }
    let made: Vec<_> = engine_links(&bench).iter().map(|link| link.ready.dgid).collect();
    assert_eq!(made, [gid(OTHER), gid(NOBODY)], "each has its link, and keeps it");
    assert_eq!(detached(&bench), []);
    bench.end(1);
    assert!(bench.mirror.is_empty());
}

/// Each end takes packets from the address that it calls the other by.
#[test]
fn both_ends_of_a_connection_to_loopback_have_one_address() {
    let home = gid(1);
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    let names = [(home, loopback, home, loopback), (home, loopback, home, home)];
    for (sgid, dgid, their_sgid, their_dgid) in names {
        let mut bench = two_of_which(1, forwarded());
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
        call(&mut bench, 1, ConnectQp { sgid, dgid, ..to(a, 1, b, 1) });
        call(&mut bench, 1, ConnectQp { sgid: their_sgid, dgid: their_dgid, ..to(b, 1, a, 1) });
        let links = engine_links(&bench);
        let made: Vec<_> = links.iter().map(|link| (link.ready.sgid, link.ready.dgid)).collect();
        assert_eq!(made, [(home, home); 2]);
    }
}

/// The loopback is every vNIC's own: the caller itself that has no other's address by it.
#[test]
fn a_link_from_loopback_takes_no_address_of_another() {
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    for target_vnic in [2, OTHER, NOBODY] {
        let mut bench = two_of_which(2, forwarded());
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        let peer = if target_vnic == 2 { b } else { Qpn(77) };
        call(&mut bench, 1, ConnectQp { sgid: loopback, ..to(a, 1, peer, target_vnic) });
        let links = engine_links(&bench);
        assert!(links.iter().all(|link| link.ready.sgid == loopback), "{links:?}");
    }
}

#[test]
fn without_sockets_no_link_is_made() {
    let mut bench = two();
    bench.closed.insert(1);
    let (rc, ud) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Ud));
    let answer = call(&mut bench, 1, to(rc, 1, Qpn(77), OTHER));
    assert_eq!(answer, Some(Connected { qpn: rc, ready: 0 }.into()));
    assert_eq!(errno(call(&mut bench, 1, to(ud, 1, Qpn(77), OTHER))), Errno::EHOSTUNREACH);
    assert!(engine_links(&bench).is_empty());
}

#[test]
fn a_forwarded_limited_or_faulty_vnic_is_not_linked_directly() {
    let reasons = [
        (1, forwarded(), [PathReason::Forwarded, PathReason::PeerForwarded]),
        (2, forwarded(), [PathReason::PeerForwarded, PathReason::Forwarded]),
        (1, limited(), [PathReason::Limited, PathReason::PeerLimited]),
        (2, limited(), [PathReason::PeerLimited, PathReason::Limited]),
        (1, faulty(), [PathReason::Faulty, PathReason::PeerFaulty]),
        (2, faulty(), [PathReason::PeerFaulty, PathReason::Faulty]),
    ];
    for (changed, policy, [ours, theirs]) in reasons {
        let mut bench = two_of_which(changed, policy);
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(a, 1, b, 2));
        assert_eq!(engine_links(&bench).len(), 1, "by its own wish alone");
        call(&mut bench, 2, to(b, 2, a, 1));
        let engine_links = engine_links(&bench);
        assert!(engine_links.len() == 2 && engine_links.iter().all(|link| link.within.is_some()));
        assert!(links(&bench).is_empty());
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, ours)]);
        assert_eq!(paths(&bench, 2), [(Path::Forwarded, theirs)]);
        // Nothing is mapped.
        let key = mr(&mut bench, 2, 1, 7);
        let grant = RequestGrant {
            qpn: a,
            peer_qpn: b,
            rkey: key,
            reserved: 0,
            address: 0x11000,
            length: 8,
        };
        assert_eq!(errno(call(&mut bench, 1, grant)), Errno::EOPNOTSUPP);
        // Within one vNIC it is the same.
        let (c, d) = (qp(&mut bench, changed, Service::Rc), qp(&mut bench, changed, Service::Rc));
        call(&mut bench, changed, to(c, changed, d, changed));
        assert!(support::engine_links(&bench)[2].within.is_some());
    }
}

#[test]
fn a_change_of_policy_concerns_new_links_only_and_both_sides_agree() {
    let mut bench = two();
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Neighbour)]);
    // One side had made its wish already.
    let (c, d) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(c, 1, d, 2));
    assert_eq!(bench.tenancy.set_policy(vnic(2), limited()).0, 1);
    call(&mut bench, 2, to(d, 2, c, 1));
    let forwarded = (Path::Forwarded, PathReason::PeerLimited);
    assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Neighbour), forwarded]);
    // One side went through the engine before that was no longer necessary.
    let (e, f) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(e, 1, f, 2));
    drop(bench.tenancy.forget_policy(vnic(2)));
    call(&mut bench, 2, to(f, 2, e, 1));
    assert_eq!(engine_links(&bench).len(), 4);
    assert_eq!(paths(&bench, 2)[2], (Path::Forwarded, PathReason::PeerThroughEngine));
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_peer_follows_an_end_that_sees_no_neighbour() {
    for first in [1, 2] {
        let mut bench = two();
        // 1's packets do not reach 2; 2's reach 1.
        bench.walls.insert((1, 2));
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        let wishes = [(1, to(a, 1, b, 2)), (2, to(b, 2, a, 1))];
        let (one, other) = if first == 1 { (0, 1) } else { (1, 0) };
        call(&mut bench, wishes[one].0, wishes[one].1);
        call(&mut bench, wishes[other].0, wishes[other].1);
        bench.wait(1_100_000_000);
        assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Unanswered)]);
        assert_eq!(paths(&bench, 2), [(Path::Omniverb, PathReason::OneWay)]);
        assert!(engine_links(&bench).iter().all(|link| link.within.is_none()));
    }
    // Datagrams need one direction.
    let mut bench = two();
    bench.walls.insert((2, 1));
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 1, to(a, 1, b, 2));
    assert_eq!(paths(&bench, 1), [(Path::Omniverb, PathReason::OneWay)]);
}

#[test]
fn a_link_to_the_engine_ends_and_gives_everything_back() {
    let mut bench = two();
    let qps: Vec<_> = (0..3).map(|_| qp(&mut bench, 1, Service::Rc)).collect();
    for qpn in &qps {
        call(&mut bench, 1, to(*qpn, 1, Qpn(77), OTHER));
    }
    let ready: Vec<_> = engine_links(&bench).iter().map(|link| link.ready).collect();
    assert!(ready.iter().all(|one| one.bell == ready[0].bell), "one bell");
    assert_eq!(ready.iter().map(|one| one.bell_new).collect::<Vec<_>>(), [1, 0, 0]);
    assert_ne!(ready[0].local_slot, ready[1].local_slot);
    call(&mut bench, 1, DisconnectQp { qpn: qps[0], peer_qpn: Qpn(0) });
    call(&mut bench, 1, DisconnectQp { qpn: qps[1], peer_qpn: Qpn(77) });
    let bell = Message::from(BellClosed { bell: ready[0].bell });
    assert_eq!(detached(&bench), [(qps[0], Qpn(77)), (qps[1], Qpn(77))]);
    assert_eq!(events(&mut bench, 1), [], "the bell is still in use");
    call(&mut bench, 1, DestroyQp { qpn: qps[2], reserved: 0 });
    assert_eq!(events(&mut bench, 1), [bell]);
    // The next one brings a bell of its own.
    call(&mut bench, 1, to(qps[0], 1, Qpn(78), OTHER));
    let again = engine_links(&bench)[0].ready;
    assert_eq!((again.bell_new, again.bell != ready[0].bell), (1, true));
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_link_that_cannot_be_made_is_taken_back() {
    let mut bench = two();
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
    call(&mut bench, 1, to(a, 1, Qpn(77), OTHER));
    call(&mut bench, 1, to(b, 1, Qpn(77), OTHER));
    bench.told.clear();
    bench.fail_engine_link(a, Qpn(77));
    assert!(bench.tenancy.engine_link_failed(a, Qpn(77)).is_empty());
    assert_eq!(detached(&bench), [(b, Qpn(77))], "it has no bell");
    let told = events(&mut bench, 1);
    assert_eq!(told[..2], [closed(a, Qpn(77), CLOSED_BY_PEER), closed(b, Qpn(77), CLOSED_BY_PEER)]);
    call(&mut bench, 1, to(a, 1, Qpn(77), OTHER));
    assert_eq!(engine_links(&bench)[0].ready.bell_new, 1);
}

#[test]
fn a_forwarded_peer_that_dies_is_told_one_that_closes_is_not() {
    let mut bench = two_of_which(1, forwarded());
    let pairs: Vec<_> = (0..2)
        .map(|_| {
            let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
            call(&mut bench, 1, to(a, 1, b, 2));
            call(&mut bench, 2, to(b, 2, a, 1));
            (a, b)
        })
        .collect();
    bench.told.clear();
    call(&mut bench, 2, DestroyQp { qpn: pairs[0].1, reserved: 0 });
    bench.wait(30_000_000);
    assert_eq!(events(&mut bench, 1), []);
    bench.end(2);
    bench.wait(30_000_000);
    let (a, b) = pairs[1];
    assert_eq!(events(&mut bench, 1), [closed(a, b, CLOSED_BY_DEATH)]);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

fn probe_of(bench: &mut Bench, session: u64, message: ConnectQp) -> u128 {
    let arrived =
        Arrived { channel: Channel::Calls, tag: 5, message: message.into(), memory: None };
    let actions = bench.tenancy.handle(SessionId(session), &arrived, bench.now);
    let probe = actions.iter().find_map(|action| match action {
        Action::Probe { id, .. } => Some(*id),
        _ => None,
    });
    probe.unwrap()
}

#[test]
fn forged_and_replayed_replies_gain_nothing() {
    let mut bench = two();
    let a = qp(&mut bench, 1, Service::Rc);
    let now = bench.now;
    let id = probe_of(&mut bench, 1, to(a, 1, Qpn(77), NOBODY));
    let tenancy = &mut bench.tenancy;
    assert!(tenancy.is_probe(id));
    let (right, at) = (ip(NOBODY), vnic(1));
    // Another number, another sender, at another vNIC.
    for (id, from, at) in [(id ^ 1, right, at), (id, ip(OTHER), at), (id, right, vnic(2))] {
        assert!(tenancy.probe_replied(id, (from, at), 1, now).is_empty());
    }
    assert!(tenancy.is_probe(id));
    let actions = tenancy.probe_unanswered(id, now);
    bench.carry_out(actions);
    assert_eq!(engine_links(&bench).len(), 1);
    // Too late; and the same once more.
    let tenancy = &mut bench.tenancy;
    assert!(!tenancy.is_probe(id));
    for _ in 0..2 {
        assert!(tenancy.probe_replied(id, (right, at), 1, now).is_empty());
        assert!(tenancy.probe_arrived(id, (ip(1), at), now).is_empty());
    }
    assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Unanswered)]);
    // An answered probe is not answered again by a later host.
    let b = qp(&mut bench, 2, Service::Rc);
    let id = probe_of(&mut bench, 2, to(b, 2, Qpn(77), NOBODY));
    let actions = bench.tenancy.probe_replied(id, (right, vnic(2)), 1, now);
    bench.carry_out(actions);
    assert!(bench.tenancy.probe_unanswered(id, now).is_empty());
    assert_eq!(paths(&bench, 2), [(Path::Omniverb, PathReason::Omniverb)]);
}

#[test]
fn datagram_calls_do_not_wait_for_a_route() {
    let mut bench = two();
    let a = qp(&mut bench, 1, Service::Ud);
    // The first answer comes before the network's.
    let again = Connected { qpn: a, ready: CONNECT_AGAIN };
    assert_eq!(call_once(&mut bench, 1, to(a, 1, Qpn(77), NOBODY)), Some(again.into()));
    assert!(engine_links(&bench).is_empty());
    let there = Connected { qpn: a, ready: 1 };
    assert_eq!(call_once(&mut bench, 1, to(a, 1, Qpn(77), NOBODY)), Some(there.into()));
    assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Unanswered)]);
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn links_to_the_engine_die_with_the_daemon() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 1);
    keep_qp(&mut bench, 1, Service::Rc, Qpn(900));
    let announced = ConnectQp { resume: RESUME_WIRE, ..to(Qpn(900), 1, Qpn(77), OTHER) };
    let answer = call(&mut bench, 1, announced);
    assert_eq!(answer, Some(Connected { qpn: Qpn(900), ready: 1 }.into()));
    assert_eq!(events(&mut bench, 1), [closed(Qpn(900), Qpn(77), CLOSED_BY_DEATH)]);
    // A process that cannot tell the difference gets the event as well, later.
    keep_qp(&mut bench, 1, Service::Rc, Qpn(901));
    call(&mut bench, 1, ConnectQp { resume: RESUME_LINK, ..to(Qpn(901), 1, Qpn(77), OTHER) });
    assert!(engine_links(&bench).is_empty());
    bench.wait(6_000_000_000);
    assert_eq!(events(&mut bench, 1), [closed(Qpn(901), Qpn(77), CLOSED_BY_DEATH)]);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn over_quota_nothing_is_made() {
    let limits = Limits { links_per_session: 2, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    let qps: Vec<_> = (0..3).map(|_| qp(&mut bench, 1, Service::Rc)).collect();
    for qpn in &qps[..2] {
        call(&mut bench, 1, to(*qpn, 1, Qpn(77), OTHER));
    }
    assert_eq!(errno(call(&mut bench, 1, to(qps[2], 1, Qpn(77), OTHER))), Errno::ENOMEM);
    call(&mut bench, 1, DestroyQp { qpn: qps[0], reserved: 0 });
    let ud = qp(&mut bench, 1, Service::Ud);
    for peer in [80, 81] {
        bench.wait(2_000_000_000);
        let answer = call(&mut bench, 1, to(ud, 1, Qpn(peer), OTHER));
        assert!(matches!(answer, Some(Message::Connected(_))), "the oldest datagram link goes");
    }
    assert_eq!(paths(&bench, 1).len(), 2);
}

#[test]
fn links_of_a_vnic_with_more_than_its_share_are_replaced_and_not_lost() {
    let mut bench = support::bench_with(Limits { links: 24, ..Limits::default() });
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (one, two) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let connect = |bench: &mut Bench, session: u64, qpn: Qpn, peer: u32| {
        call(bench, session, to(qpn, session, Qpn(peer), OTHER))
    };
    for peer in 0..12 {
        let answer = connect(&mut bench, 1, one, 0x700 + peer);
        assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
    }
    (0..12).for_each(|peer| _ = connect(&mut bench, 2, two, 0x800 + peer));
    assert_eq!((paths(&bench, 1).len(), paths(&bench, 2).len()), (12, 6));
    bench.wait(2_000_000_000);
    events(&mut bench, 1);
    // A new peer takes the place of the oldest.
    for peer in 0..10 {
        bench.wait(2_000_000_000);
        let answer = connect(&mut bench, 1, one, 0x900 + peer);
        assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
        assert_eq!(paths(&bench, 1).len(), 12);
        let ended = events(&mut bench, 1);
        let is_end = |told: &&Message| matches!(told, Message::LinkClosed(_));
        assert_eq!(ended.iter().filter(is_end).count(), 1);
    }
    // A link that nothing makes way for ends none.
    let connected = qp(&mut bench, 1, Service::Rc);
    for peer in 0..20 {
        assert_eq!(errno(connect(&mut bench, 1, connected, 0xa00 + peer)), Errno::ENOMEM);
        assert_eq!(paths(&bench, 1).len(), 12);
    }
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn too_many_questions_are_asked_later() {
    let limits = Limits { probes_per_vnic: 1, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
    let id = probe_of(&mut bench, 1, to(a, 1, Qpn(77), NOBODY));
    call(&mut bench, 1, to(b, 1, Qpn(77), OTHER));
    assert!(engine_links(&bench).is_empty());
    let actions = bench.tenancy.probe_unanswered(id, bench.now);
    bench.carry_out(actions);
    bench.wait(1_100_000_000);
    assert_eq!(engine_links(&bench).len(), 2);
}
