//! Tests claims of another process's numbers after the daemon was restarted.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::PathReason;
use omniverb_tenancy::testing::random_driver::Bench;
use omniverb_terms::{Errno, Qpn, Rkey, Service};
use proptest::prelude::*;

/// A new process gets no number of a survivor that may still announce itself.
#[test]
fn a_new_daemon_gives_no_number_of_a_survivor() {
    let mut bench = bench();
    bench.tenancy.count(Some(3));
    hello(&mut bench, 1, 1, 0);
    for _ in 0..100 {
        let number = qp(&mut bench, 1, Service::Rc);
        assert!(number >= Qpn(0x00c0_0000), "{number} may be in use");
    }
    bench.wait(31_000_000_000);
    assert!(qp(&mut bench, 1, Service::Rc) < Qpn(0x00c0_0000));
}

const A: Qpn = Qpn(900);
const B: Qpn = Qpn(800);

fn survived(qpn: Qpn, from: u64, peer: Qpn, to_vnic: u64) -> ConnectQp {
    ConnectQp { resume: RESUME_LINK, ..to(qpn, from, peer, to_vnic) }
}

fn closed(qpn: Qpn, peer_qpn: Qpn, reason: u32) -> Message {
    LinkClosed { qpn, peer_qpn, reason, reserved: 0 }.into()
}

/// The owners of A (vNIC 1) and B (vNIC 2) as sessions 1 and 2, and a liar: session 3, vNIC 3.
fn three() -> Bench {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 1);
    }
    bench
}

fn both_come_back(bench: &mut Bench) {
    assert!(matches!(keep_qp(bench, 1, Service::Rc, A), Some(Message::QpCreated(_))));
    call(bench, 1, survived(A, 1, B, 2));
    assert!(matches!(keep_qp(bench, 2, Service::Rc, B), Some(Message::QpCreated(_))));
    call(bench, 2, survived(B, 2, A, 1));
}

fn is_recorded(bench: &Bench) -> bool {
    let status = bench.tenancy.status(None);
    let qps = status.iter().flat_map(|v| &v.processes).flat_map(|p| &p.qps);
    let peers = qps.flat_map(|qp| qp.peers.iter().map(|peer| (qp.qpn, peer.qpn, peer.why)));
    let found: Vec<_> = peers.filter(|(.., why)| *why == PathReason::Survivor).collect();
    found.contains(&(A, B, PathReason::Survivor)) && found.contains(&(B, A, PathReason::Survivor))
}

#[test]
fn a_number_without_its_ticket_is_refused_and_blocks_no_owner() {
    let mut bench = three();
    let stolen = bench.claim(1, Service::Rc, A, 1);
    let mut forged = stolen;
    forged.ticket[3] ^= 1;
    let later = CreateQp { issued: 2, ..stolen };
    let other_type = CreateQp { qp_type: Service::Ud.qp_type(), ..stolen };
    let other_number = CreateQp { qpn: Qpn(A.0 + 1), ..stolen };
    for claim in [stolen, CreateQp { qpn: B, ..create_qp(Service::Rc) }] {
        assert_eq!(errno(call(&mut bench, 3, claim)), Errno::EPERM, "in another vNIC");
    }
    for claim in [forged, later, other_type, other_number] {
        assert_eq!(errno(call(&mut bench, 1, claim)), Errno::EPERM);
    }
    both_come_back(&mut bench);
    assert!(is_recorded(&bench));
    // Another user of the same vNIC.
    let holder = omniverb_fairness::Holder::new("/tenants/1", 5);
    let stranger = omniverb_tenancy::Client {
        vnic: omniverb_tenancy::testing::random_driver::vnic(1),
        pid: 1,
        uid: 5,
        circle: None,
        holder,
    };
    bench.tenancy.open(omniverb_tenancy::SessionId(9), stranger);
    let again = Hello { role: ROLE_VERBS, resume: 1, name: [0; 16] };
    assert!(matches!(call(&mut bench, 9, again), Some(Message::Welcome(_))));
    let never_had = bench.claim(1, Service::Rc, Qpn(555), 1);
    assert_eq!(errno(call(&mut bench, 9, never_had)), Errno::EPERM);
}

