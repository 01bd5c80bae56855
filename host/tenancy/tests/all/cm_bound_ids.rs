//! Ids that have an address of their own, and nothing more.

use crate::support::call;
use crate::support::cm_helpers::*;
use omniverb_session::Message;
use omniverb_session::cm::*;
use omniverb_tenancy::testing::random_driver::Bench;

fn known(bench: &mut Bench, id: u32) -> u32 {
    match call(bench, 1, QueryCmId { id, reserved: 0 }) {
        Some(Message::CmIdQueried(queried)) => queried.known,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_is_all_that_a_queue_pair_needs_to_be_made() {
    let mut bench = two(1, 2);
    let id = create(&mut bench, 1, TCP, RC);
    assert_eq!(known(&mut bench, id), 0);
    is_bound(bind(&mut bench, 1, id, address("10.0.0.1:0")));
    assert_eq!(known(&mut bench, id), CM_KNOWN_INIT);
    let anywhere = create(&mut bench, 1, TCP, RC);
    is_bound(bind(&mut bench, 1, anywhere, address("0.0.0.0:0")));
    assert_eq!(known(&mut bench, anywhere), 0);
    // The peer's address, resolved later, changes nothing.
    resolve(&mut bench, 1, id, at(2));
    assert_eq!(known(&mut bench, id), CM_KNOWN_INIT);
}
