//! Tests that uninvited direct datagram links take no other's place.

use crate::support::{self, *};
use omniverb_fairness::Holder;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::Limits;
use omniverb_tenancy::testing::random_driver::Bench;
use omniverb_terms::{Errno, Qpn, Service};

/// The vNICs of the bench: the victim, the flooder, a third.
const VICTIM: u64 = 2;
const NASTY: u64 = 1;
const HONEST: u64 = 3;

fn hello_as(bench: &mut Bench, session: u64, vnic: u64, holder: &str) {
    bench.open_as(session, vnic, &Holder::new(holder, 0));
    let answer = call(bench, session, Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] });
    assert!(matches!(answer, Some(Message::Welcome(_))), "{answer:?}");
}

/// Opens a link from a new queue pair of a session; its number if it could be made.
fn opens(bench: &mut Bench, session: u64, from: u64, victim: Qpn) -> Result<Qpn, Errno> {
    let qpn = qp(bench, session, Service::Ud);
    match call(bench, session, to(qpn, from, victim, VICTIM)) {
        Some(Message::Connected(Connected { ready: 1, .. })) => Ok(qpn),
        other => Err(errno(other)),
    }
}

fn closed(bench: &mut Bench, session: u64) -> Vec<(Qpn, Qpn)> {
    let told = events(bench, session);
    let ends = told.into_iter().filter_map(|message| match message {
        Message::LinkClosed(closed) => Some((closed.qpn, closed.peer_qpn)),
        _ => None,
    });
    ends.collect()
}

/// Processes of one tenant, each for itself in a cgroup, fill what they get.
fn flood(bench: &mut Bench, sessions: std::ops::Range<u64>, victim: Qpn) -> Vec<Qpn> {
    let mut made = Vec::new();
    for session in sessions {
        hello_as(bench, session, NASTY, &format!("/tenants/nasty/{session}"));
        for _ in 0..10 {
            match opens(bench, session, NASTY, victim) {
                Ok(qpn) => made.push(qpn),
                Err(errno) => assert_eq!(errno, Errno::ENOMEM),
            }
        }
    }
    made
}

fn end_all(bench: &mut Bench) {
    for session in 0..200 {
        bench.end(session);
    }
    assert!(bench.mirror.is_empty() && bench.tenancy.is_empty());
}

#[test]
fn a_vnic_that_fills_a_processs_links_makes_way() {
    let mut bench = support::bench_with(Limits { links_per_session: 20, ..Limits::default() });
    hello(&mut bench, 2, VICTIM, 0);
    let victim = qp(&mut bench, 2, Service::Ud);
    let _ = flood(&mut bench, 100..104, victim);
    // Others get what they need, until they would have as many.
    hello(&mut bench, 3, HONEST, 0);
    for count in 0..5 {
        assert!(opens(&mut bench, 3, HONEST, victim).is_ok(), "{count}");
    }
    assert_eq!(opens(&mut bench, 3, HONEST, victim), Err(Errno::ENOMEM));
    assert_eq!(closed(&mut bench, 3), [], "no other takes it from them");
    assert_eq!(opens(&mut bench, 100, NASTY, victim), Err(Errno::ENOMEM));
    assert_eq!(closed(&mut bench, 3), []);
    end_all(&mut bench);
}

#[test]
fn a_vnic_that_fills_anothers_links_makes_way() {
    let mut bench = support::bench_with(Limits { links_per_vnic: 40, ..Limits::default() });
    let mut victims = Vec::new();
    for session in [20, 21, 22] {
        hello(&mut bench, session, VICTIM, 0);
        victims.push(qp(&mut bench, session, Service::Ud));
    }
    let limits = [(200, 0), (201, 1), (202, 2)];
    for (session, victim) in limits {
        hello_as(&mut bench, session, NASTY, "/tenants/nasty");
        for _ in 0..15 {
            let _ = opens(&mut bench, session, NASTY, victims[victim]);
        }
    }
    hello(&mut bench, 3, HONEST, 0);
    for victim in &victims {
        assert!(opens(&mut bench, 3, HONEST, *victim).is_ok());
    }
    // And the vNIC's own, between its processes.
    for _ in 0..10 {
        let (a, b) = (qp(&mut bench, 20, Service::Rc), qp(&mut bench, 21, Service::Rc));
        call(&mut bench, 20, to(a, VICTIM, b, VICTIM));
        call(&mut bench, 21, to(b, VICTIM, a, VICTIM));
        assert!(links(&bench).iter().any(|(one, _)| one.ready.qpn == a.min(b)), "no link");
    }
    for session in limits {
        bench.end(session.0);
    }
    end_all(&mut bench);
}

