//! Repeats the tests of grants with many extents side by side in one file.
//!
//! Their offsets are not 0, as in a virtual machine's window.

#[path = "all/engine_grants.rs"]
mod engine_grants;
#[path = "all/grant_lifetime.rs"]
mod grant_lifetime;
#[path = "all/numbers_keys_and_quotas.rs"]
mod object_limits;
#[path = "all/page_adoption_policy.rs"]
mod page_adoption_policy;
#[path = "all/support/mod.rs"]
mod support;

use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::Bench;
use omniverb_tenancy::{Action, Arrived, Channel, FileRange, MemoryFacts};
use omniverb_terms::{Errno, Qpn, Rkey, Service};
use support::*;

const FINAL: MemoryFacts = MemoryFacts { is_final: true, is_write_sealed: false };
const READ_WRITE: u32 = 6;

/// The process that was asked last has moved pages; what comes of it.
fn moved(bench: &mut Bench, owner: u64) -> Vec<Action> {
    let asked = bench.told.iter().rev().find_map(|action| match action {
        Action::Adopt { adopt, .. } => Some(adopt.token),
        _ => None,
    });
    bench.told.clear();
    let message = Adopted { token: asked.unwrap(), errno: Errno(0), epoch: 0 }.into();
    bench.say(owner, &Arrived { channel: Channel::Events, tag: 0, message, memory: Some(FINAL) });
    bench.told.clone()
}

/// Process 1 is linked with this one and granted the pages of a key of its; where they are.
fn grant(bench: &mut Bench, owner: u64) -> (Qpn, Rkey, FileRange) {
    let (a, b) = (qp(bench, 1, Service::Rc), qp(bench, owner, Service::Rc));
    call(bench, 1, to(a, 1, b, owner));
    call(bench, owner, to(b, owner, a, 1));
    let rkey = mr(bench, owner, 1, READ_WRITE);
    let (address, length) = (0x11000, 8);
    let ask = RequestGrant { qpn: a, peer_qpn: b, rkey, reserved: 0, address, length };
    assert!(matches!(call(bench, 1, ask), Some(Message::Connected(_))));
    let told = moved(bench, owner);
    let [Action::Grant { file, granted, .. }] = told.as_slice() else { panic!("{told:?}") };
    (b, rkey, place(*file, granted))
}

#[test]
fn the_end_of_one_right_touches_nothing_else_in_the_file() {
    let mut bench = bench();
    (1..=3).for_each(|session| hello(&mut bench, session, session, 0));
    let (_, first_key, first) = grant(&mut bench, 2);
    let (second_qp, _, second) = grant(&mut bench, 3);
    let (_, _, third) = grant(&mut bench, 2);
    assert_eq!([second.file, third.file], [first.file; 2]);
    let mut all = [first, second, third];
    all.sort_unstable();
    assert!(all.is_sorted_by(|one, next| one.offset + one.length <= next.offset), "{all:?}");
    let freed = |bench: &mut Bench| -> Vec<FileRange> {
        let told = std::mem::take(&mut bench.told);
        assert!(!told.iter().any(|action| matches!(action, Action::ForgetFile { .. })));
        let place = |action: &Action| match action {
            Action::EmptyPlace { place } => Some(*place),
            _ => None,
        };
        told.iter().filter_map(place).collect()
    };
    // By the owner, by the end of a link, by the death of an owner: each time that one alone.
    bench.told.clear();
    call(&mut bench, 2, DeregMr { rkey: first_key, reserved: 0 });
    assert_eq!(freed(&mut bench), [first]);
    call(&mut bench, 3, DestroyQp { qpn: second_qp, reserved: 0 });
    assert_eq!(freed(&mut bench), [second]);
    bench.end(2);
    assert!(bench.told.contains(&Action::ForgetFile { file: third.file, watch: false }));
    (1..=3).for_each(|session| bench.end(session));
    assert!(bench.tenancy.is_empty() && bench.mirror.is_empty());
}
