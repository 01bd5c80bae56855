//! Tests messages that reach the connection manager again when it has answered them.

use crate::support::cm_helpers::*;
use crate::support::qp;
use omniverb_session::cm::event;
use omniverb_tenancy::testing::random_driver::underlay;
use omniverb_terms::Service;

/// A request may have been sent again before its refusal arrived; the requester's queue pair sends
/// a new one then, and must not be taken for one that has a connection.
#[test]
fn a_refused_request_is_dropped_when_it_comes_again() {
    for space in [TCP, UDP] {
        let mut bench = two(1, 2);
        connect(&mut bench, 1, at(2), space);
        let (_, mad) = last_sent(&bench);
        bench.wait(SECOND / 16);
        assert_eq!(events(&mut bench, 1).len(), 1, "it is refused");
        listen(&mut bench, 2, space, 0);
        for _ in 0..2 {
            bench.told.clear();
            arrive(&mut bench, 2, underlay(2, 1), &mad);
            assert_eq!(events(&mut bench, 2), []);
            assert!(matches!(sent(&bench)[..], [(_, true)]), "it is refused again");
        }
        assert_eq!(events(&mut bench, 1), []);
        let qpn = qp(&mut bench, 1, if space == TCP { Service::Rc } else { Service::Ud });
        connect_with(&mut bench, 1, at(2), space, qpn);
        assert_eq!(kinds(&mut bench, 2), [(event::CONNECT_REQUEST, 0)]);
        // Not for ever: a later request with the same names is another's.
        bench.wait(6 * SECOND);
        events(&mut bench, 2);
        arrive(&mut bench, 2, underlay(2, 1), &mad);
        assert_eq!(kinds(&mut bench, 2), [(event::CONNECT_REQUEST, 0)]);
    }
}
