//! Repeats the tests of pairing, paths, consent, captures and grants with a directory whose names
//! are not addresses.

#[path = "all/capture_tracing.rs"]
mod capture_tracing;
#[path = "all/engine_grants.rs"]
mod engine_grants;
#[path = "all/engine_links.rs"]
mod engine_links;
#[path = "all/grant_lifetime.rs"]
mod grant_lifetime;
#[path = "all/link_reachability.rs"]
mod link_reachability;
#[path = "all/numbers_keys_and_quotas.rs"]
mod object_limits;
#[path = "all/qp_pairing.rs"]
mod qp_pairing;
#[path = "all/status_cursor.rs"]
mod status_cursor;
#[path = "all/support/mod.rs"]
mod support;
#[path = "all/uninvited_links.rs"]
mod uninvited_links;
#[path = "all/unsolicited_datagrams.rs"]
mod unsolicited_datagrams;

use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::Action;
use omniverb_tenancy::testing::random_driver::{self, ip, vnic};
use omniverb_terms::{Errno, Gid, Qpn, RouteKey, Service, UnderlayRoute};
use std::num::NonZeroU32;
use support::*;

#[test]
fn the_network_and_the_engine_are_told_of_routes_and_clients_of_names() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Rc);
    call(&mut bench, 1, to(a, 1, Qpn(77), 4));
    let asked = |action: &Action| match action {
        Action::Probe { destination, interface, key, .. } => Some((*destination, *interface, *key)),
        _ => None,
    };
    let asked: Vec<_> = bench.told.iter().filter_map(asked).collect();
    assert_eq!(asked, [(ip(4), 0, opaque_directory::key())]);
    let engine_links = support::engine_links(&bench);
    let [link] = engine_links.as_slice() else { panic!("{engine_links:?}") };
    assert_eq!(link.underlay, underlay(1, 4));
    assert_eq!((link.ready.sgid, link.ready.dgid), (gid(1), gid(4)));
    assert!(gid(4) != Gid::from(ip(4)));
}

#[test]
fn addresses_in_another_network_have_no_owner() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    let a = qp(&mut bench, 1, Service::Ud);
    let mut links = |way: UnderlayRoute| {
        let actions = bench.tenancy.stranger(vnic(1), (a, Qpn(9)), &way, bench.now);
        bench.carry_out(actions);
        support::engine_links(&bench).len()
    };
    assert_eq!(links(random_driver::underlay(1, 4)), 0, "by the vNIC's own network");
    let another = NonZeroU32::new(1).map(RouteKey);
    assert_eq!(links(UnderlayRoute { key: another, ..underlay(1, 4) }), 0);
    assert_eq!(links(underlay(1, 4)), 1);
}

#[test]
fn an_address_of_the_underlay_is_no_name() {
    let mut bench = bench();
    hello(&mut bench, 1, 1, 0);
    hello(&mut bench, 2, 2, 0);
    let (a, b) = (qp(&mut bench, 1, Service::Ud), qp(&mut bench, 2, Service::Ud));
    let by_address = ConnectQp { dgid: ip(2).into(), ..to(a, 1, b, 2) };
    assert_eq!(errno(call(&mut bench, 1, by_address)), Errno::EHOSTUNREACH);
    let from_address = ConnectQp { sgid: ip(1).into(), ..to(a, 1, b, 2) };
    assert_eq!(errno(call(&mut bench, 1, from_address)), Errno::EINVAL, "not in its table");
    assert!(matches!(call(&mut bench, 1, to(a, 1, b, 2)), Some(Message::Connected(_))));
    assert_eq!((links(&bench).len(), support::engine_links(&bench).len()), (1, 0));
}
