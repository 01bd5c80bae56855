//! Tests which queue pairs get a link, which do not, and which hear about its end.

use crate::support::{self, *};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip};
use omniverb_tenancy::{Action, Limits};
use omniverb_terms::{Errno, Qpn, Service};

fn closed(qpn: Qpn, peer_qpn: Qpn, reason: u32) -> Message {
    LinkClosed { qpn, peer_qpn, reason, reserved: 0 }.into()
}

#[test]
fn two_containers_that_name_each_other_get_one_link() {
    for service in [Service::Rc, Service::Uc] {
        let mut bench = bench();
        hello(&mut bench, 1, 1, 0);
        hello(&mut bench, 2, 2, 0);
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 2, service));
        let first = call(&mut bench, 1, to(a, 1, b, 2));
        assert_eq!(first, Some(Connected { qpn: a, ready: 0 }.into()));
        assert!(links(&bench).is_empty());
        let second = call(&mut bench, 2, to(b, 2, a, 1));
        // Accepted; the network is asked before the link is made.
        assert_eq!(second, Some(Connected { qpn: b, ready: 0 }.into()));
        let links = links(&bench);
        let [(one, other)] = links.as_slice() else { panic!("{links:?}") };
        assert_eq!((one.session.0, one.ready.qpn, one.ready.peer_qpn), (1, a, b));
        assert_eq!((other.session.0, other.ready.qpn, other.ready.peer_qpn), (2, b, a));
        assert_eq!((one.ready.side, other.ready.side), (0, 1));
        assert_eq!((one.ready.bell_side, other.ready.bell_side), (0, 1));
        assert_eq!((one.ready.bell_new, other.ready.bell_new, one.ready.loopback), (1, 1, 0));
        assert_eq!((one.ready.sgid, one.ready.dgid), (gid(1), gid(2)));
        assert_eq!((other.ready.sgid, other.ready.dgid), (gid(2), gid(1)));
        assert_eq!(one.ready.bell, other.ready.bell);
    }
}

#[test]
fn a_wall_in_either_direction_keeps_them_apart() {
    for wall in [(1, 2), (2, 1)] {
        let mut bench = bench();
        bench.walls.insert(wall);
        hello(&mut bench, 1, 1, 0);
        hello(&mut bench, 2, 2, 0);
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        // On the wire, if at all: there the network decides about every packet.
        bench.wait(1_100_000_000);
        assert!(links(&bench).is_empty());
        assert_eq!(engine_links(&bench).len(), 2);
    }
    // A wall that is there only for a moment, because the network is still coming up.
    let mut bench = bench();
    bench.walls.insert((2, 1));
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    bench.walls.clear();
    bench.wait(1_100_000_000);
    assert_eq!((links(&bench).len(), engine_links(&bench).len()), (1, 0));
}

/// XRC reaches regions in the protection domain of an SRQ, and the requesting end serves no peer.
#[test]
fn an_end_of_xrc_is_granted_nothing() {
    let mut bench = bench();
    for session in 1..=2 {
        hello(&mut bench, session, session, 0);
    }
    let ask = |qpn, peer_qpn, rkey| RequestGrant {
        qpn,
        peer_qpn,
        rkey,
        reserved: 0,
        address: 0x11000,
        length: 8,
    };
    for service in [Service::XrcSend, Service::XrcRecv, Service::Rc] {
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 2, service.opposite()));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        let (ours, theirs) = (mr(&mut bench, 1, 1, 7), mr(&mut bench, 2, 1, 7));
        bench.told.clear();
        let granted = call(&mut bench, 1, ask(a, b, theirs));
        let back = call(&mut bench, 2, ask(b, a, ours));
        for answer in [granted, back] {
            match service {
                Service::Rc => assert!(matches!(answer, Some(Message::Connected(_)))),
                _ => assert_eq!(errno(answer), Errno::EOPNOTSUPP, "{service}"),
            }
        }
        let asked = bench.told.iter().any(|action| matches!(action, Action::Adopt { .. }));
        assert_eq!(asked, service == Service::Rc, "{service}");
    }
}

