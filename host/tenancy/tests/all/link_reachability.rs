//! Tests repeated probes while a link lives, and probes from addresses that are not the prober's.

use crate::support::{self, *};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Limits, Path, PathReason};
use omniverb_terms::{Qpn, Service};
use std::net::IpAddr;

const PERIOD: u64 = 10_000_000_000;

fn parted(qpn: Qpn, peer_qpn: Qpn) -> Message {
    LinkClosed { qpn, peer_qpn, reason: CLOSED_BY_NETWORK, reserved: 0 }.into()
}

/// Sessions 1 to 3 in the vNIC of their number, and 4 and 5 in vNICs 1 and 2.
fn bench_with(limits: Limits) -> Bench {
    let mut bench = support::bench_with(limits);
    for (session, vnic) in [(1, 1), (2, 2), (3, 3), (4, 1), (5, 2)] {
        hello(&mut bench, session, vnic, 1);
    }
    bench
}

fn link(
    bench: &mut Bench,
    (one, at): (u64, u64),
    (other, peer_at): (u64, u64),
    service: Service,
) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, one, service), qp(bench, other, service));
    call(bench, one, to(a, at, b, peer_at));
    if service != Service::Ud {
        call(bench, other, to(b, peer_at, a, at));
    }
    (a, b)
}

fn probes(bench: &mut Bench) -> Vec<(IpAddr, u64)> {
    let told = std::mem::take(&mut bench.told);
    let probe = |action: &Action| match action {
        Action::Probe { vnic, destination, .. } => Some((*destination, vnic.0)),
        _ => None,
    };
    told.iter().filter_map(probe).collect()
}

/// Time passes as it does, in small steps.
fn pass(bench: &mut Bench, nanoseconds: u64) {
    for _ in 0..nanoseconds / 100_000_000 {
        bench.wait(100_000_000);
    }
}

fn told(bench: &mut Bench, session: u64) -> Vec<Message> {
    let all = bench.told.clone();
    let mut messages = events(bench, session);
    messages.retain(|message| matches!(message, Message::LinkClosed(_)));
    bench.told = all;
    messages
}

#[test]
fn the_network_is_asked_once_a_period_for_all_links_between_two() {
    let mut bench = bench_with(Limits::default());
    for service in [Service::Rc, Service::Uc, Service::Ud, Service::Rc] {
        link(&mut bench, (1, 1), (2, 2), service);
        link(&mut bench, (4, 1), (5, 2), service);
    }
    let own = qp(&mut bench, 3, Service::Rc);
    call(&mut bench, 3, to(own, 3, own, 3));
    probes(&mut bench);
    pass(&mut bench, 10 * PERIOD);
    let asked = probes(&mut bench);
    for question in [(ip(2), 1), (ip(1), 2)] {
        let times = asked.iter().filter(|other| **other == question).count();
        assert!((10..=14).contains(&times), "{times}");
    }
    assert!(asked.iter().all(|(_, from)| *from != 3), "no host is probed within a vNIC");
    for session in 1..=5 {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_wall_that_appears_ends_links_that_rest_on_the_answer() {
    for wall in [(1, 2), (2, 1)] {
        let mut bench = bench_with(Limits::default());
        let pairs = [Service::Rc, Service::Uc, Service::Ud]
            .map(|kind| link(&mut bench, (1, 1), (2, 2), kind));
        let elsewhere = link(&mut bench, (1, 1), (3, 3), Service::Rc);
        pass(&mut bench, 3 * PERIOD);
        bench.told.clear();
        bench.walls.insert(wall);
        // Once unanswered is not yet an end: a datagram may be lost, three even.
        pass(&mut bench, PERIOD / 2);
        assert_eq!(told(&mut bench, 1), []);
        pass(&mut bench, 2 * PERIOD);
        for (a, b) in pairs {
            assert!(told(&mut bench, 1).contains(&parted(a, b)));
            assert!(told(&mut bench, 2).contains(&parted(b, a)));
        }
        assert_eq!(told(&mut bench, 1).len(), 3);
        assert_eq!(paths(&bench, 3).len(), 1, "others go on: {elsewhere:?}");
        // The neighbours' cache knows it as well.
        let before = links(&bench).len();
        link(&mut bench, (4, 1), (5, 2), Service::Rc);
        assert_eq!(links(&bench).len(), before);
        for session in 1..=5 {
            bench.end(session);
        }
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn a_moment_of_silence_is_forgiven() {
    let mut bench = bench_with(Limits::default());
    link(&mut bench, (1, 1), (2, 2), Service::Rc);
    for _ in 0..5 {
        bench.walls.insert((1, 2));
        pass(&mut bench, PERIOD * 3 / 4 - 200_000_000);
        bench.walls.clear();
        pass(&mut bench, PERIOD + 200_000_000);
    }
    assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Neighbour)]);
}

/// A machine that is busy answers late, and now and then not at all.
#[test]
fn a_late_answer_is_forgiven_each_time() {
    let mut bench = bench_with(Limits::default());
    link(&mut bench, (1, 1), (2, 2), Service::Rc);
    for _ in 0..5 {
        bench.walls.insert((1, 2));
        probes(&mut bench);
        let asked = (0..200).any(|_| {
            pass(&mut bench, 100_000_000);
            probes(&mut bench).contains(&(ip(2), 1))
        });
        assert!(asked, "there are no links any more");
        pass(&mut bench, 1_000_000_000);
        bench.walls.clear();
        pass(&mut bench, 3_000_000_000);
    }
    assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Neighbour)]);
}

