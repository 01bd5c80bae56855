//! Tests which links to other hosts processes carry, and what is said about their ports.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::carried_links::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, KeyGeneration, Limits, Path, PathReason, Policy, RateLimit};
use omniverb_terms::{Errno, Qpn, Service};
use omniverb_wire::{PORT, PortNotice};

/// vNIC number 4 of the bench is another Omniverb's.
const OTHER: u64 = 4;
const PEER: Qpn = Qpn(77);
const SECOND: u64 = 1_000_000_000;

fn bench_that_carries() -> Bench {
    let mut bench = bench();
    bench.tenancy.let_processes_carry();
    bench.features |= PortNotice::FEATURE;
    hello(&mut bench, 1, 1, 0);
    bench
}

fn offer(qpn: Qpn) -> ConnectQp {
    ConnectQp { carries: 1, ..to(qpn, 1, PEER, OTHER) }
}

/// A queue pair whose process carries its link.
fn carried(bench: &mut Bench) -> Qpn {
    let qpn = qp(bench, 1, Service::Rc);
    call(bench, 1, offer(qpn));
    assert_eq!(engine_links(bench).last().map(|link| link.ready.carried), Some(1));
    qpn
}

/// The notices that were sent, which are then forgotten with all else.
fn notices(bench: &mut Bench) -> Vec<PortNotice> {
    let told = std::mem::take(&mut bench.told);
    let notice = |action: Action| match action {
        Action::SendNotice { datagram, underlay, .. } => {
            assert_eq!(underlay.remote, ip(OTHER));
            PortNotice::read(&datagram)
        }
        _ => None,
    };
    told.into_iter().filter_map(notice).collect()
}

fn port(qpn: Qpn, port: u32) -> CarriedPort {
    CarriedPort { qpn, peer_qpn: PEER, port, reserved: 0 }
}

/// The peer's daemon says this of its port.
fn say(bench: &mut Bench, qpn: Qpn, port: u16, (number, heard): (u64, u64)) {
    let is_question = heard == 0;
    let notice = PortNotice { from: PEER, to: qpn, port, is_question, number, heard };
    let actions = bench.tenancy.port_notice(vnic(1), ip(OTHER), &notice, bench.now);
    bench.carry_out(actions);
}

fn limited() -> Policy {
    let limit = RateLimit { bits_per_second: 20_000_000, burst_bytes: 65536 };
    Policy { limit: Some(limit), ..Policy::default() }
}

fn done() -> Option<Message> {
    Some(Done { take_back: 0 }.into())
}

#[test]
fn a_process_carries_where_all_agree() {
    let mut bench = bench_that_carries();
    let qpn = carried(&mut bench);
    assert_eq!(paths(&bench, 1), [(Path::Carried, PathReason::Omniverb)]);
    assert_eq!(notices(&mut bench), [], "its port is not known");
    bench.end(1);
    let told = notices(&mut bench);
    assert_eq!(told.iter().map(|n| (n.from, n.to, n.port)).collect::<Vec<_>>(), [(qpn, PEER, 0)]);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn where_something_is_lacking_the_engine_carries() {
    type Change = fn(&mut Bench);
    let changes: [(Change, u32, Service); 6] = [
        (|bench| bench.features = 1, 1, Service::Rc),
        (|bench| drop(bench.tenancy.set_policy(vnic(1), limited())), 1, Service::Rc),
        (|bench| drop(bench.tenancy.begin_capture(vnic(1))), 1, Service::Rc),
        (|bench| _ = bench.machines.insert(1), 1, Service::Rc),
        (|_| {}, 0, Service::Rc),
        (|_| {}, 1, Service::Uc),
    ];
    for (change, carries, service) in changes {
        let mut bench = bench();
        bench.tenancy.let_processes_carry();
        bench.features |= PortNotice::FEATURE;
        change(&mut bench);
        hello(&mut bench, 1, 1, 0);
        let qpn = qp(&mut bench, 1, service);
        call(&mut bench, 1, ConnectQp { carries, ..offer(qpn) });
        assert_eq!(engine_links(&bench).last().map(|link| link.ready.carried), Some(0));
        assert_eq!(paths(&bench, 1), [(Path::Omniverb, PathReason::Omniverb)]);
        assert_eq!(errno(call(&mut bench, 1, port(qpn, 50_001))), Errno::ENOENT);
        bench.end(1);
        assert!(bench.tenancy.is_empty());
    }
    // Without the switch nothing is said, either.
    let mut bench = bench();
    bench.features |= PortNotice::FEATURE;
    hello(&mut bench, 1, 1, 0);
    let qpn = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, offer(qpn));
    assert_eq!(engine_links(&bench).last().map(|link| link.ready.carried), Some(0));
    assert_eq!(notices(&mut bench), []);
}

