//! Tests that processes of a tenant with a key are connected by vGIDs and virtual numbers.
//!
//! Names of another tenant, or of no vNIC, lead to a link that loses its packets.

use crate::socket_relations::{relate, verdicts};
use crate::support::cm_helpers::{events as cm_events, sent};
use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::cm::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{
    Action, Policy, Reach, RelationRefusal, SessionId, TenantId, TenantNetwork, VnicAddress,
    VnicPlace,
};
use omniverb_terms::{Gid, Qpn, Service, UnderlayRoute};
use omniverb_vgid::{Codec, QpnOffset, QpnRange, TenantKey, UnderlayNetwork, VirtualNetwork};
use std::collections::BTreeMap;

fn place(number: u64) -> VnicPlace {
    let offset = 0x40_0000 + 0x400 * number as u32;
    VnicPlace {
        virtual_ip: [10, 0, 0, 1 + (number as u8 + 1) % 2].into(),
        underlay: [192, 0, 2, 1].into(),
        range: QpnRange::new(QpnOffset::new(offset).unwrap(), 1024).unwrap(),
    }
}

/// A vNIC of another host.
fn far_place(underlay: [u8; 4], offset: u32) -> VnicPlace {
    let range = QpnRange::new(QpnOffset::new(offset).unwrap(), 1024).unwrap();
    VnicPlace { virtual_ip: [10, 0, 0, 9].into(), underlay: underlay.into(), range }
}

/// Describes both tenants, the first with this vNIC of another host.
fn describe(bench: &mut Bench, far: Option<VnicPlace>) {
    let network = |numbers: [u64; 2], far: Option<VnicPlace>| {
        let key = TenantKey::new([numbers[0] as u8; 16]);
        let codec = Codec::new(&key, VirtualNetwork::ANY, UnderlayNetwork::Ipv4).ok();
        let places = numbers.map(place).into_iter().chain(far);
        let vnics = places.map(|place| (place.virtual_ip, place)).collect();
        let mtu = if numbers[0] == 1 { 9000 } else { 1500 };
        TenantNetwork { codec, vnics, qpns: 1024, mtu, features: 7 }
    };
    let networks = [(TenantId(1), network([1, 2], far)), (TenantId(2), network([3, 4], None))];
    let actions = bench.tenancy.describe_networks(BTreeMap::from(networks));
    bench.carry_out(actions);
}

/// Processes 1 and 2 of one tenant, 3 and 4 of another, both with 10.0.0.1 and 10.0.0.2.
fn two_tenants() -> Bench {
    let mut bench = bench();
    let tenant = |number: u64| TenantId(if number < 3 { 1 } else { 2 });
    describe(&mut bench, None);
    for number in 1..=4 {
        bench.introduce(number, 1);
        let policy = Policy { tenant: tenant(number), ..bench.tenancy.policy(vnic(number)) };
        let (_, actions) = bench.tenancy.set_policy(vnic(number), policy);
        bench.carry_out(actions);
        let at = Some((tenant(number), place(number)));
        let actions = bench.tenancy.set_place(vnic(number), at);
        bench.carry_out(actions);
        hello(&mut bench, number, number, 0);
    }
    bench
}

