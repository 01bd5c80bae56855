//! Tests vNICs of virtual machines: they share memory with no other vNIC, and report their own
//! addresses.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Arrived, Channel, MemoryFacts, Path, PathReason, SessionId};
use omniverb_terms::{Errno, Qpn, Rkey, Service};

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
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerMachine)]);
        assert_eq!(paths(&bench, 2), [(Path::Forwarded, PathReason::Machine)]);
        assert!(links(&bench).is_empty());
        let (c, d) = (qp(&mut bench, 2, service), qp(&mut bench, 3, service));
        call(&mut bench, 2, to(c, 2, d, 2));
        call(&mut bench, 3, to(d, 2, c, 2));
        assert_eq!(links(&bench).len(), 1);
        assert!(paths(&bench, 2).contains(&(Path::Direct, PathReason::SameMachine)));
        // No other process is granted its pages.
        let rkey = mr(&mut bench, 2, 1, 6);
        let ask =
            RequestGrant { qpn: a, peer_qpn: b, rkey, reserved: 0, address: 0x11000, length: 8 };
        assert_eq!(errno(call(&mut bench, 1, ask)), Errno::EOPNOTSUPP);
    }
}

/// The window is writable for all that have it: pages for WRITE are granted, those for READ only
/// are not; and none of it to the engine.
#[test]
fn processes_of_a_machine_grant_each_other_writable_pages() {
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
    // Beyond the engine no peer is granted any of it.
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

/// The network's answer about an address does not hold for every number.
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
    // Another address that the machine claims, and one that another vNIC lends it.
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
    // A probe that the machine claims to have got: from another address, it proves nothing.
    let now = bench.now;
    let _ = bench.tenancy.probe_arrived(id, (ip(3), vnic(2)), now);
    assert!(bench.tenancy.is_probe(id));
    let _ = bench.tenancy.probe_arrived(id, (ip(1), vnic(2)), now);
    assert!(!bench.tenancy.is_probe(id));
}

/// Process 2 of the machine, whose memory the daemon has, is linked with 1 by the engine and with 3
/// directly.
fn bench_in_place() -> (Bench, [Qpn; 4]) {
    let mut bench = bench_of_machine();
    bench.tenancy.set_has_memory(vnic(2), true);
    let qps = [1, 2, 2, 3].map(|session| qp(&mut bench, session, Service::Rc));
    let [outside, inside, here, there] = qps;
    call(&mut bench, 1, to(outside, 1, inside, 2));
    call(&mut bench, 2, to(inside, 2, outside, 1));
    call(&mut bench, 2, to(here, 2, there, 2));
    call(&mut bench, 3, to(there, 2, here, 2));
    bench.told.clear();
    (bench, qps)
}

fn engine_asks(bench: &mut Bench, qps: [Qpn; 4], rkey: Rkey) {
    bench.told.clear();
    let range = (0x11000, 8);
    let actions = bench.tenancy.engine_wants((qps[1], qps[0]), rkey, range, bench.now);
    bench.carry_out(actions);
}

fn pin_asked(bench: &Bench) -> Option<Pin> {
    bench.told.iter().find_map(|action| match action {
        Action::Pin { session: SessionId(2), pin, .. } => Some(*pin),
        _ => None,
    })
}

fn answer(bench: &mut Bench, from: u64, token: u64, errno: Errno, known: bool) {
    let memory = known.then_some(MemoryFacts { is_final: true, is_write_sealed: true });
    let message = Adopted { token, errno, epoch: 7 }.into();
    bench.told.clear();
    bench.say(from, &Arrived { channel: Channel::Events, tag: 0, message, memory });
}

/// Where the daemon has the machine's memory, pages stay there for the engine: also those that
/// peers may only read.
#[test]
fn pages_of_a_machine_stay_in_place_for_the_engine() {
    for access in [4, 6, 15] {
        let (mut bench, qps) = bench_in_place();
        let rkey = mr(&mut bench, 2, 1, access);
        engine_asks(&mut bench, qps, rkey);
        let pin = pin_asked(&bench).unwrap();
        assert_eq!((pin.rkey, pin.qpn, pin.start), (rkey, qps[1], 0x11000));
        let (file, bytes) = bench.tenancy.asked_to_keep(SessionId(2), pin.token).unwrap();
        assert_eq!(bytes, pin.length);
        for (session, token) in [(1, pin.token), (3, pin.token), (2, pin.token ^ 1)] {
            assert_eq!(bench.tenancy.asked_to_keep(SessionId(session), token), None);
        }
        answer(&mut bench, 2, pin.token, Errno::NONE, true);
        let granted = bench.told.iter().find_map(|action| match action {
            Action::GrantEngine { file: of, granted, .. } if *of == file => Some(*granted),
            _ => None,
        });
        let granted = granted.unwrap();
        assert_eq!((granted.access, granted.page_start, granted.epoch), (access & 14, 0x11000, 7));
        assert_eq!(bench.tenancy.asked_to_keep(SessionId(2), pin.token), None, "it is answered");
        // It is asked whether they are there still, as of others.
        engine_asks(&mut bench, qps, rkey);
        let known = bench.told.iter().any(|action| {
            matches!(action, Action::Event { message: Message::Adopt(adopt), .. }
                if adopt.fresh == 0 && adopt.start == pin.start)
        });
        assert!(known && pin_asked(&bench).is_none(), "{:?}", bench.told);
        bench.told.clear();
        call(&mut bench, 2, DeregMr { rkey, reserved: 0 });
        assert!(
            bench.told.contains(&Action::ForgetFile { file, watch: false }),
            "{:?}",
            bench.told
        );
    }
}

