//! Tests that nothing is acknowledged for an application whose process has ended.

use super::app_and_qp_of_one_end::{Side, side};
use super::late_payload::talk;
use omniverb_datapath::peer_features;
use omniverb_link::Request;
use omniverb_link::record::{FIRST, LAST};
use omniverb_ring::UserMemory;
use omniverb_terms::Service;

/// Sends a message; whether it is complete.
fn send(asker: &mut Side, holder: &mut Side) -> bool {
    let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
    let application = &mut asker.application;
    let sent = UserMemory::lend(&[7; 100], |part| application.send_request(&request, 100, [&part]));
    assert_eq!(sent, Ok(true));
    assert_eq!(talk(1, asker, holder), 1);
    talk(1, holder, asker);
    asker.engine.serve(1);
    asker.application.request_consumed(asker.application.request_position()).unwrap()
}

#[test]
fn a_message_for_the_dead_is_not_acknowledged() {
    for features in [0, peer_features::ALL] {
        let [mut asker, mut holder] = [(); 2].map(|()| side(Service::Rc, features));
        assert!(send(&mut asker, &mut holder), "there is a receive, and it is long enough");
        holder.die();
        assert!(!send(&mut asker, &mut holder));
    }
}
