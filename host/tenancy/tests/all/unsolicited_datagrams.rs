//! Tests datagrams from strangers: which of them get a link, and what they cannot do with it.

use crate::support::{self, *};
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Limits, Path, PathReason, Policy, RateLimit};
use omniverb_terms::{Qpn, Service};

/// vNIC number 4 of the bench is another Omniverb's; number 9 does not exist.
const OTHER: u64 = 4;
const NOBODY: u64 = 9;

fn stranger(bench: &mut Bench, qpn: Qpn, source: Qpn, from: u64) {
    let actions = bench.tenancy.stranger(vnic(1), (qpn, source), &underlay(1, from), bench.now);
    bench.carry_out(actions);
}

#[test]
fn strangers_reach_datagram_queue_pairs_within_a_quota() {
    let limits = Limits { strangers_per_vnic: 3, ..Limits::default() };
    let mut bench = support::bench_with(limits);
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (ud, rc) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 1, Service::Rc));
    let elsewhere = qp(&mut bench, 2, Service::Ud);
    // Not for these: connected, in another vNIC, unknown; nor from ourselves, nor from QP 1.
    for (qpn, source, from) in
        [(rc, 50, 9), (elsewhere, 50, 9), (Qpn(0x77_7777), 50, 9), (ud, 50, 1), (ud, 1, 9)]
    {
        stranger(&mut bench, qpn, Qpn(source), from);
    }
    assert!(engine_links(&bench).is_empty());
    for source in 50..60 {
        stranger(&mut bench, ud, Qpn(source), NOBODY);
        stranger(&mut bench, ud, Qpn(source), NOBODY);
    }
    let made: Vec<_> = engine_links(&bench).iter().map(|link| link.ready.peer_qpn).collect();
    assert_eq!(made, [50, 51, 52].map(Qpn), "each once, and not too many at once");
    assert_eq!(paths(&bench, 1), [(Path::Roce, PathReason::Stranger); 3]);
    // Later the oldest makes room.
    bench.told.clear();
    bench.wait(2_000_000_000);
    stranger(&mut bench, ud, Qpn(53), NOBODY);
    assert_eq!(detached(&bench), [(ud, Qpn(50))]);
    assert_eq!(
        events(&mut bench, 1)[0],
        LinkClosed { qpn: ud, peer_qpn: Qpn(50), reason: CLOSED_BY_PEER, reserved: 0 }.into()
    );
    // Peers that the application names itself are not counted.
    for source in 90..95 {
        assert!(matches!(
            call(&mut bench, 1, to(ud, 1, Qpn(source), NOBODY)),
            Some(Message::Connected(_))
        ));
    }
    bench.end(1);
    bench.end(2);
    assert!(bench.tenancy.is_empty());
}

#[test]
fn a_stranger_takes_no_place_of_a_known_peer() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 1, to(a, 1, b, 2));
    call(&mut bench, 1, to(a, 1, Qpn(77), OTHER));
    bench.told.clear();
    // Forged: the numbers are those of known peers, the addresses are not.
    stranger(&mut bench, a, b, NOBODY);
    assert_eq!((engine_links(&bench).len(), detached(&bench).len()), (0, 0));
    stranger(&mut bench, a, Qpn(77), NOBODY);
    assert_eq!((engine_links(&bench).len(), detached(&bench).len()), (1, 0));
    let to_a = [
        (Path::Direct, PathReason::Neighbour),
        (Path::Omniverb, PathReason::Omniverb),
        (Path::Roce, PathReason::Stranger),
    ];
    let mut found = paths(&bench, 1);
    found.sort_by_key(|(path, _)| path.name());
    assert_eq!(found, [to_a[0], to_a[2], to_a[1]]);
    // But a peer named by the application takes the place of a stranger, directly or not.
    let (c, d) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    stranger(&mut bench, c, d, NOBODY);
    stranger(&mut bench, c, Qpn(78), NOBODY);
    call(&mut bench, 2, to(d, 2, c, 1));
    call(&mut bench, 1, to(c, 1, Qpn(78), OTHER));
    assert_eq!(detached(&bench), [(c, d)]);
    assert!(paths(&bench, 1)[3..].contains(&(Path::Direct, PathReason::Neighbour)));
    assert!(paths(&bench, 1)[3..].contains(&(Path::Omniverb, PathReason::Omniverb)));
    // In the end a stranger's link goes, but not one of a known peer.
    call(&mut bench, 1, DisconnectQp { qpn: a, peer_qpn: Qpn(77) });
    assert_eq!(detached(&bench), [(c, d), (a, Qpn(77))], "both of that number");
    bench.end(1);
    bench.end(2);
    assert!(bench.mirror.is_empty() && bench.tenancy.is_empty());
}

#[test]
fn forwarded_datagrams_come_back_through_the_engine() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let limit = RateLimit { bits_per_second: 20_000_000, burst_bytes: 65536 };
    drop(bench.tenancy.set_policy(vnic(2), Policy { limit: Some(limit), ..Policy::default() }));
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    call(&mut bench, 2, to(b, 2, a, 1));
    stranger(&mut bench, a, b, 2);
    assert!(engine_links(&bench).len() == 2 && engine_links(&bench)[1].within.is_some());
    assert_eq!(paths(&bench, 1), [(Path::Forwarded, PathReason::PeerLimited)]);
    // The same numbers from another address: through the network, if at all.
    let c = qp(&mut bench, 1, Service::Ud);
    call(&mut bench, 2, to(b, 2, c, 1));
    stranger(&mut bench, c, b, NOBODY);
    assert!(engine_links(&bench)[3].within.is_none());
}