#[test]
fn an_address_that_moves_takes_its_links_along() {
    let mut bench = bench_with(Limits::default());
    let (a, b) = link(&mut bench, (1, 1), (2, 2), Service::Rc);
    bench.told.clear();
    // Address 2 is vNIC 3's from now on.
    bench.moved.insert(2, 3);
    for key in [2, 3] {
        let actions = vec![Action::ReadAddresses { vnic: vnic(key) }];
        bench.carry_out(actions);
    }
    pass(&mut bench, PERIOD);
    assert!(told(&mut bench, 1).contains(&parted(a, b)));
    assert!(told(&mut bench, 2).contains(&parted(b, a)));
}

#[test]
fn forwarded_and_surviving_links_need_consent_as_well() {
    let mut bench = bench_with(Limits::default());
    for (session, own, peer, other) in [(1, 900, 800, 2), (2, 800, 900, 1)] {
        keep_qp(&mut bench, session, Service::Rc, Qpn(own));
        let survived = ConnectQp { resume: RESUME_LINK, ..to(Qpn(own), session, Qpn(peer), other) };
        call(&mut bench, session, survived);
    }
    assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Survivor)]);
    let policy = omniverb_tenancy::Policy {
        datapath: omniverb_tenancy::Datapath::Forwarded,
        ..Default::default()
    };
    let _ = bench.tenancy.set_policy(vnic(3), policy);
    let (c, d) = link(&mut bench, (3, 3), (2, 2), Service::Rc);
    assert_eq!(engine_links(&bench).len(), 2);
    bench.told.clear();
    bench.walls.extend([(1, 2), (3, 2)]);
    pass(&mut bench, 3 * PERIOD);
    assert!(told(&mut bench, 1).contains(&parted(Qpn(900), Qpn(800))));
    assert!(told(&mut bench, 2).contains(&parted(Qpn(800), Qpn(900))));
    assert!(told(&mut bench, 3).contains(&parted(c, d)));
}

#[test]
fn without_the_period_no_probe_is_sent() {
    let mut bench = bench_with(Limits { consent_time_ns: 0, ..Limits::default() });
    link(&mut bench, (1, 1), (2, 2), Service::Rc);
    bench.walls.insert((1, 2));
    probes(&mut bench);
    pass(&mut bench, 5 * PERIOD);
    assert_eq!(probes(&mut bench), []);
    assert_eq!(paths(&bench, 1).len(), 1);
}

