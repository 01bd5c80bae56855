//! Tests a receive that is posted late between two Omniverbs.

use super::app_and_qp_of_one_end::{RECEIVE, Side, side_with};
use super::late_payload::talk;
use omniverb_datapath::peer_features;
use omniverb_link::record::{FIRST, LAST};
use omniverb_link::{Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::Service;
use omniverb_transport::Status;

const MS: u64 = 1_000_000;
const LATE: u64 = 1000 * MS;

/// An application without RNR retries has sent to one without receives, which has said so.
fn refused(features: u32) -> [Side; 2] {
    let [mut asker, mut holder] = [(); 2].map(|()| side_with(Service::Rc, features, 0, 0));
    let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
    let sent =
        UserMemory::lend(&[7; 100], |part| asker.application.send_request(&request, 100, [&part]));
    assert_eq!(sent, Ok(true));
    assert_eq!(talk(1, &mut asker, &mut holder), 1);
    assert_eq!(talk(1, &mut holder, &mut asker), 1, "an RNR NAK");
    [asker, holder]
}

/// Time passes for both.
fn pass(now: u64, asker: &mut Side, holder: &mut Side) {
    for side in [&mut *asker, &mut *holder] {
        if side.engine.next_timeout().is_some_and(|at| at <= now) {
            side.engine.timeout(now);
        }
    }
    talk(now, asker, holder);
    talk(now, holder, asker);
}

#[test]
fn a_receive_that_comes_late_is_taken_at_once() {
    let [mut asker, mut holder] = refused(peer_features::ALL);
    let mut now = 1;
    for _ in 0..90 {
        now += 10 * MS;
        pass(now, &mut asker, &mut holder);
        assert!(asker.engine.take_failure().is_none());
        assert!(holder.engine.waits(), "it is to be told of receives");
    }
    assert!(holder.application.next_request().unwrap().is_none());
    holder.application.publish_credits(1, RECEIVE as u32);
    assert_eq!(talk(now, &mut holder, &mut asker), 1, "there is a receive");
    assert_eq!(talk(now, &mut asker, &mut holder), 1);
    let (_, record) = holder.application.next_request().unwrap().expect("the message");
    assert_eq!(record.length, 100);
    talk(now, &mut holder, &mut asker);
    asker.engine.serve(now);
    assert!(asker.application.request_consumed(asker.application.request_position()).unwrap());
    assert!(asker.application.next_response().unwrap().is_none(), "no NAK");
}

#[test]
fn a_receive_that_does_not_come_is_given_up() {
    let [mut asker, mut holder] = refused(peer_features::ALL);
    let mut now = 1;
    let failure = loop {
        now += MS;
        pass(now, &mut asker, &mut holder);
        if let Some(status) = asker.engine.take_failure() {
            break status;
        }
    };
    assert_eq!(failure, Status::RnrRetryExceeded);
    assert!((LATE..2 * LATE).contains(&now), "{now}");
    let told = asker.application.next_response().unwrap().map(|(response, _)| response);
    assert!(matches!(told, Some(Response::Nak { .. })), "{told:?}");
}

#[test]
fn the_first_refusal_counts_towards_other_implementations() {
    let [mut asker, _] = refused(0);
    assert_eq!(asker.engine.take_failure(), Some(Status::RnrRetryExceeded));
}
