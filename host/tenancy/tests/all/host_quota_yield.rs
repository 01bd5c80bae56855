//! Tests quotas of the host: the largest holder yields to a smaller one, and to no other.

use crate::support::{self, *};
use omniverb_fairness::Holder;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::Bench;
use omniverb_tenancy::{Action, Limits};
use omniverb_terms::{Errno, Qpn, Service};

fn hello_as(bench: &mut Bench, session: u64, vnic: u64, holder: &Holder) -> Option<Message> {
    bench.open_as(session, vnic, holder);
    call(bench, session, Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] })
}

fn welcomed(answer: &Option<Message>) -> bool {
    matches!(answer, Some(Message::Welcome(_)))
}

fn dropped(bench: &Bench) -> Vec<u64> {
    let drop = |action: &Action| match action {
        Action::Drop { session, .. } => Some(session.0),
        _ => None,
    };
    bench.told.iter().filter_map(drop).collect()
}

fn nasty(number: u64) -> Holder {
    // Spread over cgroups and users of its own.
    Holder::new(&format!("/tenants/nasty/{}", number % 7), 1000 + (number % 5) as u32)
}

#[test]
fn many_namespaces_of_one_tenant_do_not_keep_others_out() {
    let mut bench = support::bench_with(Limits { vnics: 8, ..Limits::default() });
    for number in 0..8 {
        assert!(welcomed(&hello_as(&mut bench, 100 + number, 100 + number, &nasty(number))));
    }
    // One more of that holder is refused, and none goes for it.
    assert_eq!(errno(hello_as(&mut bench, 190, 190, &nasty(8))), Errno::ENOMEM);
    assert_eq!(dropped(&bench), []);
    // Others get what they need, until they would have as many.
    let good = Holder::new("/tenants/good", 0);
    for number in 0..4 {
        assert!(welcomed(&hello_as(&mut bench, 200 + number, 200 + number, &good)));
    }
    assert_eq!(dropped(&bench).len(), 4);
    assert!(dropped(&bench).iter().all(|session| *session < 200));
    assert_eq!(errno(hello_as(&mut bench, 204, 204, &good)), Errno::ENOMEM);
    assert_eq!(errno(hello_as(&mut bench, 191, 191, &nasty(9))), Errno::ENOMEM);
    // A vNIC that is there already takes no more room.
    assert!(welcomed(&hello_as(&mut bench, 205, 203, &good)));
    for session in (100..108).chain(200..206).chain([190, 191]) {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
}

#[test]
fn many_processes_of_one_tenant_do_not_keep_others_out() {
    let mut bench = support::bench_with(Limits { sessions: 10, ..Limits::default() });
    for number in 0..10 {
        assert!(welcomed(&hello_as(&mut bench, 100 + number, 100 + number % 3, &nasty(number))));
    }
    assert_eq!(errno(hello_as(&mut bench, 190, 190, &nasty(0))), Errno::ENOMEM);
    let good = Holder::new("/tenants/good", 0);
    for number in 0..5 {
        assert!(welcomed(&hello_as(&mut bench, 200 + number, 50, &good)));
    }
    assert_eq!(dropped(&bench).len(), 5);
    assert!(dropped(&bench).iter().all(|session| *session < 200));
}

#[test]
fn many_links_to_the_engine_do_not_keep_others_from_theirs() {
    let limits = Limits { engine_links: 6, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    let good = Holder::new("/tenants/good", 0);
    let mut held = Vec::new();
    for vnic in [1, 2] {
        assert!(welcomed(&hello_as(&mut bench, vnic, vnic, &nasty(vnic))));
        let qpn = qp(&mut bench, vnic, Service::Ud);
        for peer in 0..3 {
            let way = to(qpn, vnic, Qpn(0x700 + peer), 9);
            assert!(matches!(call(&mut bench, vnic, way), Some(Message::Connected(_))));
            held.push((qpn, Qpn(0x700 + peer)));
        }
    }
    let (session, vnic) = (3, 3);
    assert!(welcomed(&hello_as(&mut bench, session, vnic, &good)));
    let qpn = qp(&mut bench, session, Service::Rc);
    let _ = call(&mut bench, session, to(qpn, vnic, Qpn(0x900), 9));
    let ready =
        |action: &Action| matches!(action, Action::AttachEngine(end) if end.ready.qpn == qpn);
    assert!(bench.told.iter().any(ready), "no link");
    let closed = bench.told.iter().find_map(|action| match action {
        Action::Event { message: Message::LinkClosed(closed), .. } => {
            Some((closed.qpn, closed.peer_qpn))
        }
        _ => None,
    });
    assert!(held.contains(&closed.expect("a session yields")));
    // The largest holder gets none of another's.
    let count = bench.told.len();
    let first = held[0].0;
    let _ = call(&mut bench, 1, to(first, 1, Qpn(0x710), 9));
    let told = &bench.told[count..];
    let others = told.iter().any(|action| {
        matches!(action, Action::Event { message: Message::LinkClosed(c), .. } if c.qpn == qpn)
    });
    assert!(!others);
    assert_eq!(gid(3).bytes()[15], 3);
}