#[test]
fn links_that_were_asked_for_never_fail_for_others() {
    let mut bench = support::bench_with(Limits { links_per_session: 8, ..Limits::default() });
    hello(&mut bench, 2, VICTIM, 0);
    let victim = qp(&mut bench, 2, Service::Ud);
    let nasty = flood(&mut bench, 100..103, victim);
    bench.told.clear();
    // Within itself: two ends each.
    for count in 1..=4 {
        let (a, b) = (qp(&mut bench, 2, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 2, to(a, VICTIM, b, VICTIM));
        call(&mut bench, 2, to(b, VICTIM, a, VICTIM));
        assert_eq!(links(&bench).len(), count);
    }
    let told = bench.told.clone();
    let lost = closed(&mut bench, 2);
    assert!(lost.iter().all(|(qpn, peer)| *qpn == victim && nasty.contains(peer)));
    bench.told = told;
    let known: Vec<_> = (100..103)
        .flat_map(|session| {
            let told = bench.told.clone();
            let ends = closed(&mut bench, session);
            bench.told = told;
            ends
        })
        .collect();
    assert_eq!((lost.len(), known.len()), (4, 4), "both ends are told");
    // Nothing is left for others then, nor for itself.
    assert_eq!(opens(&mut bench, 100, NASTY, victim), Err(Errno::ENOMEM));
    assert_eq!(errno(call(&mut bench, 2, to(victim, VICTIM, Qpn(0x700), 9))), Errno::ENOMEM);
    end_all(&mut bench);
}

#[test]
fn links_to_the_engine_that_were_asked_for_do_not_fail_either() {
    let mut bench = support::bench_with(Limits { links_per_session: 8, ..Limits::default() });
    hello(&mut bench, 2, VICTIM, 0);
    let (victim, own) = (qp(&mut bench, 2, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let _ = flood(&mut bench, 100..103, victim);
    for peer in 0..8 {
        let answer = call(&mut bench, 2, to(own, VICTIM, Qpn(0x700 + peer), 9));
        assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
    }
    assert_eq!((engine_links(&bench).len(), detached(&bench).len()), (8, 0));
    end_all(&mut bench);
}

#[test]
fn where_the_hosts_links_are_few_those_that_were_asked_for_do_not_fail_either() {
    for own in [Service::Ud, Service::Rc] {
        let mut bench = support::bench_with(Limits { links: 48, ..Limits::default() });
        hello(&mut bench, 2, VICTIM, 0);
        let victim = qp(&mut bench, 2, Service::Ud);
        let made = flood(&mut bench, 100..104, victim).len();
        assert_eq!(made, 16, "as many are left for others");
        // Others grow: the victim has more than is left, without having asked for any.
        hello(&mut bench, 3, HONEST, 0);
        let many = qp(&mut bench, 3, Service::Ud);
        for peer in 0..6 {
            call(&mut bench, 3, to(many, HONEST, Qpn(0x800 + peer), 9));
        }
        // Each takes a place, and no other is lost.
        let had = paths(&bench, VICTIM).len();
        for count in 1..=4 {
            for (session, vnic) in [(3, HONEST), (2, VICTIM)] {
                let (a, b) = (qp(&mut bench, 2, Service::Rc), qp(&mut bench, session, Service::Rc));
                call(&mut bench, 2, to(a, VICTIM, b, vnic));
                call(&mut bench, session, to(b, vnic, a, VICTIM));
                assert!(links(&bench).iter().any(|(one, _)| one.ready.qpn == a.min(b)), "no link");
                assert!(paths(&bench, VICTIM).len() >= had);
            }
            let a = qp(&mut bench, 2, own);
            let answer = call(&mut bench, 2, to(a, VICTIM, Qpn(0x700 + count), 9));
            assert!(matches!(answer, Some(Message::Connected(_))), "{answer:?}");
            assert!(paths(&bench, VICTIM).len() >= had);
        }
        let lost = closed(&mut bench, 2);
        assert!(!lost.is_empty() && lost.iter().all(|(qpn, _)| *qpn == victim), "{lost:?}");
        end_all(&mut bench);
    }
}

#[test]
fn no_link_goes_for_one_that_cannot_be_made() {
    let mut bench = support::bench_with(Limits { links_per_session: 8, ..Limits::default() });
    for session in 2..=3 {
        hello(&mut bench, session, session, 0);
    }
    let victim = qp(&mut bench, 2, Service::Ud);
    hello_as(&mut bench, 100, NASTY, "/tenants/nasty");
    for _ in 0..4 {
        assert!(opens(&mut bench, 100, NASTY, victim).is_ok());
    }
    // A third would get a place there, but has none left itself.
    let many = qp(&mut bench, 3, Service::Ud);
    for peer in 0..8 {
        call(&mut bench, 3, to(many, HONEST, Qpn(0x700 + peer), 9));
    }
    assert_eq!(opens(&mut bench, 3, HONEST, victim), Err(Errno::ENOMEM));
    let told = bench.told.clone();
    assert_eq!(closed(&mut bench, 2), []);
    bench.told = told;
    assert_eq!(closed(&mut bench, 100), []);
    // With one place it gets it.
    call(&mut bench, 3, DisconnectQp { qpn: many, peer_qpn: Qpn(0) });
    assert!(opens(&mut bench, 3, HONEST, victim).is_ok());
    assert_eq!(closed(&mut bench, 100).len(), 1);
    end_all(&mut bench);
}
