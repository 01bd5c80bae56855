//! Repeats the tests of paths and grants for vNICs that only the directory restricts.
//!
//! One kind shares memory with no other, so that the engine is the only way to it; another shares
//! windows. The tests of paths and of the engine's grants run for forwarded vNICs, and pairing,
//! which must not know the difference; the tests of machines and of pair windows, for vNICs that
//! were not introduced as machines.

#[path = "all/engine_grants.rs"]
mod engine_grants;
#[path = "all/engine_links.rs"]
mod engine_links;
#[path = "all/pair_window_grants.rs"]
mod pair_window_grants;
#[path = "all/pair_windows.rs"]
mod pair_windows;
#[path = "all/support/mod.rs"]
mod support;
#[path = "all/virtual_machines.rs"]
mod virtual_machines;

use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Access, Action, Identity, Limits, PairWindows, Path, PathReason};
use omniverb_terms::{Errno, Service};
use support::*;

#[test]
fn pairs_find_each_other_by_the_engine_and_nothing_is_shared() {
    for service in Service::ALL {
        let mut bench = bench_closed(Limits::default(), &[2]);
        for session in 1..=3 {
            hello(&mut bench, session, session, 0);
        }
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 2, service.opposite()));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        assert!(links(&bench).is_empty(), "{service}");
        let made = support::engine_links(&bench);
        assert!(
            made.len() == 2 && made.iter().all(|link| link.within.is_some()),
            "{service}: {made:?}"
        );
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerForwarded)]);
        assert_eq!(paths(&bench, 2), [(Path::Forwarded, PathReason::Forwarded)]);
        // No process is granted its pages, but the engine is.
        let rkey = mr(&mut bench, 2, 1, 6);
        let (address, length) = (0x11000, 8);
        let ask = RequestGrant { qpn: a, peer_qpn: b, rkey, reserved: 0, address, length };
        assert_eq!(errno(call(&mut bench, 1, ask)), Errno::EOPNOTSUPP);
        if service.is_connected() {
            let now = bench.now;
            let actions = bench.tenancy.engine_wants((b, a), rkey, (address, length), now);
            match actions.as_slice() {
                [Action::DenyEngine { denied, .. }] if service.is_extended() => {
                    assert_eq!(denied.errno, Errno::EOPNOTSUPP);
                }
                [Action::Adopt { session, .. }] if !service.is_extended() => {
                    assert_eq!(session.0, 2);
                }
                other => panic!("{service}: {other:?}"),
            }
            bench.carry_out(actions);
        }
        // Others are linked as ever.
        let (c, d) = (qp(&mut bench, 1, service), qp(&mut bench, 3, service.opposite()));
        call(&mut bench, 1, to(c, 1, d, 3));
        call(&mut bench, 3, to(d, 3, c, 1));
        assert_eq!(links(&bench).len(), 1, "{service}");
        assert_eq!(bench.tenancy.direct_links(vnic(2)), 0);
        for session in 1..=3 {
            bench.end(session);
        }
        assert!(bench.tenancy.is_empty());
    }
}

#[test]
fn an_end_is_told_by_the_engine_too() {
    let mut bench = bench_closed(Limits::default(), &[1, 2]);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 2, to(b, 2, a, 1));
    bench.told.clear();
    bench.end(2);
    bench.wait(30_000_000);
    let reason = CLOSED_BY_DEATH;
    let closed = LinkClosed { qpn: a, peer_qpn: b, reason, reserved: 0 };
    assert!(events(&mut bench, 1).contains(&Message::from(closed)));
}

/// The proxy that attached a vNIC and the directory each report a restriction, and both hold: the
/// addresses of a machine whose ways are closed are its own word, and only windows are shared with
/// it.
#[test]
fn a_closed_machine_is_still_a_machine() {
    // The sources of the two restrictions.
    for (said, introduced) in [(Access::Forwarded, true), (Access::Window, false)] {
        let guests = opaque_directory::Guests(said, vec![2]);
        let mut bench = Bench::with_directory(Limits::default(), Box::new(guests));
        if introduced {
            bench.machines.insert(2);
        }
        bench.life = 9;
        hello(&mut bench, 1, 1, 0);
        hello(&mut bench, 2, 2, 0);
        if !introduced {
            let identity =
                Identity { name: "net-2".into(), alias: None, guid: [2; 8], proof: [1, 4, 2, 9] };
            bench.tenancy.introduce(vnic(2), identity, Access::Forwarded);
        }
        let windows = PairWindows { free: 2, room: 4, ..PairWindows::default() };
        bench.tenancy.set_pair_windows(vnic(2), windows);
        let (a, b) = (qp(&mut bench, 1, Service::Rc), qp(&mut bench, 2, Service::Rc));
        call(&mut bench, 1, to(a, 1, b, 2));
        call(&mut bench, 2, to(b, 2, a, 1));
        let asked = bench.told.iter().filter_map(|action| match action {
            Action::Probe { vnic: from, source, .. } => Some((*from, *source)),
            _ => None,
        });
        let expected = [(vnic(1), None), (vnic(2), Some(ip(2)))];
        assert_eq!(asked.collect::<Vec<_>>(), expected, "its own word");
        assert!(links(&bench).is_empty());
        assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerForwarded)]);
        assert_eq!(paths(&bench, 2), [(Path::Forwarded, PathReason::Forwarded)]);
        assert_eq!(bench.tenancy.pair_links(vnic(2)), 0);
        bench.tenancy.check_accounts();
        for session in [1, 2] {
            bench.end(session);
        }
        assert!(bench.tenancy.is_empty());
    }
}
