//! Links that end because an operator or the network says so.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_terms::{Qpn, Service};

fn parted(qpn: Qpn, peer_qpn: Qpn) -> Message {
    LinkClosed { qpn, peer_qpn, reason: CLOSED_BY_NETWORK, reserved: 0 }.into()
}

/// Three vNICs with a process each, of the same number.
fn three() -> Bench {
    let mut bench = bench();
    for session in 1..=3 {
        hello(&mut bench, session, session, 0);
    }
    bench
}

/// A link between two of them.
fn link(bench: &mut Bench, one: u64, other: u64, service: Service) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, one, service), qp(bench, other, service));
    call(bench, one, to(a, one, b, other));
    if service != Service::Ud {
        call(bench, other, to(b, other, a, one));
    }
    (a, b)
}

#[test]
fn an_operator_ends_all_links_of_a_vnic_at_once() {
    let mut bench = three();
    let (a, b) = link(&mut bench, 1, 2, Service::Rc);
    let (c, d) = link(&mut bench, 1, 2, Service::Ud);
    let (e, f) = link(&mut bench, 1, 3, Service::Rc);
    let own = qp(&mut bench, 2, Service::Rc);
    call(&mut bench, 2, to(own, 2, own, 2));
    let wire = qp(&mut bench, 2, Service::Rc);
    call(&mut bench, 2, to(wire, 2, Qpn(0x77), 4));
    assert_eq!((links(&bench).len(), engine_links(&bench).len()), (4, 1));
    bench.told.clear();
    let actions = bench.tenancy.disconnect_vnic(vnic(2));
    bench.carry_out(actions);
    assert_eq!(detached(&bench), [(wire, Qpn(0x77))]);
    let copy = bench.told.clone();
    let told = events(&mut bench, 1);
    assert!(told.len() == 2 && told.contains(&parted(a, b)) && told.contains(&parted(c, d)));
    bench.told = copy;
    let told = events(&mut bench, 2);
    for message in [parted(b, a), parted(d, c), parted(own, own), parted(wire, Qpn(0x77))] {
        assert_eq!(told.iter().filter(|other| **other == message).count(), 1, "{message:?}");
    }
    assert_eq!((paths(&bench, 1).len(), paths(&bench, 2).len()), (1, 0), "others go on");
    // Where there is a wall now, what was known before does not help.
    bench.walls.extend([(1, 2), (2, 1)]);
    link(&mut bench, 1, 2, Service::Rc);
    assert!(links(&bench).is_empty());
    bench.walls.clear();
    bench.wait(1_100_000_000);
    for session in 1..=3 {
        bench.end(session);
    }
    assert!(bench.tenancy.is_empty());
    let _ = (e, f);
}

#[test]
fn a_wish_from_before_asks_the_network_again() {
    let mut bench = three();
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    let actions = bench.tenancy.disconnect_vnic(vnic(2));
    bench.carry_out(actions);
    bench.walls.insert((1, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    assert!(links(&bench).is_empty());
}
