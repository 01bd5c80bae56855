//! Tests that nothing passes between tenants, and that a vNIC takes its links with it into none.

use crate::support::cm_helpers::{
    SECOND, TCP, at, connect as connect_by_address, events as cm_events, listen,
};
use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::cm::event;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Adoption, PathReason, Policy, RelationRefusal, TenantId};
use omniverb_terms::{Gid, Qpn, Service};

const BLUE: TenantId = TenantId(1);
const RED: TenantId = TenantId(2);
/// An address of the bench that does not exist.
const NOBODY: u64 = 9;

fn put(bench: &mut Bench, which: u64, tenant: TenantId) {
    let policy = Policy { tenant, ..bench.tenancy.policy(vnic(which)) };
    let (_, actions) = bench.tenancy.set_policy(vnic(which), policy);
    bench.carry_out(actions);
}

/// Processes 1, 2 and 3 in vNICs of these numbers and these tenants.
fn three(tenants: [TenantId; 3]) -> Bench {
    let mut bench = bench();
    for (session, tenant) in (1..).zip(tenants) {
        hello(&mut bench, session, session, 0);
        put(&mut bench, session, tenant);
    }
    bench
}

fn connect(bench: &mut Bench, [one, other]: [u64; 2], service: Service) -> (Qpn, Qpn) {
    let (a, b) = (qp(bench, one, service), qp(bench, other, service));
    call(bench, one, to(a, one, b, other));
    call(bench, other, to(b, other, a, one));
    (a, b)
}

#[test]
fn queue_pairs_of_one_tenant_are_linked_and_of_two_are_not() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut bench = three([BLUE, BLUE, RED]);
        connect(&mut bench, [1, 2], service);
        assert_eq!((links(&bench).len(), engine_links(&bench).len()), (1, 0), "{service:?}");
        bench.told.clear();
        connect(&mut bench, [1, 3], service);
        assert!(links(&bench).is_empty(), "{service:?}");
        // Packets go to a number that the sender's own vNIC does not have.
        for end in engine_links(&bench) {
            assert_eq!(end.within, Some(end.vnic), "{service:?}");
        }
    }
}

#[test]
fn a_vnic_of_another_tenant_looks_like_an_address_that_does_not_exist() {
    for service in [Service::Rc, Service::Ud] {
        let mut bench = three([BLUE, RED, BLUE]);
        let (a, b) = (qp(&mut bench, 1, service), qp(&mut bench, 1, service));
        let target = qp(&mut bench, 2, service);
        let foreign = call(&mut bench, 1, to(a, 1, target, 2));
        let unknown = call(&mut bench, 1, to(b, 1, target, NOBODY));
        let ready = |answer: Option<Message>| match answer {
            Some(Message::Connected(Connected { ready, .. })) => ready,
            other => panic!("{other:?}"),
        };
        assert_eq!(ready(foreign), ready(unknown));
        let [first, second] = paths(&bench, 1)[..] else { panic!("{:?}", paths(&bench, 1)) };
        assert_eq!(first, second);
        assert_eq!(first.1, PathReason::Unanswered);
    }
}

#[test]
fn a_vnic_that_is_put_into_another_tenant_loses_its_links() {
    let mut bench = three([BLUE, BLUE, BLUE]);
    let (a, b) = connect(&mut bench, [1, 2], Service::Rc);
    connect(&mut bench, [1, 3], Service::Rc);
    bench.told.clear();
    put(&mut bench, 2, RED);
    let parted = LinkClosed { qpn: a, peer_qpn: b, reason: CLOSED_BY_NETWORK, reserved: 0 };
    assert!(events(&mut bench, 1).contains(&parted.into()));
    assert_eq!((paths(&bench, 1).len(), paths(&bench, 2).len()), (1, 0), "others stay");
    connect(&mut bench, [1, 2], Service::Rc);
    assert!(links(&bench).is_empty());
    put(&mut bench, 2, BLUE);
    bench.told.clear();
    connect(&mut bench, [1, 2], Service::Rc);
    assert_eq!(links(&bench).len(), 1);
}

#[test]
fn sockets_of_two_tenants_share_no_memory() {
    let mut bench = three([BLUE, BLUE, RED]);
    let relate = |bench: &mut Bench, number, other: u64| {
        let ends = [(vnic(1), ip(1)), (vnic(other), ip(other))];
        let actions = bench.tenancy.relate(number, ends, bench.now);
        bench.carry_out(actions);
    };
    let verdict = |bench: &Bench, number| {
        bench.told.iter().rev().find_map(|action| match action {
            Action::Related { number: of, verdict } if *of == number => Some(*verdict),
            _ => None,
        })
    };
    relate(&mut bench, 1, 2);
    relate(&mut bench, 2, 3);
    assert_eq!(verdict(&bench, 1), Some(Ok(())));
    assert_eq!(verdict(&bench, 2), Some(Err(RelationRefusal::NotThere)));
    put(&mut bench, 2, RED);
    assert_eq!(verdict(&bench, 1), Some(Err(RelationRefusal::Gone)));
}