/// The only GID of a session's vNIC.
fn name(bench: &mut Bench, session: u64) -> Gid {
    match call(bench, session, QueryGids { reserved: 0 }) {
        Some(Message::Gids(gids)) if gids.count == 1 => gids.entries[0].gid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_are_as_large_as_the_underlay_of_the_tenant_allows() {
    let mut bench = two_tenants();
    for (session, expected) in [(1, 9000), (3, 1500)] {
        let told = call(&mut bench, session, QueryGids { reserved: 0 });
        let Some(Message::Gids(gids)) = told else { panic!("{told:?}") };
        assert_eq!(gids.entries[0].mtu, expected);
    }
}

/// A call as the process makes it, and the answer as it gets it.
fn said(bench: &mut Bench, session: u64, message: impl Into<Message>) -> Option<Message> {
    let (id, mut message) = (SessionId(session), message.into());
    bench.tenancy.read_numbers(id, &mut message);
    let mut answer = call(bench, session, message)?;
    bench.tenancy.show_numbers(id, &mut answer);
    Some(answer)
}

fn new_qp(bench: &mut Bench, session: u64, service: Service) -> Qpn {
    match said(bench, session, create_qp(service)) {
        Some(Message::QpCreated(created)) => created.qpn,
        other => panic!("{other:?}"),
    }
}

fn connect(bench: &mut Bench, session: u64, qpn: Qpn, (dest_qpn, dgid): (Qpn, Gid)) {
    let sgid = name(bench, session);
    let ask = ConnectQp { qpn, dest_qpn, sgid, dgid, resume: 0, carries: 0 };
    assert!(matches!(said(bench, session, ask), Some(Message::Connected(c)) if c.qpn == qpn));
}

#[test]
fn peers_of_one_tenant_are_linked_and_see_small_numbers() {
    for service in [Service::Rc, Service::Ud] {
        let mut bench = two_tenants();
        for (one, other) in [(1, 2), (3, 4)] {
            bench.told.clear();
            let names = [name(&mut bench, one), name(&mut bench, other)];
            let (a, b) = (new_qp(&mut bench, one, service), new_qp(&mut bench, other, service));
            assert!(a.0 < 1024 && b.0 < 1024, "{a} {b}");
            connect(&mut bench, one, a, (b, names[1]));
            connect(&mut bench, other, b, (a, names[0]));
            let [(first, second)] = &links(&bench)[..] else { panic!("{:?}", links(&bench)) };
            assert!(first.ready.qpn.0 >= 0x40_0000 && engine_links(&bench).is_empty());
            for end in [first, second] {
                let mut ready = Message::from(end.ready);
                bench.tenancy.show_numbers(end.session, &mut ready);
                let Message::LinkReady(ready) = ready else { panic!() };
                let (own, peer) = if end.session == SessionId(one) { (a, b) } else { (b, a) };
                assert_eq!((ready.qpn, ready.peer_qpn), (own, peer));
                let ends = bench.tenancy.shown_ends(end.session, end.ready.qpn, end.ready.peer_qpn);
                assert_eq!(ends, (own, peer));
            }
        }
    }
}

#[test]
fn forged_names_and_other_tenants_lead_to_a_lossy_link() {
    for service in [Service::Rc, Service::Ud] {
        let mut bench = two_tenants();
        let theirs = name(&mut bench, 4);
        let target = new_qp(&mut bench, 4, service);
        let own = name(&mut bench, 2);
        let mut bytes = own.bytes();
        bytes[5] ^= 4;
        for dgid in [theirs, Gid::new(bytes)] {
            bench.told.clear();
            let a = new_qp(&mut bench, 1, service);
            connect(&mut bench, 1, a, (target, dgid));
            assert!(links(&bench).is_empty());
            let [end] = &engine_links(&bench)[..] else { panic!("{:?}", engine_links(&bench)) };
            assert_eq!(end.within, Some(end.vnic), "{service:?}");
            assert!(end.ready.peer_qpn.0 < 0x1_0000, "no number of a vNIC's range");
        }
        // Of the right name, but beyond its numbers.
        bench.told.clear();
        let a = new_qp(&mut bench, 1, Service::Rc);
        connect(&mut bench, 1, a, (Qpn(1024 + 5), own));
        assert!(links(&bench).is_empty() && engine_links(&bench).is_empty());
    }
}

#[test]
fn virtual_addresses_are_resolved_and_messages_stay_within_their_tenant() {
    let mut bench = two_tenants();
    let address = |last: u8, port: u16| CmAddress::new(([10, 0, 0, last], port).into(), 0);
    let id_of = |bench: &mut Bench, session| {
        let ask = CreateCmId { space: 0x106, qp_type: Service::Rc.qp_type() };
        match said(bench, session, ask) {
            Some(Message::CmIdCreated(created)) => created.id,
            other => panic!("{other:?}"),
        }
    };
    for (one, other) in [(1, 2), (3, 4)] {
        let listener = id_of(&mut bench, other);
        let bind = BindCmId { id: listener, flags: 0, address: address(2, 7471) };
        assert!(matches!(said(&mut bench, other, bind), Some(Message::CmIdBound(_))));
        let listen = ListenCmId { id: listener, backlog: 3 };
        assert!(matches!(said(&mut bench, other, listen), Some(Message::CmIdBound(_))));
        let id = id_of(&mut bench, one);
        let remote = address(2, 7471);
        let resolve = ResolveCmId { id, flags: 0, local: CmAddress::NONE, remote };
        let resolved = match said(&mut bench, one, resolve) {
            Some(Message::CmIdResolved(resolved)) => resolved,
            other => panic!("{other:?}"),
        };
        assert_eq!(resolved.dgid, name(&mut bench, other));
        let qpn = new_qp(&mut bench, one, Service::Rc);
        let (parameters, private) = (CmParameters::NONE, [0; CM_PRIVATE_BYTES]);
        said(&mut bench, one, ConnectCmId { id, qpn, parameters, private }).unwrap();
        let asked = cm_events(&mut bench, other);
        let [asked] = &asked[..] else { panic!("{asked:?}") };
        let mut shown = Message::from(*asked);
        bench.tenancy.show_numbers(SessionId(other), &mut shown);
        assert!(matches!(shown, Message::CmHappened(it) if it.qpn == qpn));
        let unknown = ResolveCmId {
            id: id_of(&mut bench, one),
            flags: 0,
            local: CmAddress::NONE,
            remote: address(9, 7471),
        };
        assert_eq!(errno(said(&mut bench, one, unknown)), omniverb_terms::Errno::EHOSTUNREACH);
    }
    assert!(cm_events(&mut bench, 2).is_empty());
}

/// The route from vNIC 1 to another host.
fn to_host(remote: [u8; 4]) -> UnderlayRoute {
    UnderlayRoute::plain([192, 0, 2, 1].into(), remote.into(), 0)
}

#[test]
fn a_connection_manager_of_another_host_is_heard_by_its_own_number_alone() {
    let mut bench = two_tenants();
    describe(&mut bench, Some(far_place([192, 0, 2, 2], 0x50_0000)));
    let disconnect = omniverb_cm::Disconnect {
        communication: 5,
        remote: 6,
        queue_pair: Qpn(7),
        private: [0; 220],
    };
    let message = omniverb_cm::Message::Disconnect(disconnect);
    let mad = omniverb_cm::Mad { transaction: 9, modifier: 0, message }.to_bytes();
    // A program's queue pair; those of no vNIC; the right one.
    for (source, answers) in [(0x50_0002, 0), (1, 0), (0x50_0401, 0), (0x50_0001, 1)] {
        bench.told.clear();
        let route = to_host([192, 0, 2, 2]);
        let actions = bench.tenancy.management(vnic(1), Qpn(source), &route, &mad, bench.now);
        bench.carry_out(actions);
        assert_eq!(sent(&bench).len(), answers, "{source:#x}");
    }
}

#[test]
fn links_for_datagrams_end_with_the_description_of_their_sender() {
    let (host, other) = ([192, 0, 2, 2], [192, 0, 2, 3]);
    let first = far_place(host, 0x50_0000);
    for changed in [None, Some(far_place(host, 0x50_0400)), Some(far_place(other, 0x50_0000))] {
        let mut bench = two_tenants();
        describe(&mut bench, Some(first));
        let ud = new_qp(&mut bench, 1, Service::Ud);
        let (qpn, source) = (Qpn(0x40_0400 + ud.0), Qpn(0x50_0005));
        let actions = bench.tenancy.stranger(vnic(1), (qpn, source), &to_host(host), bench.now);
        bench.carry_out(actions);
        assert_eq!(engine_links(&bench).len(), 1);
        describe(&mut bench, Some(first));
        assert_eq!(detached(&bench), [], "nothing has changed");
        describe(&mut bench, changed);
        assert_eq!(detached(&bench), [(qpn, source)], "{changed:?}");
        let reason = CLOSED_BY_PEER;
        let closed = LinkClosed { qpn, peer_qpn: source, reason, reserved: 0 };
        assert!(events(&mut bench, 1).contains(&closed.into()));
        bench.tenancy.check_accounts();
    }
}

/// What processes say of queue pairs that are not theirs changes nothing; of what they say of their
/// own, no more is kept than links are paid for.
#[test]
fn forged_names_cost_bounded_memory_and_other_processes_nothing() {
    let mut bench = two_tenants();
    let names = [name(&mut bench, 3), name(&mut bench, 4)];
    let (a, b) = (new_qp(&mut bench, 3, Service::Rc), new_qp(&mut bench, 4, Service::Rc));
    connect(&mut bench, 3, a, (b, names[1]));
    connect(&mut bench, 4, b, (a, names[0]));
    let [(first, second)] = &links(&bench)[..] else { panic!("{:?}", links(&bench)) };
    let (session, victim, peer) = (first.session, first.ready.qpn, second.ready.qpn);
    let shown = bench.tenancy.shown_ends(session, victim, peer);
    // Process 1 is of another tenant.
    let own = new_qp(&mut bench, 1, Service::Ud);
    let sgid = name(&mut bench, 1);
    let forged = |n: u32| Gid::new((u128::from(n) << 64 | 0xfd00_u128 << 112).to_be_bytes());
    let ask = |qpn, n| {
        let (dest_qpn, dgid) = (Qpn(2 + n), forged(n));
        ConnectQp { qpn, dest_qpn, sgid, dgid, resume: 0, carries: 0 }
    };
    for n in 0..20_000 {
        for qpn in [victim, own, Qpn(0x60_0000 + n)] {
            let mut message = Message::from(ask(qpn, n));
            bench.tenancy.read_numbers(SessionId(1), &mut message);
        }
    }
    assert_eq!(bench.tenancy.shown_ends(session, victim, peer), shown);
    bench.tenancy.check_accounts();
    for n in 0..300 {
        said(&mut bench, 1, ask([own, victim, Qpn(5)][n as usize % 3], n));
    }
    assert_eq!(bench.tenancy.shown_ends(session, victim, peer), shown);
}

/// The interface of a vNIC has the addresses of these numbers.
fn interface_has(bench: &mut Bench, at: u64, numbers: &[u64]) {
    let address = |number: &u64| VnicAddress {
        ip: ip(*number),
        interface: 2,
        reach: Reach::Global,
        is_loopback: false,
        mtu: 1500,
    };
    let list: Vec<VnicAddress> = numbers.iter().map(address).collect();
    let actions = bench.tenancy.addresses(vnic(at), &list, bench.now);
    bench.carry_out(actions);
}

/// No network is asked there: which vNIC has an address the operator has said.
#[test]
fn sockets_relate_within_a_virtual_network_by_described_addresses() {
    let mut bench = two_tenants();
    interface_has(&mut bench, 3, &[1]);
    interface_has(&mut bench, 4, &[2]);
    bench.told.clear();
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    assert_eq!(relate(&mut bench, 2, [(3, 1), (4, 2)]), [Ok(())], "the same addresses");
    let asks = |action: &Action| matches!(action, Action::Probe { .. } | Action::OpenPort { .. });
    assert!(!bench.told.iter().any(asks), "{:?}", bench.told);
    // From one tenant to the other, by addresses that both of them have.
    let not_there = [Err(RelationRefusal::NotThere)];
    for (number, ends) in [(3, [(1, 1), (4, 2)]), (4, [(2, 2), (3, 1)])] {
        assert_eq!(relate(&mut bench, number, ends), not_there);
    }
    // An address that is on the interface, and not described; one that is another vNIC's.
    let not_its = [Err(RelationRefusal::NotItsAddress)];
    for (number, claimed) in [(5, 5), (6, 2)] {
        interface_has(&mut bench, 1, &[1, claimed]);
        assert_eq!(relate(&mut bench, number, [(1, claimed), (2, 2)]), not_its);
    }
    // Vnic 3 loses its address: that is read after a while.
    bench.wait(10_000_000_000);
    assert_eq!(verdicts(&mut bench, 2), not_its);
    assert_eq!(relate(&mut bench, 7, [(3, 1), (4, 2)]), not_its, "described, and not there");
    bench.wait(10_000_000_000);
    assert_eq!(verdicts(&mut bench, 1), [], "the others have theirs");
    let actions = bench.tenancy.set_place(vnic(2), None);
    bench.carry_out(actions);
    assert_eq!(verdicts(&mut bench, 1), [Err(RelationRefusal::Gone)]);
    bench.tenancy.check_accounts();
}

#[test]
fn a_queue_pair_is_in_groups_of_its_tenant_until_its_vnic_leaves_it() {
    let mut bench = two_tenants();
    let group: Gid = std::net::Ipv4Addr::new(239, 1, 2, 3).into();
    let attach = |bench: &mut Bench, session: u64, qpn: Qpn, gid: Gid| {
        call(bench, session, AttachGroup { qpn, reserved: 0, gid })
    };
    let attached = [1, 3].map(|session| {
        let qpn = qp(&mut bench, session, Service::Ud);
        match attach(&mut bench, session, qpn, group) {
            Some(Message::GroupAttached(attached)) => (attached.qpn, attached.peer_qpn),
            other => panic!("{other:?}"),
        }
    });
    let links = engine_links(&bench);
    let underlays: Vec<UnderlayRoute> = links.iter().map(|link| link.underlay).collect();
    let route = UnderlayRoute::plain([192, 0, 2, 1].into(), group.address(), 0);
    assert_eq!(underlays, [route; 2], "of both tenants, from their underlay addresses");
    assert!(links.iter().all(|link| link.ready.peer_qpn.is_group()));
    // Addresses of a virtual network are IPv4.
    let six: Gid = "ff15::1".parse::<std::net::Ipv6Addr>().unwrap().into();
    assert!(matches!(attach(&mut bench, 1, attached[0].0, six), Some(Message::Failed(_))));
    // A vNIC that comes to another tenant is in its groups only once its process attaches again.
    bench.told.clear();
    let actions = bench.tenancy.set_place(vnic(1), None);
    bench.carry_out(actions);
    assert_eq!(detached(&bench), [attached[0]]);
    // Flat: by the network of its namespace.
    let again = attach(&mut bench, 1, attached[0].0, group);
    assert!(matches!(again, Some(Message::GroupAttached(_))), "{again:?}");
    assert_eq!(bench.tenancy.in_flat_groups(), [vnic(1)]);
}