#[test]
fn a_full_account_hides_nothing() {
    // vNIC 1 keeps all the probes it may have under way, for ever.
    let limits = Limits { probes_per_vnic: 1, ..Limits::default() };
    let mut bench = bench_with(limits);
    let (a, b) = link(&mut bench, (1, 1), (2, 2), Service::Rc);
    let waiting = qp(&mut bench, 1, Service::Rc);
    let actions = decided(&mut bench, 1, to(waiting, 1, Qpn(77), 5));
    assert!(actions.iter().any(|action| matches!(action, Action::Probe { .. })));
    bench.walls.insert((1, 2));
    bench.told.clear();
    pass(&mut bench, 3 * PERIOD);
    assert!(told(&mut bench, 2).contains(&parted(b, a)));
}

#[test]
fn a_probe_counts_only_from_an_address_of_the_prober() {
    let mut bench = bench_with(Limits::default());
    let (a, c) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let actions = decided(&mut bench, 1, to(a, 1, c, 2));
    let [Action::Probe { id, .. }, Action::Reply { .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    // Seen by vNIC 3 and sent again, with its own address, the victim's and one that no vNIC has.
    for number in [3, 2, 9] {
        let actions = bench.tenancy.probe_arrived(*id, (ip(number), vnic(2)), bench.now);
        let read = Action::ReadAddresses { vnic: vnic(1) };
        assert!(actions.is_empty() || actions == [read], "{actions:?}");
    }
    assert!(bench.tenancy.is_probe(*id), "it is still under way");
    let actions = bench.tenancy.probe_arrived(*id, (ip(1), vnic(2)), bench.now);
    assert_eq!(actions, [Action::ForgetProbe { id: *id }]);
}

/// A probe that was not answered since receive queues overflowed is no wall, for a while; a wall is
/// one, however long a flood goes on.
#[test]
fn a_flood_hides_a_wall_for_a_while_and_not_for_ever() {
    let mut bench = bench_with(Limits::default());
    let (a, b) = link(&mut bench, (1, 1), (2, 2), Service::Rc);
    bench.flooded = true;
    for _ in 0..3 {
        bench.walls.insert((1, 2));
        pass(&mut bench, 6 * PERIOD);
        assert_eq!(paths(&bench, 1), [(Path::Direct, PathReason::Neighbour)]);
        bench.walls.clear();
        pass(&mut bench, PERIOD);
    }
    bench.told.clear();
    bench.walls.insert((1, 2));
    pass(&mut bench, 10 * PERIOD);
    assert_eq!(told(&mut bench, 1), [parted(a, b)]);
    assert_eq!(told(&mut bench, 2), [parted(b, a)]);
}

/// Links that others open are asked after on their account, however many those are.
#[test]
fn uninvited_links_spend_no_questions_of_the_other_vnic() {
    let limits = Limits { probes_per_vnic: 1, ..Limits::default() };
    let mut bench = bench_with(limits);
    let (a, b) = link(&mut bench, (1, 1), (2, 2), Service::Rc);
    // vNIC 3 opens one towards vNIC 1, and lets nothing pass any more: what is asked stays open.
    link(&mut bench, (3, 3), (1, 1), Service::Ud);
    bench.walls.extend([(1, 3), (3, 1)]);
    bench.silent.extend([(1, 3), (3, 1)]);
    bench.told.clear();
    pass(&mut bench, 12 * PERIOD);
    assert!(!told(&mut bench, 1).contains(&parted(a, b)));
    assert!(!told(&mut bench, 2).contains(&parted(b, a)));
    assert_eq!(paths(&bench, 2), [(Path::Direct, PathReason::Neighbour)]);
}

/// A probe that could not be sent tells nothing about the network, for a while.
#[test]
fn a_probe_that_could_not_be_sent_is_no_miss() {
    let limits = Limits { probes_per_vnic: 1, ..Limits::default() };
    let mut bench = bench_with(limits);
    link(&mut bench, (1, 1), (2, 2), Service::Rc);
    link(&mut bench, (1, 1), (3, 3), Service::Rc);
    // The question from vNIC 1 to vNIC 3 takes for ever, and the other one has no place.
    bench.silent.insert((1, 3));
    bench.walls.insert((1, 3));
    pass(&mut bench, 5 * PERIOD);
    assert_eq!(paths(&bench, 2), [(Path::Direct, PathReason::Neighbour)]);
    bench.silent.clear();
}