#[test]
fn a_number_of_a_vnic_that_is_gone_proves_nothing_in_the_next() {
    let mut bench = three();
    bench.introduce(1, 11);
    let claim = bench.claim(1, Service::Rc, A, 1);
    bench.introduce(1, 12);
    assert_eq!(errno(call(&mut bench, 1, claim)), Errno::EPERM);
}

#[test]
fn naming_a_victim_as_peer_neither_ends_nor_takes_its_link() {
    let mut bench = three();
    // The liar has a number of its own from before, and a new one.
    keep_qp(&mut bench, 3, Service::Rc, Qpn(700));
    keep_qp(&mut bench, 3, Service::Ud, Qpn(701));
    let new = qp(&mut bench, 3, Service::Rc);
    let lie = |bench: &mut Bench| {
        for (qpn, victim, at) in [(700, A, 1), (701, B, 2), (701, A, 1)] {
            call(bench, 3, survived(Qpn(qpn), 3, victim, at));
        }
        let unproved = survived(new, 3, A, 1);
        assert_eq!(errno(call(bench, 3, unproved)), Errno::EPERM, "it cannot have had a link");
    };
    lie(&mut bench);
    both_come_back(&mut bench);
    lie(&mut bench);
    bench.told.clear();
    bench.wait(6_000_000_000);
    let copy = bench.told.clone();
    assert_eq!(events(&mut bench, 1), []);
    bench.told = copy;
    assert_eq!(events(&mut bench, 2), []);
    for peer in [A, B] {
        call(&mut bench, 3, DisconnectQp { qpn: Qpn(701), peer_qpn: peer });
        call(&mut bench, 3, DisconnectQp { qpn: Qpn(700), peer_qpn: peer });
    }
    bench.end(3);
    assert!(is_recorded(&bench));
    bench.told.clear();
    call(&mut bench, 1, DisconnectQp { qpn: A, peer_qpn: B });
    assert_eq!(events(&mut bench, 2), [closed(B, A, CLOSED_BY_PEER)]);
}

