//! Wire links of UD: one for each peer, with small rings.

use crate::engine_link_fixture::{PEER, RINGS, SMALL, drain, options, ready};
use crate::fake_engine::{self, respond};
use crate::guarded_buffer::{Buffer, pattern};
use crate::two_device_fixture::{
    Pair, QKEY, gid, outcomes, poll, post, receive, to_init, to_rts, to_state,
};
use crate::work_request_helpers::{Work, part, whole};
use omniverb_device::FarEnd;
use omniverb_device::qp_attributes::State;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{GlobalRoute, status, wc_flags};
use omniverb_link::record::{IMMEDIATE, LAST};
use omniverb_link::{Request, Response};
use omniverb_terms::{Gid, Qkey, Qpn, Service};

fn datagram(length: usize, number: u64) -> Vec<u8> {
    pattern(length, 100 + number)
}

fn to_peer() -> Destination {
    Destination { dgid: gid(1), sgid: gid(0), qpn: PEER }
}

#[test]
fn datagrams_of_every_length_pass_a_small_ring() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Ud));
    let from = Buffer::new(4096);
    let local = pair.sides[0].register(&from);
    let mut arrived = 0;
    for number in 0..200u64 {
        let length = [4096, 0, 1, 1024][number as usize % 4];
        from.write(0, &datagram(length, number));
        let work = Work::send(number).sge(part(&local, 0, length)).to(to_peer(), QKEY);
        post(&qp, &work);
        assert_eq!(outcomes(&qp.send_cq), [(number, status::SUCCESS)]);
        // It comes for them now and then.
        if number % 20 == 19 {
            for (request, bytes) in drain(&mut far) {
                assert_eq!(request, Request::Datagram { flags: LAST, immediate: 0, qkey: QKEY });
                let expected = datagram([4096, 0, 1, 1024][arrived as usize % 4], arrived);
                assert!(bytes == expected, "datagram {arrived}");
                arrived += 1;
            }
        }
    }
    assert_eq!(arrived, 200);
}

#[test]
fn datagrams_from_the_network() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Ud));
    let there = Buffer::new(4136 * 30);
    let target = pair.sides[0].register(&there);
    for id in 0..30u64 {
        receive(&qp, id, &[part(&target, id as usize * 4136, 4136)]);
    }
    let mut arrived = 0;
    for number in 0..30u64 {
        let request =
            Request::Datagram { flags: LAST | IMMEDIATE, immediate: number as u32, qkey: QKEY };
        while !fake_engine::request(&mut far, &request, &datagram(4096, number)) {
            arrived += poll(&qp.recv_cq).len();
        }
    }
    arrived += poll(&qp.recv_cq).len();
    assert_eq!(arrived, 30);
    for number in 0..30u64 {
        let at = number as usize * 4136;
        assert!(there.read(at + 40, 4096) == datagram(4096, number));
        assert_eq!(there.read(at + 32, 4), gid(1).bytes()[12..], "from whom");
    }
}

#[test]
fn datagrams_travel_as_their_address_handle_says() {
    let pair = Pair::new();
    let options = options(Service::Ud);
    let qp = pair.sides[0].qp(&options);
    to_init(&qp, &options);
    to_rts(&qp, &options);
    let route = |traffic_class| GlobalRoute { traffic_class, hop_limit: 5, flow_label: 6 };
    let work = |id, class| Work::send(id).to(to_peer(), QKEY).by(route(class));
    post(&qp, &work(1, 8));
    assert_eq!(pair.sides[0].world.links.lock().unwrap().len(), 1);
    let mut far = fake_engine::open(&pair, 0, &qp, PEER, SMALL);
    assert_eq!(far.peer_global_route(), Some(route(8)), "of the one that was held back");
    assert_eq!(drain(&mut far).len(), 1);
    post(&qp, &work(2, 16));
    assert_eq!(far.peer_global_route(), Some(route(16)));
    // What the QP's other attributes do does not change that.
    to_state(&qp, State::Sqd);
    assert_eq!(far.peer_global_route(), Some(route(16)));
}

