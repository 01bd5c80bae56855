//! Connections of XRC: one end asks and sends, the other is asked and receives.

use crate::support::cm_helpers::*;
use crate::support::{call, errno, qp};
use omniverb_cm::reject_reason;
use omniverb_session::Message;
use omniverb_session::cm::*;
use omniverb_terms::{Errno, Service};

/// One end requests and the other responds, whose queue pair stands elsewhere in the answer.
#[test]
fn the_ends_of_xrc_connect_with_each_other_only() {
    const IB: u32 = 0x13f;
    const SENDS: u32 = 9;
    const RECEIVES: u32 = 10;
    for remote in [1, 2] {
        let mut bench = two(1, remote);
        let listener = create(&mut bench, 2, IB, RECEIVES);
        is_bound(bind(&mut bench, 2, listener, address("0.0.0.0:7471")));
        is_bound(call(&mut bench, 2, ListenCmId { id: listener, backlog: 0 }));
        let ask =
            |bench: &mut omniverb_tenancy::testing::random_driver::Bench, qp_type, service| {
                let qpn = qp(bench, 1, service);
                let id = create(bench, 1, IB, qp_type);
                resolve(bench, 1, id, at(remote));
                let (parameters, private) = (parameters(2), [1; CM_PRIVATE_BYTES]);
                (id, call(bench, 1, ConnectCmId { id, qpn, parameters, private }))
            };
        let (_, refused) = ask(&mut bench, RECEIVES, Service::XrcRecv);
        assert_eq!(errno(refused), Errno::EINVAL, "it is asked, and does not ask");
        let (plain, asked) = ask(&mut bench, RC, Service::Rc);
        done(asked);
        let refused = event(&mut bench, 1);
        assert_eq!((refused.event, refused.id), (event::REJECTED, plain));
        assert_eq!(refused.status, i32::from(reject_reason::INVALID_TRANSPORT));
        let (id, asked) = ask(&mut bench, SENDS, Service::XrcSend);
        done(asked);
        let request = event(&mut bench, 2);
        let said = (request.event, request.qpn, request.parameters.responder_resources);
        assert_eq!(said, (event::CONNECT_REQUEST, latest(&bench, 1), 5));
        assert_eq!(request.parameters.initiator_depth, 0, "the end that asks serves nothing");
        let own = qp(&mut bench, 2, Service::XrcRecv);
        done(accept_with(&mut bench, 2, request.id, own));
        let response = event(&mut bench, 1);
        assert_eq!((response.event, response.id, response.qpn), (5, id, own));
        assert_eq!(response.parameters.srq, 1);
        done(establish(&mut bench, 1, id));
        assert_eq!(event(&mut bench, 2).event, event::ESTABLISHED);
        for (session, id, other) in [(1, id, own), (2, request.id, latest(&bench, 1))] {
            let queried = match call(&mut bench, session, QueryCmId { id, reserved: 0 }) {
                Some(Message::CmIdQueried(queried)) => queried,
                other => panic!("{other:?}"),
            };
            assert_eq!(queried.dest_qpn, other);
        }
        done(disconnect(&mut bench, 1, id));
        assert_eq!(event(&mut bench, 2).event, event::DISCONNECTED);
    }
    let mut bench = two(1, 1);
    let asked = CreateCmId { space: TCP, qp_type: SENDS };
    assert_eq!(errno(call(&mut bench, 1, asked)), Errno::EINVAL, "TCP's are RC");
}