#[test]
fn ports_are_told_until_they_are_heard() {
    let mut bench = bench_that_carries();
    let qpn = carried(&mut bench);
    bench.told.clear();
    assert_eq!(call(&mut bench, 1, port(qpn, 50_001)), done());
    let first = notices(&mut bench);
    let [question] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!((question.port, question.is_question, question.heard), (50_001, true, 0));
    for pause in [1_000_000, 10_000_000, 100_000_000, SECOND, SECOND] {
        bench.wait(pause);
        assert_eq!(notices(&mut bench), first, "the same again");
    }
    // From elsewhere, of another queue pair, or of a port of the system: nothing.
    let foreign =
        PortNotice { from: PEER, to: qpn, number: 5, heard: question.number, ..*question };
    let actions = bench.tenancy.port_notice(vnic(1), ip(5), &foreign, bench.now);
    assert_eq!(actions, []);
    let other = PortNotice { from: Qpn(78), ..foreign };
    assert_eq!(bench.tenancy.port_notice(vnic(1), ip(OTHER), &other, bench.now), []);
    say(&mut bench, qpn, 80, (5, 0));
    assert!(!events(&mut bench, 1).iter().any(|event| matches!(event, Message::PeerPort(_))));
    say(&mut bench, qpn, 50_002, (6, question.number));
    let event = PeerPort { qpn, peer_qpn: PEER, port: 50_002, reserved: 0 };
    assert_eq!(events(&mut bench, 1), [event.into()]);
    bench.wait(60 * SECOND);
    assert_eq!(notices(&mut bench), [], "it was heard");
    // The peer asks again, as its answer was lost.
    say(&mut bench, qpn, 50_002, (6, 0));
    let [answer] = notices(&mut bench)[..] else { panic!() };
    assert_eq!((answer.port, answer.is_question, answer.heard), (50_001, false, 6));
    bench.end(1);
}

#[test]
fn the_engine_sends_to_the_port_of_a_peer_that_carries() {
    let mut bench = bench_that_carries();
    let qpn = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(qpn, 1, PEER, OTHER));
    let told = notices(&mut bench);
    assert_eq!(told.iter().map(|n| n.port).collect::<Vec<_>>(), [PORT]);
    say(&mut bench, qpn, 50_002, (6, told[0].number));
    let set = Action::SetPeerPort { vnic: vnic(1), qpn, peer_qpn: PEER, port: 50_002 };
    assert_eq!(bench.told, [set]);
    bench.told.clear();
    say(&mut bench, qpn, 0, (7, told[0].number));
    let closed = LinkClosed { qpn, peer_qpn: PEER, reason: CLOSED_BY_DEATH, reserved: 0 };
    assert!(events(&mut bench, 1).contains(&closed.into()));
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_link_is_given_to_the_engine_when_a_limit_is_set() {
    let mut bench = bench_that_carries();
    let qpn = carried(&mut bench);
    call(&mut bench, 1, port(qpn, 50_001));
    say(&mut bench, qpn, 50_002, (6, 0));
    bench.told.clear();
    let actions = bench.tenancy.set_policy(vnic(1), limited()).1;
    bench.carry_out(actions);
    assert_eq!(events(&mut bench, 1), [GiveLink { qpn, peer_qpn: PEER }.into()]);
    let actions = bench.tenancy.begin_capture(vnic(1));
    bench.carry_out(actions);
    assert_eq!(events(&mut bench, 1), [], "it was told");
    let stranger = AttachLink::fresh(qpn, Qpn(78));
    assert_eq!(errno(call(&mut bench, 1, stranger)), Errno::ENOENT);
    let lie = AttachLink { length: u32::MAX, ..AttachLink::fresh(qpn, PEER) };
    assert_eq!(errno(call(&mut bench, 1, lie)), Errno::EINVAL);
    bench.told.clear();
    let given = AttachLink::with_state(qpn, PEER, &[1, 2, 3]).unwrap();
    assert_eq!(call(&mut bench, 1, given), done());
    let state = [1, 2, 3].into();
    let attach = Action::AttachCarried { qpn, peer_qpn: PEER, peer_port: 50_002, state };
    assert_eq!(bench.told[0], attach);
    let [notice] = notices(&mut bench)[..] else { panic!() };
    assert_eq!((notice.port, notice.is_question), (PORT, true));
    assert_eq!(errno(call(&mut bench, 1, given)), Errno::ENOENT, "once");
    assert_eq!(paths(&bench, 1), [(Path::Omniverb, PathReason::Omniverb)]);
    bench.wait(SECOND);
    assert_eq!(paths(&bench, 1), [(Path::Omniverb, PathReason::Omniverb)]);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

/// Notices are in plain, and say nothing to a vNIC whose packets are encrypted.
#[test]
fn an_encrypted_vnic_neither_says_nor_hears_ports() {
    let encrypted = Policy { encryption: Some(KeyGeneration(7)), ..Policy::default() };
    let mut bench = bench_that_carries();
    let qpn = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(qpn, 1, PEER, OTHER));
    assert_eq!(notices(&mut bench).len(), 1);
    let actions = bench.tenancy.set_policy(vnic(1), encrypted).1;
    bench.carry_out(actions);
    bench.wait(SECOND);
    say(&mut bench, qpn, 0, (7, 0));
    assert_eq!(notices(&mut bench), []);
    assert_eq!(paths(&bench, 1).len(), 1, "a forged death is no death");
    let other = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, offer(other));
    assert_eq!(notices(&mut bench), []);
    bench.end(1);
    assert_eq!(notices(&mut bench), []);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_process_with_many_links_has_longer_to_give_them() {
    let mut bench = bench_that_carries();
    let qpns: Vec<Qpn> = (0..500).map(|_| carried(&mut bench)).collect();
    let actions = bench.tenancy.set_policy(vnic(1), limited()).1;
    bench.carry_out(actions);
    for qpn in qpns {
        bench.wait(2_000_000);
        assert_eq!(call(&mut bench, 1, AttachLink::fresh(qpn, PEER)), done());
    }
    bench.end(1);
}