/// They are in one place for all: a process that cannot reach them there is served by their owner.
#[test]
fn pages_in_place_are_granted_to_the_engine_only() {
    let (mut bench, qps) = bench_in_place();
    let rkey = mr(&mut bench, 2, 1, 15);
    engine_asks(&mut bench, qps, rkey);
    let token = pin_asked(&bench).unwrap().token;
    let (qpn, peer_qpn) = (qps[3], qps[2]);
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: 0x11000, length: 8 };
    assert_eq!(errno(call(&mut bench, 3, ask)), Errno::EAGAIN, "they are on their way");
    answer(&mut bench, 2, token, Errno::NONE, true);
    assert_eq!(errno(call(&mut bench, 3, ask)), Errno::EAGAIN);
    // And the other way round.
    let rkey = mr(&mut bench, 2, 1, 15);
    let ask = RequestGrant { rkey, ..ask };
    assert!(matches!(call(&mut bench, 3, ask), Some(Message::Connected(_))));
    engine_asks(&mut bench, qps, rkey);
    assert!(pin_asked(&bench).is_none());
    let denied = bench.told.iter().any(|action| match action {
        Action::DenyEngine { denied, .. } => denied.errno == Errno::EAGAIN,
        _ => false,
    });
    assert!(denied, "{:?}", bench.told);
}

/// An owner that gives no possible answer, or none in time, grants no pages.
#[test]
fn pages_that_are_not_pinned_are_not_granted() {
    for (from, errno, known) in
        [(2, Errno::ENOMEM, false), (2, Errno::NONE, false), (3, Errno::NONE, true)]
    {
        let (mut bench, qps) = bench_in_place();
        let rkey = mr(&mut bench, 2, 1, 15);
        engine_asks(&mut bench, qps, rkey);
        let pin = pin_asked(&bench).unwrap();
        answer(&mut bench, from, pin.token, errno, known);
        let granted = |action: &Action| matches!(action, Action::GrantEngine { .. });
        assert!(!bench.told.iter().any(granted), "{:?}", bench.told);
        let waits = bench.tenancy.asked_to_keep(SessionId(2), pin.token).is_some();
        assert_eq!(waits, from == 3, "no session answers for another");
    }
    let (mut bench, qps) = bench_in_place();
    bench.tenancy.set_has_memory(vnic(2), false);
    let rkey = mr(&mut bench, 2, 1, 15);
    engine_asks(&mut bench, qps, rkey);
    assert!(pin_asked(&bench).is_none() && matches!(bench.told[..], [Action::DenyEngine { .. }]));
}

fn told_back(bench: &Bench) -> Vec<TakeBack> {
    let back = bench.told.iter().filter_map(|action| match action {
        Action::Event { session: SessionId(2), message: Message::TakeBack(back) } => Some(*back),
        _ => None,
    });
    back.collect()
}

fn denied_with(bench: &Bench) -> Vec<Errno> {
    let denied = bench.told.iter().filter_map(|action| match action {
        Action::DenyEngine { denied, .. } => Some(denied.errno),
        _ => None,
    });
    denied.collect()
}

fn in_vain(bench: &mut Bench, from: u64, token: u64, errno: Errno) {
    bench.told.clear();
    let actions = bench.tenancy.keeps_in_vain(SessionId(from), token, errno);
    bench.carry_out(actions);
}

/// The owner pays for pages that it pinned in vain: so it gets an event after each refusal.
#[test]
fn pages_pinned_in_vain_are_released() {
    // By the checker.
    for errno in [Errno::EPERM, Errno::EAGAIN, Errno::EINVAL] {
        let (mut bench, qps) = bench_in_place();
        let rkey = mr(&mut bench, 2, 1, 15);
        engine_asks(&mut bench, qps, rkey);
        let pin = pin_asked(&bench).unwrap();
        for (from, token) in [(1, pin.token), (3, pin.token), (2, pin.token ^ 1)] {
            in_vain(&mut bench, from, token, errno);
            assert!(bench.told.is_empty(), "{:?}", bench.told);
        }
        in_vain(&mut bench, 2, pin.token, errno);
        let back = told_back(&bench);
        assert!(matches!(back[..], [TakeBack { what: TAKE_EXTENT, .. }]), "{:?}", bench.told);
        assert_eq!((back[0].rkey, back[0].start), (rkey, pin.start));
        assert_eq!(denied_with(&bench), [errno]);
        engine_asks(&mut bench, qps, rkey);
        assert!(pin_asked(&bench).is_some(), "it may be asked for again");
    }
    // By an agent that passes on what it does not know.
    let (mut bench, qps) = bench_in_place();
    let rkey = mr(&mut bench, 2, 1, 15);
    engine_asks(&mut bench, qps, rkey);
    let Pin { token, start, length, .. } = pin_asked(&bench).unwrap();
    let message = Pinned { token, epoch: 7, ring: 3, start, length }.into();
    bench.told.clear();
    bench.say(2, &Arrived { channel: Channel::Events, tag: 0, message, memory: None });
    assert_eq!((told_back(&bench).len(), denied_with(&bench)), (1, vec![Errno::EOPNOTSUPP]));
    let dropped = |action: &Action| matches!(action, Action::Drop { .. });
    assert!(!bench.told.iter().any(dropped), "{:?}", bench.told);
}