#[test]
fn the_later_owner_of_a_number_has_it() {
    // Session 4 had A before session 1, in the same vNIC, and kept the ticket.
    let mut bench = bench();
    for (session, vnic) in [(1, 1), (2, 2), (4, 1)] {
        hello(&mut bench, session, vnic, 1);
    }
    let old = bench.claim(4, Service::Rc, A, 1);
    assert!(matches!(call(&mut bench, 4, old), Some(Message::QpCreated(_))));
    call(&mut bench, 4, survived(A, 1, B, 2));
    keep_qp(&mut bench, 2, Service::Rc, B);
    call(&mut bench, 2, survived(B, 2, A, 1));
    assert!(is_recorded(&bench), "no record says otherwise");
    bench.told.clear();
    let right = bench.claim(1, Service::Rc, A, 2);
    assert!(matches!(call(&mut bench, 1, right), Some(Message::QpCreated(_))));
    assert!(!is_recorded(&bench));
    call(&mut bench, 1, survived(A, 1, B, 2));
    assert!(is_recorded(&bench));
    bench.wait(6_000_000_000);
    assert_eq!(events(&mut bench, 2), [], "it never heard of all this");
    let gone = DisconnectQp { qpn: A, peer_qpn: Qpn(0) };
    assert_eq!(errno(call(&mut bench, 4, gone)), Errno::ENOENT);
    // And not the other way round.
    assert_eq!(errno(call(&mut bench, 4, old)), Errno::EADDRINUSE);
    for session in [1, 2, 4] {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_peer_of_an_owner_that_stays_away_is_told() {
    let mut bench = three();
    keep_qp(&mut bench, 1, Service::Rc, A);
    call(&mut bench, 1, survived(A, 1, B, 2));
    let lie = bench.claim(3, Service::Rc, B, 1);
    assert!(matches!(call(&mut bench, 3, lie), Some(Message::QpCreated(_))), "its own B");
    call(&mut bench, 3, survived(B, 3, A, 1));
    bench.told.clear();
    bench.wait(6_000_000_000);
    assert!(!is_recorded(&bench));
    assert_eq!(events(&mut bench, 1), [closed(A, B, CLOSED_BY_DEATH)]);
}

#[test]
fn keys_are_a_session_s_own() {
    let mut bench = three();
    let key = RegMr { pd: 1, access: 7, addr: 0, length: 4096, rkey: Rkey(77), reserved: 0 };
    for session in [3, 1, 2] {
        let kept = Some(MrRegistered { rkey: Rkey(77), reserved: 0 }.into());
        assert_eq!(call(&mut bench, session, key), kept);
    }
    both_come_back(&mut bench);
    // Named through B it is session 2's, even if others have one of that number.
    bench.told.clear();
    let ask =
        RequestGrant { qpn: A, peer_qpn: B, rkey: Rkey(77), reserved: 0, address: 0, length: 8 };
    call(&mut bench, 1, ask);
    assert!(matches!(events(&mut bench, 2).as_slice(), [Message::Adopt(_)]));
}

#[test]
fn after_the_window_no_announcement_is_accepted() {
    let mut bench = three();
    keep_qp(&mut bench, 1, Service::Rc, A);
    bench.wait(31_000_000_000);
    assert_eq!(errno(call(&mut bench, 1, survived(A, 1, B, 2))), Errno::EPERM);
    assert_eq!(errno(keep_qp(&mut bench, 2, Service::Rc, B)), Errno::EPERM);
    // Existing links work on.
    assert!(matches!(call(&mut bench, 1, to(A, 1, B, 2)), Some(Message::Connected(_))));
}

/// Messages that a liar in vNIC 3 may send.
fn lies() -> impl Strategy<Value = Vec<(u8, Message)>> {
    let number = prop_oneof![Just(A), Just(B), Just(Qpn(700)), Just(Qpn(701))];
    let own = prop_oneof![Just(Qpn(700)), Just(Qpn(701))];
    let at = (1u64..4).prop_map(gid);
    let ticket = any::<u8>().prop_map(|byte| [byte; 16]);
    let message = prop_oneof![
        (number.clone(), ticket, any::<u64>(), 2u32..5).prop_map(
            |(qpn, ticket, issued, qp_type)| {
                CreateQp { qp_type, qpn, issued, ticket, ..create_qp(Service::Rc) }.into()
            }
        ),
        (own.clone(), number.clone(), at, 0u32..3).prop_map(|(qpn, dest_qpn, dgid, resume)| {
            ConnectQp { qpn, dest_qpn, sgid: gid(3), dgid, resume, carries: 0 }.into()
        }),
        (own.clone(), number.clone())
            .prop_map(|(qpn, peer_qpn)| DisconnectQp { qpn, peer_qpn }.into()),
        own.prop_map(|qpn| DestroyQp { qpn, reserved: 0 }.into()),
        (number.clone(), number).prop_map(|(qpn, peer_qpn)| DisconnectQp { qpn, peer_qpn }.into()),
    ];
    proptest::collection::vec((0u8..4, message), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_link_survives_any_lies(lies in lies(), own in any::<bool>()) {
        let mut bench = three();
        if own {
            keep_qp(&mut bench, 3, Service::Rc, Qpn(700));
            keep_qp(&mut bench, 3, Service::Ud, Qpn(701));
        }
        // A quarter each: before any process, between the two, after both, and later.
        let lie = |bench: &mut Bench, part: u8| {
            for (_, message) in lies.iter().filter(|(when, _)| *when == part) {
                call(bench, 3, message.clone());
            }
        };
        lie(&mut bench, 0);
        keep_qp(&mut bench, 1, Service::Rc, A);
        call(&mut bench, 1, survived(A, 1, B, 2));
        lie(&mut bench, 1);
        keep_qp(&mut bench, 2, Service::Rc, B);
        call(&mut bench, 2, survived(B, 2, A, 1));
        lie(&mut bench, 2);
        prop_assert!(is_recorded(&bench));
        bench.wait(6_000_000_000);
        lie(&mut bench, 3);
        bench.end(3);
        prop_assert!(is_recorded(&bench));
        let told = bench.told.clone();
        for session in [1, 2] {
            bench.told = told.clone();
            let heard = events(&mut bench, session);
            let closed = |m: &Message| matches!(m, Message::LinkClosed(_));
            prop_assert!(!heard.iter().any(closed), "{heard:?}");
        }
    }
}