/// Two hosts number their QPs alike.
#[test]
fn peers_with_the_same_qpn_are_distinguished() {
    let pair = Pair::new();
    let (qp, mut far) = ready(&pair, &options(Service::Ud));
    let peer = omniverb_device::Peer {
        qpn: PEER,
        dgid: Gid::new([9; 16]),
        sgid: gid(0),
        far_end: FarEnd::Engine,
    };
    let joint = pair.joint(SMALL);
    let index = qp.attach(peer, pair.endpoint(0, &joint)).unwrap();
    pair.sides[0].bell.bind(joint.slot, &qp, index);
    let mut other = pair.endpoint(1, &joint);
    // An invalid answer from one is not held against the other.
    assert!(respond(&mut other, &Response::ReadData { last: true }, &[]));
    other.set_blocked(true);
    pair.sides[0].bell.page.set_ready(joint.slot);
    pair.settle();
    assert!(other.peer_has_closed() && !far.peer_has_closed());
    post(&qp, &Work::send(1).to(to_peer(), QKEY));
    assert_eq!(drain(&mut far).len(), 1);
    assert_eq!(qp.state(), State::Rts);
}

#[test]
fn datagram_queue_pairs_outlive_the_daemon() {
    let pair = Pair::new();
    let (qp, far) = ready(&pair, &options(Service::Ud));
    let other = pair.sides[1].qp(&options(Service::Ud));
    to_init(&other, &options(Service::Ud));
    to_rts(&other, &options(Service::Ud));
    pair.join(&[qp.clone(), other.clone()], RINGS);
    qp.engine_died();
    assert!(far.peer_has_closed());
    assert_eq!((qp.state(), pair.sides[0].events()), (State::Rts, vec![]));
    post(&qp, &Work::send(1).to(to_peer(), QKEY));
    assert_eq!(pair.sides[0].world.links.lock().unwrap().len(), 1, "it asks for a new link");
    let direct = Destination { qpn: other.number, ..to_peer() };
    let room = Buffer::new(40);
    receive(&other, 5, &[whole(&pair.sides[1].register(&room))]);
    post(&qp, &Work::send(2).to(direct, QKEY));
    assert_eq!(outcomes(&other.recv_cq), [(5, status::SUCCESS)]);
}

/// A message to a group names its sender by itself; only an engine's link of that kind may bring
/// it.
#[test]
fn group_datagrams_name_their_sender() {
    let pair = Pair::new();
    let (qp, mut other) = ready(&pair, &options(Service::Ud));
    let group = Qpn::of_group(3);
    let mut far = fake_engine::open(&pair, 0, &qp, group, SMALL);
    let there = Buffer::new(4 * 200);
    let target = pair.sides[0].register(&there);
    for id in 0..4 {
        receive(&qp, id, &[part(&target, id as usize * 200, 150), part(&target, 790, 10)]);
    }
    let message = |source, qkey| Request::Grouped { flags: LAST, immediate: 0, qkey, source };
    let bytes = pattern(140, 3);
    assert!(
        fake_engine::request(&mut far, &message(Qpn(0x99), Qkey(QKEY.0 + 1)), &bytes),
        "another's Q_Key"
    );
    assert!(fake_engine::request(&mut far, &message(Qpn(0x99), QKEY), &bytes));
    assert!(fake_engine::request(&mut far, &message(Qpn(0x98), QKEY), &bytes[..40]));
    pair.settle();
    let came = poll(&qp.recv_cq);
    let seen: Vec<_> = came.iter().map(|wc| (wc.wr_id, wc.src_qp, wc.byte_len)).collect();
    assert_eq!(seen, [(0, 0x99, 140), (1, 0x98, 40)]);
    assert!(came.iter().all(|wc| wc.status == status::SUCCESS && wc.flags & wc_flags::GRH != 0));
    assert!(there.read(0, 140) == bytes && there.read(200, 40) == bytes[..40]);
    // Without a whole header it is invalid, as are one-to-one messages here, and these elsewhere.
    assert!(fake_engine::request(&mut far, &message(Qpn(0x99), QKEY), &bytes[..39]));
    pair.settle();
    assert!(far.peer_has_closed() && qp.state() == State::Rts);
    let mut far = fake_engine::open(&pair, 0, &qp, group, SMALL);
    let plain = Request::Datagram { flags: LAST, immediate: 0, qkey: QKEY };
    assert!(fake_engine::request(&mut far, &plain, &bytes));
    assert!(fake_engine::request(&mut other, &message(Qpn(0x99), QKEY), &bytes));
    pair.settle();
    assert!(far.peer_has_closed() && other.peer_has_closed());
    assert_eq!(poll(&qp.recv_cq), []);
}
