//! Tests that the status is walked in bounded steps, from any place on.

use crate::support::*;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, Audited, LinkEvent, Path, Row, VnicId};
use omniverb_terms::{Gid, Qpn, Service};
use proptest::prelude::*;

/// Two vNICs; the first has a queue pair with many links, and many with none.
fn crowded() -> Bench {
    let mut bench = bench();
    for session in 1..=4 {
        hello(&mut bench, session, 1 + session / 3, 0);
    }
    let hub = qp(&mut bench, 1, Service::Ud);
    for number in 0..300 {
        let far = to(hub, 1, Qpn(0x700 + number), 9);
        call(&mut bench, 1, far);
        qp(&mut bench, 2, Service::Rc);
    }
    for _ in 0..50 {
        let near = qp(&mut bench, 3, Service::Ud);
        call(&mut bench, 1, to(hub, 1, near, 2));
    }
    bench
}

/// All rows, by walks of so many steps; the most that one walk showed.
fn walked(bench: &Bench, scope: Option<VnicId>, steps: usize) -> (Vec<Row>, usize) {
    let (mut rows, mut most) = (Vec::new(), 0);
    let mut from = Cursor::START;
    loop {
        let before = rows.len();
        let next = bench.tenancy.walk(scope, from, steps, &mut |row| {
            rows.push(row);
            true
        });
        most = most.max(rows.len() - before);
        match next {
            Some(next) => from = next,
            None => return (rows, most),
        }
    }
}

#[test]
fn a_walk_costs_what_its_steps_cost_and_many_walks_see_everything() {
    let bench = crowded();
    for scope in [None, Some(vnic(1)), Some(vnic(2)), Some(vnic(3))] {
        let (whole, _) = walked(&bench, scope, usize::MAX);
        for steps in [1, 2, 7, 64] {
            let (rows, most) = walked(&bench, scope, steps);
            assert!(most <= steps, "{most} rows in {steps} steps");
            assert!(rows == whole, "the same in pieces of {steps}");
        }
    }
    let peers = |rows: &[Row]| rows.iter().filter(|row| matches!(row, Row::Peer(..))).count();
    let (own, _) = walked(&bench, Some(vnic(1)), 64);
    assert!(peers(&own) >= 300, "{}", peers(&own));
    let vnics = own.iter().filter(|row| matches!(row, Row::Vnic(_))).count();
    assert_eq!(vnics, 1);
    assert!(walked(&bench, Some(vnic(3)), 64).0.is_empty());
}

#[test]
fn a_row_without_room_is_the_first_of_the_next_walk() {
    let bench = crowded();
    let (whole, _) = walked(&bench, None, usize::MAX);
    let (mut rows, mut from) = (Vec::new(), Some(Cursor::START));
    while let Some(at) = from {
        let mut room = 3;
        from = bench.tenancy.walk(None, at, 64, &mut |row| {
            if room == 0 {
                return false;
            }
            room -= 1;
            rows.push(row);
            true
        });
    }
    assert!(rows == whole);
}

proptest! {
    #[test]
    fn any_bytes_are_a_place_and_show_nothing_of_others(
        vnic in prop_oneof![0..5u64, any::<u64>()],
        session in prop_oneof![0..6u64, any::<u64>()],
        qpn in any::<u32>(), stage in 0..9u32, peer in any::<u32>(), gid in any::<[u8; 16]>(),
    ) {
        let bench = crowded_once();
        let own = VnicId(2);
        let (qpn, peer, gid) = (Qpn(qpn), Qpn(peer), Gid::new(gid));
        let mut from = Some(Cursor { vnic, session, qpn, stage, peer, reserved: 9, gid });
        let mut walks = 0;
        while let Some(at) = from {
            from = bench.tenancy.walk(Some(own), at, 64, &mut |row| {
                if let Row::Vnic(shown) = &row {
                    assert_eq!(shown.key, own);
                }
                if let Row::Process(shown) = &row {
                    assert!(shown.session.0 >= 3);
                }
                true
            });
            walks += 1;
            prop_assert!(walks < 100);
        }
    }
}

fn crowded_once() -> std::rc::Rc<Bench> {
    thread_local! {
        static BENCH: std::rc::Rc<Bench> = std::rc::Rc::new(crowded());
    }
    BENCH.with(Clone::clone)
}

#[test]
fn the_audit_gets_every_link_and_its_end() {
    let mut bench = bench();
    bench.tenancy.begin_audit();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    let far = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(far, 1, Qpn(0x77), 9));
    bench.wait(1_000_000_000);
    bench.end(1);
    let told: Vec<Audited> = bench
        .told
        .iter()
        .filter_map(|action| match action {
            Action::Audit(audited) => Some((**audited).clone()),
            _ => None,
        })
        .collect();
    for event in [LinkEvent::Made, LinkEvent::Ended] {
        let of = |qpns: [Qpn; 2]| {
            let found = told.iter().filter(|a| a.event == event && a.qpns == qpns);
            let found: Vec<_> = found.collect();
            assert_eq!(found.len(), 1, "{event:?} {qpns:?}");
            found[0].clone()
        };
        let direct = of([a.min(b), a.max(b)]);
        assert_eq!((direct.path, direct.service), (Path::Direct, Service::Rc));
        assert!(direct.vnics.contains(&Some(vnic(1))) && direct.vnics.contains(&Some(vnic(2))));
        assert!(
            direct.clients.iter().all(Option::is_some)
                && direct.addresses.iter().all(Option::is_some)
        );
        let link = of([far, Qpn(0x77)]);
        assert_eq!((link.vnics, link.clients[1]), ([Some(vnic(1)), None], None));
    }
}
