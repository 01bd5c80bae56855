//! vNICs of virtual machines: they share memory with nobody else, and say themselves what addresses
//! they have.

use crate::support::*;
use omniverb_session::body::*;
use omniverb_tenancy::testing::exercise::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Arrived, Channel, MemoryFacts, Path, SessionId, Why};
use omniverb_terms::{Errno, Qpn, Service};

/// vNIC 2 is a machine's, which says that it has address 5 as well.
fn bench_of_machine() -> Bench {
    let mut bench = bench_of_machines(&[2]);
    bench.moved.insert(5, 2);
    for (session, number) in [(1, 1), (2, 2), (3, 2), (4, 3)] {
        hello(&mut bench, session, number, 0);
    }
    bench
}

#[test]
fn a_machine_is_reached_by_the_engine_and_its_processes_reach_each_other_directly() {
    for service in [Service::Rc, Service::Uc] {
        let mut bench = bench_of_machine();
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 2, service));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        let made = engine_links(&bench);
        assert!(made.len() == 2 && made.iter().all(|link| link.within.is_some()), "{made:?}");
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, Why::PeerMachine)]);
        assert_eq!(paths(&bench, 2), [(Path::Forwarded, Why::Machine)]);
        assert!(links(&bench).is_empty());
        let (c, d) = (qp(&mut bench, 2, service), qp(&mut bench, 3, service));
        call(&mut bench, 2, to(c, 2, d, 2));
        call(&mut bench, 3, to(d, 2, c, 2));
        assert_eq!(links(&bench).len(), 1);
        assert!(paths(&bench, 2).contains(&(Path::Direct, Why::SameMachine)));
        // Nobody else is granted its pages.
        let rkey = mr(&mut bench, 2, 1, 6);
        let ask =
            RequestGrant { qpn: a, peer_qpn: b, rkey, reserved: 0, address: 0x11000, length: 8 };
        assert_eq!(errno(call(&mut bench, 1, ask)), Errno::EOPNOTSUPP);
    }
}

/// The window is writable for all who have it: what may be written is granted, what may only be
/// read is not; and nothing of it to the engine.
#[test]
fn processes_of_a_machine_grant_each_other_what_may_be_written() {
    let mut bench = bench_of_machine();
    let (a, b) = (qp(&mut bench, 2, Service::Rc), qp(&mut bench, 3, Service::Rc));
    call(&mut bench, 2, to(a, 2, b, 2));
    call(&mut bench, 3, to(b, 2, a, 2));
    let mut ask = |access: u32| {
        let rkey = mr(&mut bench, 3, 1, access);
        bench.told.clear();
        let (qpn, peer_qpn) = (a, b);
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11000, length: 8 };
        let answer = call(&mut bench, 2, ask);
        let adopt = bench.told.iter().find_map(|action| match action {
            Action::Adopt { session, adopt, new_file, .. } if session.0 == 3 => {
                Some((*adopt, *new_file))
            }
            _ => None,
        });
        (answer, adopt)
    };
    for access in [4, 12] {
        let (answer, adopt) = ask(access);
        assert_eq!((errno(answer), adopt), (Errno::EACCES, None), "{access}");
    }
    let (answer, adopt) = ask(15);
    assert_eq!(answer, Some(Connected { qpn: a, ready: 0 }.into()));
    let (adopt, new_file) = adopt.unwrap();
    assert_eq!(new_file, Some(adopt.memory.length));
    // As a window is.
    let memory = Some(MemoryFacts { is_final: true, is_write_sealed: false });
    let message = Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into();
    bench.say(3, &Arrived { channel: Channel::Events, tag: 0, message, memory });
    let granted = bench.told.iter().find_map(|action| match action {
        Action::Grant { session, granted, .. } if session.0 == 2 => Some(granted.access),
        _ => None,
    });
    assert_eq!(granted, Some(14));
    // Beyond the engine nobody is granted any of it.
    let outside = qp(&mut bench, 1, Service::Rc);
    let c = qp(&mut bench, 3, Service::Rc);
    call(&mut bench, 1, to(outside, 1, c, 2));
    call(&mut bench, 3, to(c, 2, outside, 1));
    assert!(engine_links(&bench).len() > 1);
    let rkey = adopt.rkey;
    bench.told.clear();
    let actions = bench.tenancy.engine_wants((c, outside), rkey, (0x11000, 8), bench.now);
    bench.carry_out(actions);
    let denied = match bench.told.as_slice() {
        [Action::DenyEngine { denied, .. }] => denied.errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(denied, Errno::EOPNOTSUPP);
}

/// What the network says of an address is not said of every number.
#[test]
fn an_address_of_one_vnic_leads_to_no_queue_pair_of_another() {
    for service in [Service::Rc, Service::Uc] {
        let mut bench = bench_of_machine();
        let (own, other) = (qp(&mut bench, 2, service), qp(&mut bench, 4, service));
        let victim = qp(&mut bench, 1, service);
        let answer = call(&mut bench, 2, to(own, 2, victim, 3));
        assert_eq!(answer, Some(Connected { qpn: own, ready: 0 }.into()));
        assert!(engine_links(&bench).is_empty());
        call(&mut bench, 2, to(own, 2, other, 3));
        assert_eq!(engine_links(&bench).len(), 1, "{service:?}");
    }
}

/// Says what a datagram queue pair of the machine wants, and what it is asked for that.
fn asks(bench: &mut Bench, from: u64, qpn: Qpn, peer: Qpn) -> Vec<Action> {
    let message = to(qpn, from, peer, 1).into();
    let arrived = Arrived { channel: Channel::Calls, tag: 5, message, memory: None };
    bench.tenancy.handle(SessionId(2), &arrived, bench.now)
}

#[test]
fn a_probe_of_a_machine_proves_the_address_that_it_came_from_and_no_other() {
    let mut bench = bench_of_machine();
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let (there, now) = (vnic(1), bench.now);
    let actions = asks(&mut bench, 5, b, a);
    let [Action::Probe { id, source, .. }, Action::Reply { .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(source, Some(ip(5)));
    // Another address that the machine says it has, and one that somebody else lends it.
    for other in [2, 3] {
        let actions = bench.tenancy.probe_arrived(id, (ip(other), there), now);
        assert!(!actions.iter().any(|action| matches!(action, Action::ForgetProbe { .. })));
    }
    assert!(bench.tenancy.is_probe(id));
    let actions = bench.tenancy.probe_arrived(id, (ip(5), there), now);
    assert!(matches!(actions[..], [Action::ForgetProbe { .. }]), "{actions:?}");
    // By its other address the network is asked again.
    let actions = asks(&mut bench, 2, b, a);
    let [Action::Probe { source, .. }, ..] = actions[..] else { panic!("{actions:?}") };
    assert_eq!(source, Some(ip(2)));
}

#[test]
fn others_are_asked_for_all_of_their_addresses_at_once() {
    let mut bench = bench_of_machine();
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let message = to(a, 1, b, 2).into();
    let arrived = Arrived { channel: Channel::Calls, tag: 5, message, memory: None };
    let actions = bench.tenancy.handle(SessionId(1), &arrived, bench.now);
    let [Action::Probe { id, source: None, .. }, ..] = actions[..] else { panic!("{actions:?}") };
    // What the machine says it got: from another address, it is nobody's.
    let now = bench.now;
    let _ = bench.tenancy.probe_arrived(id, (ip(3), vnic(2)), now);
    assert!(bench.tenancy.is_probe(id));
    let _ = bench.tenancy.probe_arrived(id, (ip(1), vnic(2)), now);
    assert!(!bench.tenancy.is_probe(id));
}
