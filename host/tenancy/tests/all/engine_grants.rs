//! Grants to the engine: for peers beyond a link that ends there.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, Arrived, Channel, Limits, MemoryFacts};
use omniverb_terms::{Errno, Qpn, Rkey, Service};

/// vNIC number 4 of the bench is another Omniverb's.
const OTHER: u64 = 4;
const PEER: Qpn = Qpn(77);
const WRITE: u32 = 2;
const READ: u32 = 4;
const SEALED: MemoryFacts = MemoryFacts { is_final: true, is_write_sealed: true };

/// A process, number 1, whose queue pair is linked with a peer beyond the engine.
fn wired(limits: Limits, service: Service) -> (Bench, Qpn) {
    let mut bench = bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let a = qp(&mut bench, 1, service);
    call(&mut bench, 1, to(a, 1, PEER, OTHER));
    assert_eq!(engine_links(&bench).len(), 1);
    (bench, a)
}

/// The engine asks; the token that the owner was asked with, if it was.
fn want(bench: &mut Bench, qpn: Qpn, peer_qpn: Qpn, key: Rkey) -> Option<u64> {
    bench.told.clear();
    let range = (0x11008, 8);
    let actions = bench.tenancy.engine_wants((qpn, peer_qpn), key, range, bench.now);
    bench.carry_out(actions);
    match bench.told.as_slice() {
        [] | [Action::DenyEngine { .. }] => None,
        [
            Action::Event { session, message: Message::Adopt(adopt) }
            | Action::Adopt { session, adopt, .. },
        ] => {
            assert_eq!((session.0, adopt.rkey, adopt.qpn), (1, key, qpn));
            Some(adopt.token)
        }
        other => panic!("{other:?}"),
    }
}

fn adopted(token: u64) -> Adopted {
    Adopted { token, errno: Errno::NONE, epoch: 0 }
}

fn adopt(bench: &mut Bench, from: u64, adopted: Adopted, memory: MemoryFacts) -> Vec<Action> {
    bench.told.clear();
    let (message, memory) = (adopted.into(), Some(memory));
    bench.say(from, &Arrived { channel: Channel::Events, tag: 0, message, memory });
    bench.told.clone()
}

#[test]
fn the_engine_gets_what_a_peer_would_get() {
    for service in [Service::Rc, Service::Uc] {
        let (mut bench, a) = wired(Limits::default(), service);
        let key = mr(&mut bench, 1, 1, READ | WRITE);
        let token = want(&mut bench, a, PEER, key).unwrap();
        assert!(adopt(&mut bench, 2, adopted(token), SEALED).is_empty(), "not the owner");
        let actions = adopt(&mut bench, 1, adopted(token), SEALED);
        let [Action::GrantEngine { vnic: granting_vnic, granted, .. }] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        assert_eq!((*granting_vnic, granted.qpn, granted.peer_qpn), (vnic(1), a, PEER));
        assert_eq!((granted.rkey, granted.access), (key, READ | WRITE));
        assert_eq!((granted.page_start, granted.memory.length), (0x11000, 0x2000));
        assert!(adopt(&mut bench, 1, adopted(token), SEALED).is_empty(), "only once");
        // Pages beyond the engine cannot be requested here.
        let grant = RequestGrant {
            qpn: a,
            peer_qpn: PEER,
            rkey: key,
            reserved: 0,
            address: 0x11000,
            length: 8,
        };
        assert_eq!(errno(call(&mut bench, 1, grant)), Errno::EOPNOTSUPP);
        bench.end(1);
        bench.end(2);
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn pages_that_the_peer_may_not_reach_are_not_requested() {
    let (mut bench, a) = wired(Limits::default(), Service::Rc);
    let key = mr(&mut bench, 1, 1, READ);
    let (foreign, local) = (mr(&mut bench, 1, 9, READ), mr(&mut bench, 1, 1, 1));
    let others = mr(&mut bench, 2, 1, READ);
    for key in [foreign, local, others, Rkey(key.0 ^ 1)] {
        assert_eq!(want(&mut bench, a, PEER, key), None);
    }
    assert_eq!(want(&mut bench, a, Qpn(78), key), None, "no such link");
    assert_eq!(want(&mut bench, Qpn(a.0 ^ 1), PEER, key), None, "no such queue pair");
    let (mut bench, datagrams) = wired(Limits::default(), Service::Ud);
    let key = mr(&mut bench, 1, 1, READ);
    assert_eq!(want(&mut bench, datagrams, PEER, key), None);
    // A direct link is not the engine's.
    let (c, d) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(c, 1, d, 2));
    call(&mut bench, 2, to(d, 2, c, 1));
    assert_eq!(want(&mut bench, c, d, key), None);
}

#[test]
fn an_owners_answer_is_checked() {
    let (mut bench, a) = wired(Limits::default(), Service::Rc);
    let key = mr(&mut bench, 1, 1, READ);
    for (answer, memory) in [
        (Adopted { errno: Errno(12), ..adopted(0) }, SEALED),
        (adopted(0), MemoryFacts { is_write_sealed: false, ..SEALED }),
        (adopted(0), MemoryFacts { is_final: false, ..SEALED }),
    ] {
        let token = want(&mut bench, a, PEER, key).unwrap();
        let actions = adopt(&mut bench, 1, Adopted { token, ..answer }, memory);
        let [freed, Action::DenyEngine { .. }] = actions.as_slice() else { panic!("{actions:?}") };
        assert!(is_freed(freed), "{freed:?}");
    }
    let token = want(&mut bench, a, PEER, key).unwrap();
    call(&mut bench, 1, DeregMr { rkey: key, reserved: 0 });
    let actions = adopt(&mut bench, 1, adopted(token), SEALED);
    assert!(matches!(actions.as_slice(), [Action::DenyEngine { .. }]), "deregistered meanwhile");
}

#[test]
fn a_question_ends_with_its_link() {
    let (mut bench, a) = wired(Limits::default(), Service::Rc);
    let key = mr(&mut bench, 1, 1, READ);
    let token = want(&mut bench, a, PEER, key).unwrap();
    call(&mut bench, 1, DisconnectQp { qpn: a, peer_qpn: Qpn(0) });
    call(&mut bench, 1, to(a, 1, PEER, OTHER));
    let old = adopt(&mut bench, 1, adopted(token), SEALED);
    assert!(old.is_empty(), "asked for the link before this one");
    let token = want(&mut bench, a, PEER, key).unwrap();
    assert_eq!(adopt(&mut bench, 1, adopted(token), SEALED).len(), 1);
    let token = want(&mut bench, a, PEER, key).unwrap();
    bench.wait(2_000_000_000);
    assert!(adopt(&mut bench, 1, adopted(token), SEALED).is_empty(), "too late");
    want(&mut bench, a, PEER, key).unwrap();
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn requests_to_a_process_are_bounded() {
    let (mut bench, a) = wired(Limits { grants_per_session: 3, ..Limits::default() }, Service::Rc);
    let keys: Vec<Rkey> = (0..5).map(|_| mr(&mut bench, 1, 1, READ)).collect();
    let tokens: Vec<u64> = (0..3).filter_map(|n| want(&mut bench, a, PEER, keys[n])).collect();
    assert_eq!(tokens.len(), 3);
    assert_eq!(want(&mut bench, a, PEER, keys[3]), None);
    adopt(&mut bench, 1, adopted(tokens[1]), SEALED);
    assert!(want(&mut bench, a, PEER, keys[3]).is_some());
    assert_eq!(want(&mut bench, a, PEER, keys[4]), None);
}
