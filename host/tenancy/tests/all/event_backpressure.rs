//! Tests that no session is filled by events that it did not ask for.

use crate::support::{self, *};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, underlay, vnic};
use omniverb_tenancy::{Action, Limits, Pace, SessionId};
use omniverb_terms::{Errno, Qpn, Service};

const READ: u32 = 1 << 2;

fn is_again(answer: Option<Message>) -> bool {
    matches!(answer, Some(Message::Connected(Connected { ready: CONNECT_AGAIN, .. })))
}

fn looked(bench: &mut Bench) -> bool {
    let told = std::mem::take(&mut bench.told);
    told.iter().any(|a| matches!(a, Action::LookAgain { session } if session.0 == 1))
}

#[test]
fn links_that_a_session_did_not_ask_for_wait_until_it_has_time() {
    for far in [2, 1] {
        let mut bench = bench();
        hello(&mut bench, 1, 1, 0);
        hello(&mut bench, 2, far, 0);
        let (victim, other) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
        let ask = |bench: &mut Bench| call_once(bench, 2, to(other, far, victim, 1));
        bench.tenancy.set_pace(SessionId(1), Pace::Behind);
        // The network is asked first, in one direction and then in the other.
        for _ in 0..3 {
            ask(&mut bench);
        }
        looked(&mut bench);
        for _ in 0..3 {
            assert!(is_again(ask(&mut bench)));
            assert!(looked(&mut bench));
        }
        assert!(links(&bench).is_empty() && events(&mut bench, 1).is_empty());
        // Its own requests are served, and those of others, too.
        let third = qp(&mut bench, 2, Service::Ud);
        assert!(!is_again(call(&mut bench, 1, to(victim, 1, third, far))));
        assert_eq!(links(&bench).len(), 1);
        bench.tenancy.set_pace(SessionId(1), Pace::KeepsUp);
        assert!(!is_again(ask(&mut bench)));
        assert_eq!(links(&bench).len(), 2);
        bench.end(1);
        bench.end(2);
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn a_session_that_is_behind_gets_no_links_of_strangers() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let ud = qp(&mut bench, 1, Service::Ud);
    let meet = |bench: &mut Bench, source| {
        let actions = bench.tenancy.stranger(vnic(1), (ud, source), &underlay(1, 9), bench.now);
        bench.carry_out(actions);
    };
    bench.tenancy.set_pace(SessionId(1), Pace::Behind);
    meet(&mut bench, Qpn(50));
    assert!(engine_links(&bench).is_empty() && looked(&mut bench));
    bench.tenancy.set_pace(SessionId(1), Pace::KeepsUp);
    meet(&mut bench, Qpn(51));
    assert_eq!(engine_links(&bench).len(), 1);
}

#[test]
fn questions_to_a_silent_owner_are_bounded() {
    let limits = Limits { questions_per_session: 3, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (owner, peer) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(owner, 1, peer, 2));
    call(&mut bench, 2, to(peer, 2, owner, 1));
    let rkey = mr(&mut bench, 1, 1, READ);
    let ask = |bench: &mut Bench| {
        // Unanswered questions are over before the next one.
        bench.wait(10_000_000_000);
        call(
            bench,
            2,
            RequestGrant {
                qpn: peer,
                peer_qpn: owner,
                rkey,
                reserved: 0,
                address: 0x11000,
                length: 8,
            },
        )
    };
    events(&mut bench, 1);
    for _ in 0..3 {
        assert!(matches!(ask(&mut bench), Some(Message::Connected(_))));
    }
    for _ in 0..3 {
        assert_eq!(errno(ask(&mut bench)), Errno::ENOMEM);
    }
    let asked: Vec<u64> = events(&mut bench, 1)
        .iter()
        .filter_map(|event| match event {
            Message::Adopt(adopt) => Some(adopt.token),
            _ => None,
        })
        .collect();
    assert_eq!(asked.len(), 3);
    // Late answers count: it has taken the questions.
    for token in asked {
        adopted(&mut bench, 1, token);
    }
    assert!(matches!(ask(&mut bench), Some(Message::Connected(_))));
}

fn adopted(bench: &mut Bench, session: u64, token: u64) {
    let message = Adopted { token, errno: Errno(13), epoch: 0 }.into();
    let channel = omniverb_tenancy::Channel::Events;
    bench.say(session, &omniverb_tenancy::Arrived { channel, tag: 0, message, memory: None });
}
