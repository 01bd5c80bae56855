//! Sockets may share memory where queue pairs may have direct links, and for as long.

use crate::support::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Datapath, PathReason, Policy, RelationRefusal};

const PERIOD: u64 = 10_000_000_000;

/// Sessions in the vNICs of their numbers.
fn bench_of(sessions: &[u64]) -> Bench {
    let mut bench = bench();
    for session in sessions {
        hello(&mut bench, *session, *session, 1);
    }
    bench.told.clear();
    bench
}

/// Asks for a relation between the addresses of two numbers in two vNICs.
pub(crate) fn relate(
    bench: &mut Bench,
    number: u64,
    ends: [(u64, u64); 2],
) -> Vec<Result<(), RelationRefusal>> {
    let ends = ends.map(|(at, address)| (vnic(at), ip(address)));
    let actions = bench.tenancy.relate(number, ends, bench.now);
    bench.carry_out(actions);
    verdicts(bench, number)
}

/// The verdicts on a relation since the last call.
pub(crate) fn verdicts(bench: &mut Bench, number: u64) -> Vec<Result<(), RelationRefusal>> {
    let verdict = |action: &Action| match action {
        Action::Related { number: of, verdict } if *of == number => Some(*verdict),
        _ => None,
    };
    let found = bench.told.iter().filter_map(verdict).collect();
    bench.told.retain(|action| verdict(action).is_none());
    found
}

fn set(bench: &mut Bench, at: u64, policy: Policy) {
    let (_, actions) = bench.tenancy.set_policy(vnic(at), policy);
    bench.carry_out(actions);
}

#[test]
fn sockets_relate_by_owned_addresses_only() {
    let mut bench = bench_of(&[1, 2, 3]);
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    assert_eq!(relate(&mut bench, 2, [(2, 2), (1, 1)]), [Ok(())], "either way");
    // An address that is not its own.
    let not_its = [Err(RelationRefusal::NotItsAddress)];
    assert_eq!(relate(&mut bench, 3, [(1, 1), (3, 2)]), not_its);
    assert_eq!(relate(&mut bench, 4, [(1, 3), (2, 2)]), not_its);
    // A vNIC without processes, and one alone.
    assert_eq!(relate(&mut bench, 5, [(1, 1), (5, 5)]), [Err(RelationRefusal::Gone)]);
    assert_eq!(relate(&mut bench, 6, [(1, 1), (1, 1)]), [Err(RelationRefusal::Gone)]);
}

/// Two have the same address: the network says whose it is.
#[test]
fn the_network_decides_the_owner_of_a_shared_address() {
    let mut bench = bench_of(&[1, 2, 3]);
    let both = [(2, 2), (3, 2)];
    for (at, address) in both {
        let list = [omniverb_tenancy::VnicAddress {
            ip: ip(address),
            interface: 2,
            reach: omniverb_tenancy::Reach::Global,
            is_loopback: false,
            mtu: 1500,
        }];
        let actions = bench.tenancy.addresses(vnic(at), &list, bench.now);
        bench.carry_out(actions);
    }
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    assert_eq!(relate(&mut bench, 2, [(1, 1), (3, 2)]), [Err(RelationRefusal::NotThere)]);
}

#[test]
fn policies_that_forward_refuse_and_end_relations() {
    let mut bench = bench_of(&[1, 2]);
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    set(&mut bench, 2, Policy { datapath: Datapath::Forwarded, ..Policy::default() });
    let forwarded = Err(RelationRefusal::Policy(PathReason::PeerForwarded));
    assert_eq!(verdicts(&mut bench, 1), [forwarded]);
    assert_eq!(relate(&mut bench, 2, [(1, 1), (2, 2)]), [forwarded]);
    set(&mut bench, 2, Policy::default());
    assert_eq!(relate(&mut bench, 3, [(1, 1), (2, 2)]), [Ok(())]);
    // An operator ends all of a vNIC's links.
    let actions = bench.tenancy.disconnect_vnic(vnic(1));
    bench.carry_out(actions);
    assert_eq!(verdicts(&mut bench, 3), [Err(RelationRefusal::Gone)]);
}

#[test]
fn a_relation_ends_with_a_vnic_and_with_the_networks_consent() {
    let mut bench = bench_of(&[1, 2, 3]);
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    assert_eq!(relate(&mut bench, 2, [(1, 1), (3, 3)]), [Ok(())]);
    bench.end(3);
    assert_eq!(verdicts(&mut bench, 2), [Err(RelationRefusal::Gone)]);
    for _ in 0..30 {
        bench.wait(PERIOD / 10);
    }
    assert_eq!(verdicts(&mut bench, 1), [], "the network goes on saying so");
    bench.walls.insert((1, 2));
    for _ in 0..100 {
        bench.wait(PERIOD / 10);
    }
    assert_eq!(verdicts(&mut bench, 1), [Err(RelationRefusal::NotThere)]);
}

#[test]
fn an_unneeded_relation_sends_no_probes() {
    let mut bench = bench_of(&[1, 2]);
    assert_eq!(relate(&mut bench, 1, [(1, 1), (2, 2)]), [Ok(())]);
    bench.tenancy.relate_no_more(1);
    bench.told.clear();
    for _ in 0..30 {
        bench.wait(PERIOD / 10);
    }
    let asks = |action: &Action| matches!(action, Action::Probe { .. });
    assert!(!bench.told.iter().any(asks));
    set(&mut bench, 2, Policy { datapath: Datapath::Forwarded, ..Policy::default() });
    assert_eq!(verdicts(&mut bench, 1), []);
}
