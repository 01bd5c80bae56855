//! Tests which processes trace which links while a vNIC is captured.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, SessionId, TracedEnd};
use omniverb_terms::{Qpn, Service};

/// Processes 1 and 2 in vNICs 1 and 2, 3 in vNIC 3, and what is linked with what.
fn three() -> (Bench, [Qpn; 4]) {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    let a = qp(&mut bench, 1, Service::Rc);
    let b = qp(&mut bench, 2, Service::Rc);
    let c = qp(&mut bench, 2, Service::Rc);
    let d = qp(&mut bench, 3, Service::Rc);
    link(&mut bench, (1, a), (2, b));
    link(&mut bench, (2, c), (3, d));
    bench.told.clear();
    (bench, [a, b, c, d])
}

fn link(bench: &mut Bench, (one, a): (u64, Qpn), (other, b): (u64, Qpn)) {
    call(bench, one, to(a, one, b, other));
    call(bench, other, to(b, other, a, one));
}

fn capture(bench: &mut Bench, number: u64, on: bool) {
    let actions = match on {
        true => bench.tenancy.begin_capture(vnic(number)),
        false => bench.tenancy.end_capture(vnic(number)),
    };
    bench.carry_out(actions);
}

fn traced(bench: &Bench) -> Vec<TracedEnd> {
    let end = |action: &Action| match action {
        Action::Trace(end) => Some((**end).clone()),
        _ => None,
    };
    bench.told.iter().filter_map(end).collect()
}

fn told(qpn: Qpn, peer_qpn: Qpn, on: u32) -> Message {
    TraceLink { qpn, peer_qpn, on, reserved: 0 }.into()
}

#[test]
fn only_both_ends_of_a_captured_vnics_links_trace() {
    let (mut bench, [a, b, ..]) = three();
    capture(&mut bench, 1, true);
    let ends = traced(&bench);
    let end = |session, qpn, peer_qpn, own: u64, peer: u64| TracedEnd {
        session: SessionId(session),
        qpn,
        peer_qpn,
        service: Service::Rc,
        vnics: [vnic(own), vnic(peer)],
        underlay: underlay(own, peer),
    };
    assert_eq!(ends.len(), 2);
    assert!(ends.contains(&end(1, a, b, 1, 2)) && ends.contains(&end(2, b, a, 2, 1)), "{ends:?}");
    let begun = |action: &Action| matches!(action, Action::BeginTrace { .. });
    assert_eq!(bench.told.iter().filter(|action| begun(action)).count(), 2);
    assert!(begun(&bench.told[0]), "the memory comes first");
    let all = bench.told.clone();
    assert_eq!(events(&mut bench, 1), [told(a, b, 1)]);
    bench.told = all;
    assert_eq!(events(&mut bench, 2), [told(b, a, 1)]);

    capture(&mut bench, 1, false);
    let all = bench.told.clone();
    assert_eq!(events(&mut bench, 1), [told(a, b, 0), TraceEnd { reserved: 0 }.into()]);
    let ended = |action: &&Action| matches!(action, Action::EndTrace { .. });
    assert_eq!(all.iter().filter(ended).count(), 2);
}

#[test]
fn a_link_of_two_captured_vnics_is_traced_until_both_are_not() {
    let (mut bench, _) = three();
    capture(&mut bench, 1, true);
    bench.told.clear();
    capture(&mut bench, 2, true);
    assert_eq!(traced(&bench).len(), 2, "the other link, and not the first one again");
    bench.told.clear();
    capture(&mut bench, 1, false);
    assert_eq!(bench.told, []);
    capture(&mut bench, 2, false);
    let ended = |action: &&Action| matches!(action, Action::EndTrace { .. });
    assert_eq!(bench.told.iter().filter(ended).count(), 3);
}

#[test]
fn a_link_made_meanwhile_is_traced_from_its_beginning() {
    let (mut bench, _) = three();
    capture(&mut bench, 3, true);
    bench.told.clear();
    let (e, f) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 3, Service::Rc));
    link(&mut bench, (1, e), (3, f));
    let [(first, second)] = links(&bench).try_into().unwrap();
    assert_eq!((first.ready.traced, second.ready.traced), (1, 1));
    let position = |which: fn(&Action) -> bool| bench.told.iter().position(which).unwrap();
    let made = position(|action| matches!(action, Action::CreateLink { .. }));
    assert!(position(|action| matches!(action, Action::BeginTrace { .. })) < made);
    let last = bench.told.iter().rposition(|action| matches!(action, Action::Trace(_)));
    assert!(last.unwrap() < made, "known before anything is told");
    // Others are not.
    let (g, h) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    link(&mut bench, (1, g), (2, h));
    assert!(links(&bench)[1..].iter().all(|(one, two)| one.ready.traced + two.ready.traced == 0));
    // It ends with its queue pair; the model checks the messages about it.
    bench.told.clear();
    call(&mut bench, 1, DestroyQp { qpn: e, reserved: 0 });
    let untraced = |action: &&Action| matches!(action, Action::Untrace { .. });
    assert_eq!(bench.told.iter().filter(untraced).count(), 2);
    (1..=3).for_each(|session| bench.end(session));
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}

#[test]
fn a_queue_pair_linked_with_itself_is_one_end() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(a, 1, a, 1));
    assert_eq!(links(&bench).len(), 1);
    capture(&mut bench, 1, true);
    assert_eq!(traced(&bench).len(), 1);
    bench.end(1);
    assert!(bench.mirror.is_empty());
}