#[test]
fn a_link_that_is_not_given_in_time_fails() {
    let mut bench = bench_that_carries();
    let qpn = carried(&mut bench);
    let actions = bench.tenancy.set_policy(vnic(1), limited()).1;
    bench.carry_out(actions);
    bench.wait(GIVE_LINK_TIME_NS - 1);
    bench.told.clear();
    // It is given two milliseconds more for each link.
    bench.wait(2_000_001);
    let told = bench.told.clone();
    let closed = LinkClosed { qpn, peer_qpn: PEER, reason: CLOSED_BY_DEATH, reserved: 0 };
    assert!(events(&mut bench, 1).contains(&closed.into()));
    bench.told = told;
    assert_eq!(notices(&mut bench).iter().map(|n| n.port).collect::<Vec<_>>(), [0]);
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn over_the_quota_the_engine_carries() {
    let limits = Limits { carried_links_per_vnic: 2, ..Limits::default() };
    let mut bench = bench_with(limits);
    bench.tenancy.let_processes_carry();
    bench.features |= PortNotice::FEATURE;
    hello(&mut bench, 1, 1, 0);
    let qpns: Vec<Qpn> = (0..3).map(|_| qp(&mut bench, 1, Service::Rc)).collect();
    for qpn in &qpns {
        call(&mut bench, 1, offer(*qpn));
    }
    let carried: Vec<u32> = engine_links(&bench).iter().map(|link| link.ready.carried).collect();
    assert_eq!(carried, [1, 1, 0]);
    // One is given, and there is room again.
    assert_eq!(call(&mut bench, 1, AttachLink::fresh(qpns[0], PEER)), done());
    let last = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, offer(last));
    assert_eq!(engine_links(&bench).last().map(|link| link.ready.carried), Some(1));
    bench.end(1);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_carried_link_outlives_the_daemon() {
    for policy in [Policy::default(), limited()] {
        let mut bench = bench();
        bench.tenancy.let_processes_carry();
        drop(bench.tenancy.set_policy(vnic(1), policy));
        hello(&mut bench, 1, 1, 1);
        let qpn = Qpn(900);
        keep_qp(&mut bench, 1, Service::Rc, qpn);
        let announced = ConnectQp { resume: RESUME_CARRIED, ..offer(qpn) };
        assert!(matches!(call(&mut bench, 1, announced), Some(Message::Connected(_))));
        let closed = LinkClosed { qpn, peer_qpn: PEER, reason: CLOSED_BY_DEATH, reserved: 0 };
        if policy != Policy::default() {
            assert_eq!(events(&mut bench, 1), [closed.into()]);
            bench.end(1);
            assert!(bench.tenancy.is_empty());
            continue;
        }
        assert_eq!(events(&mut bench, 1), []);
        assert_eq!(paths(&bench, 1), [(Path::Carried, PathReason::Survivor)]);
        assert_eq!(call(&mut bench, 1, port(qpn, 50_001)), done());
        assert_eq!(notices(&mut bench).len(), 1);
        let actions = bench.tenancy.set_policy(vnic(1), limited()).1;
        bench.carry_out(actions);
        assert_eq!(events(&mut bench, 1), [closed.into()], "its memory is not there");
        bench.end(1);
        assert!(bench.tenancy.is_empty());
    }
}