#[test]
fn guessing_a_number_is_not_enough() {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    let c = qp(&mut bench, 3, Service::Rc);
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    // A third party names one of them; one that is connected, with a third party's address.
    call(&mut bench, 3, to(c, 3, a, 1));
    assert_eq!(links(&bench).len(), 1);
    // Another's number, another's address.
    assert_eq!(errno(call(&mut bench, 3, to(a, 3, b, 2))), Errno::ENOENT);
    assert_eq!(errno(call(&mut bench, 3, to(c, 1, b, 2))), Errno::EINVAL);
    let destroy = DestroyQp { qpn: a, reserved: 0 };
    assert_eq!(errno(call(&mut bench, 3, destroy)), Errno::ENOENT);
    // Right number, but at an address that is not the peer's vNIC.
    let (d, e) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(d, 1, e, 3));
    call(&mut bench, 2, to(e, 2, d, 1));
    assert_eq!(links(&bench).len(), 1);
    // The two ends of XRC connect with each other, and with no other kind.
    let ends = [Service::XrcSend, Service::XrcRecv];
    for (one, other) in [(0, 0), (1, 1)].map(|(one, other)| (ends[one], ends[other])) {
        let (f, g) = (qp(&mut bench, 1, one), qp(&mut bench, 2, other));
        call(&mut bench, 1, to(f, 1, g, 2));
        call(&mut bench, 2, to(g, 2, f, 1));
        assert_eq!(links(&bench).len(), 1);
    }
    let (f, g) = (qp(&mut bench, 1, ends[0]), qp(&mut bench, 2, ends[1]));
    call(&mut bench, 1, to(f, 1, g, 2));
    call(&mut bench, 2, to(g, 2, f, 1));
    assert_eq!(links(&bench).len(), 2);
    // Different types.
    let (f, g) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Uc));
    call(&mut bench, 1, to(f, 1, g, 2));
    call(&mut bench, 2, to(g, 2, f, 1));
    assert_eq!(links(&bench).len(), 2);
}

#[test]
fn within_one_process_and_with_itself() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 1));
    call(&mut bench, 1, to(b, 1, a, 1));
    let (one, other) = links(&bench)[0].clone();
    assert_eq!((one.ready.loopback, one.ready.bell_side, other.ready.bell_side), (1, 0, 0));
    assert_ne!(one.ready.local_slot, one.ready.peer_slot);
    assert_eq!(one.ready.local_slot, other.ready.peer_slot);
    let c = qp(&mut bench, 1, Service::Rc);
    let answer = call(&mut bench, 1, to(c, 1, c, 1));
    assert_eq!(answer, Some(Connected { qpn: c, ready: 1 }.into()));
    assert_eq!(links(&bench).len(), 2);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn datagrams_need_a_peer_and_both_directions() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let rc = qp(&mut bench, 2, Service::Rc);
    assert_eq!(errno(call(&mut bench, 1, to(a, 1, rc, 2))), Errno::ENOENT);
    assert_eq!(errno(call(&mut bench, 1, to(a, 1, Qpn(0xff_fffe), 2))), Errno::ENOENT);
    assert_eq!(errno(call(&mut bench, 1, to(a, 1, b, 1))), Errno::ENOENT, "not at that address");
    assert!(links(&bench).is_empty());
    for _ in 0..2 {
        let answer = call(&mut bench, 1, to(a, 1, b, 2));
        assert_eq!(answer, Some(Connected { qpn: a, ready: 1 }.into()));
    }
    let answer = call(&mut bench, 2, to(b, 2, a, 1));
    assert_eq!(answer, Some(Connected { qpn: b, ready: 1 }.into()));
    assert_eq!(links(&bench).len(), 1);

    let mut closed = support::bench();
    closed.closed.insert(1);
    hello(&mut closed, 1, 1, 0);
    hello(&mut closed, 2, 2, 0);
    let (a, b) = (qp(&mut closed, 1, Service::Ud), qp(&mut closed, 2, Service::Ud));
    assert_eq!(errno(call(&mut closed, 1, to(a, 1, b, 2))), Errno::EHOSTUNREACH);
    let c = qp(&mut closed, 1, Service::Ud);
    assert!(matches!(call(&mut closed, 1, to(a, 1, c, 1)), Some(Message::Connected(_))));
}