/// An owner that answers an abandoned question has pinned the pages all the same.
#[test]
fn pages_pinned_too_late_are_released() {
    let (mut bench, qps) = bench_in_place();
    let rkey = mr(&mut bench, 2, 1, 15);
    engine_asks(&mut bench, qps, rkey);
    let pin = pin_asked(&bench).unwrap();
    bench.told.clear();
    let late = bench.tenancy.next_deadline().unwrap();
    bench.now = late;
    let actions = bench.tenancy.tick(late);
    bench.carry_out(actions);
    assert_eq!((denied_with(&bench), told_back(&bench).len()), (vec![Errno::ETIMEDOUT], 0));
    assert_eq!(bench.tenancy.asked_to_keep(SessionId(2), pin.token), None);
    in_vain(&mut bench, 2, pin.token, Errno::ETIMEDOUT);
    assert_eq!((told_back(&bench).len(), denied_with(&bench).len()), (1, 0));
    in_vain(&mut bench, 2, pin.token, Errno::ETIMEDOUT);
    assert!(bench.told.is_empty(), "once");
}

/// The owner releases pages that the engine has no room to map, and it may be asked for them again.
#[test]
fn pages_that_the_engine_cannot_map_are_released() {
    let (mut bench, qps) = bench_in_place();
    let rkey = mr(&mut bench, 2, 1, 15);
    engine_asks(&mut bench, qps, rkey);
    let pin = pin_asked(&bench).unwrap();
    let cannot = |bench: &mut Bench, ends, start| {
        bench.told.clear();
        let actions = bench.tenancy.engine_cannot_map(ends, rkey, start);
        bench.carry_out(actions);
        let forgotten = |action: &&Action| matches!(action, Action::ForgetFile { .. });
        (told_back(bench).len(), bench.told.iter().filter(forgotten).count())
    };
    let ends = (qps[1], qps[0]);
    assert_eq!(cannot(&mut bench, ends, pin.start), (0, 0), "it is not there yet");
    answer(&mut bench, 2, pin.token, Errno::NONE, true);
    let granted = |action: &Action| matches!(action, Action::GrantEngine { .. });
    assert!(bench.told.iter().any(granted), "{:?}", bench.told);
    for (ends, start) in [((qps[0], qps[1]), pin.start), ((qps[2], qps[3]), pin.start), (ends, 0)] {
        assert_eq!(cannot(&mut bench, ends, start), (0, 0), "nothing of that link's is there");
    }
    assert_eq!(cannot(&mut bench, ends, pin.start), (1, 1));
    assert_eq!(cannot(&mut bench, ends, pin.start), (0, 0), "once");
    engine_asks(&mut bench, qps, rkey);
    assert!(pin_asked(&bench).is_some(), "it may be asked for again");
}

/// Where pages lie apart from each other in the machine's memory, less of them is asked for.
#[test]
fn scattered_pages_are_asked_for_in_small_parts() {
    let (mut bench, qps) = bench_in_place();
    let (addr, length) = (0x10800, 64 << 20);
    let large = RegMr { pd: 1, access: 15, addr, length, rkey: Rkey(0), reserved: 0 };
    let answer = call(&mut bench, 2, large);
    let Some(Message::MrRegistered(MrRegistered { rkey, .. })) = answer else {
        panic!("{answer:?}")
    };
    engine_asks(&mut bench, qps, rkey);
    let first = pin_asked(&bench).unwrap();
    assert!(first.length > 1 << 20);
    in_vain(&mut bench, 2, first.token, Errno::E2BIG);
    assert_eq!((denied_with(&bench), told_back(&bench).len()), (vec![Errno::EAGAIN], 1));
    engine_asks(&mut bench, qps, rkey);
    let second = pin_asked(&bench).unwrap();
    assert!(second.length <= 1 << 20 && second.length > 0, "{second:?}");
    in_vain(&mut bench, 2, second.token, Errno::E2BIG);
    assert_eq!(denied_with(&bench), [Errno::ENOMEM], "that is no reason");
}