#[test]
fn the_addresses_of_tenants_are_known_and_their_changes_are_counted() {
    let mut bench = three([BLUE, BLUE, RED]);
    let owners = |bench: &Bench| bench.tenancy.tenants_by_address().unwrap();
    let of = |bench: &Bench, number| owners(bench).get(&ip(number)).cloned().unwrap_or_default();
    if !OPAQUE_NAMES {
        assert_eq!([1, 2, 3].map(|n| of(&bench, n)), [BLUE, BLUE, RED].map(|t| [t].into()));
    }
    let mut changes = bench.tenancy.owner_changes();
    let mut has_changed = |bench: &Bench| {
        let now = bench.tenancy.owner_changes();
        std::mem::replace(&mut changes, now) != now
    };
    assert!(!has_changed(&bench));
    bench.introduce(NOBODY, 1);
    put(&mut bench, NOBODY, RED);
    bench.tenancy.see_addresses(vnic(NOBODY), vec![ip(NOBODY)]);
    assert!(has_changed(&bench) && of(&bench, NOBODY) == [RED].into());
    bench.tenancy.see_addresses(vnic(NOBODY), vec![ip(NOBODY)]);
    assert!(!has_changed(&bench), "the same");
    put(&mut bench, NOBODY, BLUE);
    assert!(has_changed(&bench) && of(&bench, NOBODY) == [BLUE].into());
    bench.end(1);
    assert!(has_changed(&bench) && of(&bench, 1).is_empty(), "it has no processes any more");
    for number in [1, 2, 3, NOBODY] {
        put(&mut bench, number, TenantId::default());
    }
    assert_eq!(bench.tenancy.tenants_by_address(), None, "there is one tenant");
}

#[test]
fn vnics_of_any_tenant_are_in_groups_until_they_leave_it() {
    let mut bench = three([TenantId::default(), BLUE, BLUE]);
    let gid = Gid::from("239.1.1.1".parse::<std::net::IpAddr>().unwrap());
    let mut attach = |session| {
        let qpn = qp(&mut bench, session, Service::Ud);
        call(&mut bench, session, AttachGroup { qpn, reserved: 0, gid })
    };
    if !OPAQUE_NAMES {
        assert!(matches!(attach(1), Some(Message::GroupAttached(_))));
    }
    if !OPAQUE_NAMES {
        assert!(matches!(attach(2), Some(Message::GroupAttached(_))));
        assert_eq!(bench.tenancy.in_flat_groups(), [1, 2].map(vnic));
    }
    put(&mut bench, 1, RED);
    assert!(paths(&bench, 1).is_empty());
}

#[test]
fn a_tenant_trusts_its_own_by_default() {
    assert_eq!(Policy::default().adoption, Adoption::Trusting);
}

/// A request of rdma_cm from another tenant is answered by nothing.
#[test]
fn a_request_from_another_tenant_is_dropped() {
    for (tenant, heard) in [(BLUE, 1), (RED, 0)] {
        let mut bench = three([BLUE, tenant, BLUE]);
        listen(&mut bench, 2, TCP, 0);
        connect_by_address(&mut bench, 1, at(2), TCP);
        assert_eq!(cm_events(&mut bench, 2).len(), heard, "{tenant:?}");
        for _ in 0..200 {
            bench.wait(SECOND);
        }
        let told = cm_events(&mut bench, 1);
        let unreachable = told.iter().filter(|told| told.event == event::UNREACHABLE).count();
        assert_eq!(unreachable, 1 - heard, "{told:?}");
    }
}

/// A container that has no device open can send packets all the same.
#[test]
fn datagrams_from_a_container_without_processes_are_of_its_tenant() {
    for (tenant, heard) in [(BLUE, 1), (RED, 0)] {
        let mut bench = three([BLUE, BLUE, BLUE]);
        bench.introduce(NOBODY, 1);
        put(&mut bench, NOBODY, tenant);
        bench.tenancy.see_addresses(vnic(NOBODY), vec![ip(NOBODY)]);
        let qpn = qp(&mut bench, 1, Service::Ud);
        let mut send = |source| {
            let (ends, way) = ((qpn, Qpn(source)), underlay(1, NOBODY));
            let actions = bench.tenancy.stranger(vnic(1), ends, &way, bench.now);
            bench.carry_out(actions);
            engine_links(&bench).len()
        };
        assert_eq!(send(50), heard, "{tenant:?}");
        // Another one has the address then, outside.
        bench.tenancy.see_addresses(vnic(NOBODY), Vec::new());
        let (ends, way) = ((qpn, Qpn(51)), underlay(1, NOBODY));
        let actions = bench.tenancy.stranger(vnic(1), ends, &way, bench.now);
        bench.carry_out(actions);
        assert_eq!(engine_links(&bench).len(), heard + 1, "{tenant:?}");
    }
}