#[test]
fn a_neighbour_cannot_use_up_the_links_of_others() {
    let limits = Limits { datagram_links_per_neighbour: 3, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let victim = qp(&mut bench, 2, Service::Ud);
    let flood: Vec<_> = (0..4).map(|_| qp(&mut bench, 1, Service::Ud)).collect();
    for qpn in &flood[..3] {
        assert!(matches!(call(&mut bench, 1, to(*qpn, 1, victim, 2)), Some(Message::Connected(_))));
    }
    assert_eq!(errno(call(&mut bench, 1, to(flood[3], 1, victim, 2))), Errno::ENOMEM);
    let honest = qp(&mut bench, 3, Service::Ud);
    assert!(matches!(call(&mut bench, 3, to(honest, 3, victim, 2)), Some(Message::Connected(_))));
    call(&mut bench, 1, DestroyQp { qpn: flood[0], reserved: 0 });
    assert!(matches!(call(&mut bench, 1, to(flood[3], 1, victim, 2)), Some(Message::Connected(_))));
}

#[test]
fn death_and_parting_are_told_and_leave_nothing() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        pairs.push((a, b));
    }
    let bell = links(&bench)[0].0.ready.bell;
    assert!(links(&bench)[1..].iter().all(|(one, _)| one.ready.bell_new == 0));
    events(&mut bench, 2);
    call(&mut bench, 1, DestroyQp { qpn: pairs[0].0, reserved: 0 });
    call(&mut bench, 1, DisconnectQp { qpn: pairs[1].0, peer_qpn: Qpn(0) });
    let told = events(&mut bench, 2);
    let expected: Vec<_> = pairs[..2].iter().map(|(a, b)| closed(*b, *a, CLOSED_BY_PEER)).collect();
    assert_eq!(told, expected);
    let nothing = DisconnectQp { qpn: pairs[1].0, peer_qpn: pairs[1].1 };
    assert_eq!(errno(call(&mut bench, 1, nothing)), Errno::ENOENT);
    bench.end(1);
    let told = events(&mut bench, 2);
    let (a, b) = pairs[2];
    assert_eq!(told, [closed(b, a, CLOSED_BY_DEATH), BellClosed { bell }.into()]);
    bench.end(2);
    assert!(bench.told.iter().any(|action| matches!(action, Action::VnicGone { .. })));
    assert!(bench.tenancy.is_empty());
}

#[test]
fn datagram_calls_do_not_wait_for_probes() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    // Not through the bench: the probe stays unanswered.
    let actions = decided(&mut bench, 1, to(a, 1, b, 2));
    let [Action::Probe { id, .. }, Action::Reply { message, .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    let again = Connected { qpn: a, ready: CONNECT_AGAIN }.into();
    assert_eq!(*message, again);
    qp(&mut bench, 1, Service::Ud);
    assert_eq!(call_once(&mut bench, 1, to(a, 1, b, 2)), Some(again), "and asked once only");
    bench.end(2);
    let _ = bench.tenancy.probe_failed(*id, bench.now);
    assert_eq!(errno(call_once(&mut bench, 1, to(a, 1, b, 2))), Errno::EHOSTUNREACH);
    assert!(bench.tenancy.probe_failed(*id, bench.now).is_empty(), "a number is valid once");
}

#[test]
fn a_probe_that_comes_out_elsewhere_proves_nothing() {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let (a, c) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 3, Service::Ud));
    let actions = decided(&mut bench, 1, to(a, 1, c, 2));
    let [Action::Probe { id, .. }, Action::Reply { .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    // vNIC 2's address was asked for; the network carried the datagram to vNIC 3.
    let at = omniverb_tenancy::testing::random_driver::vnic(3);
    let actions = bench.tenancy.probe_arrived(*id, (ip(1), at), bench.now);
    assert_eq!(actions, [Action::ReadAddresses { vnic: at }]);
    assert!(bench.tenancy.probe_arrived(id ^ 1, (ip(1), at), bench.now).is_empty(), "a guess");
}

#[test]
fn a_wish_for_a_dead_peer_gets_an_event() {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let told = |bench: &mut Bench, session: u64| {
        bench.wait(30_000_000);
        events(bench, session)
    };
    // It dies after it was named, and before it named us.
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    // Another process names it at a place where it is not.
    let c = qp(&mut bench, 3, Service::Rc);
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 3, to(c, 3, b, 1));
    bench.told.clear();
    bench.end(2);
    let copy = bench.told.clone();
    assert_eq!(told(&mut bench, 1), [closed(a, b, CLOSED_BY_DEATH)]);
    bench.told.extend(copy);
    assert_eq!(told(&mut bench, 3), []);
    // It was dead before it was named.
    let a = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(a, 1, b, 1));
    assert_eq!(told(&mut bench, 1), [closed(a, b, CLOSED_BY_DEATH)]);
    // It has never been: like a dead network.
    let a = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(a, 1, Qpn(0xff_fff0), 1));
    assert_eq!(told(&mut bench, 1), []);
    // It went by itself, without ever naming us.
    let (d, e) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
    call(&mut bench, 1, to(d, 1, e, 1));
    call(&mut bench, 1, DestroyQp { qpn: e, reserved: 0 });
    assert_eq!(told(&mut bench, 1), [closed(d, e, CLOSED_BY_PEER)]);
    // A peer that gave up before gets no event.
    let (d, e) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 1, Service::Rc));
    call(&mut bench, 1, to(d, 1, e, 1));
    call(&mut bench, 1, DestroyQp { qpn: e, reserved: 0 });
    call(&mut bench, 1, DisconnectQp { qpn: d, peer_qpn: Qpn(0) });
    assert_eq!(told(&mut bench, 1), []);
    bench.end(1);
    bench.end(3);
    assert!(bench.tenancy.is_empty());
}
