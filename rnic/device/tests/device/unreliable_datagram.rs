//! UD: finding the peer, the header in front, what is dropped without a word.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, Pair, QKEY, gid, outcomes, poll, post, receive, to_init, to_rts,
};
use crate::work_request_helpers::{Work, part, whole};
use omniverb_device::limits::{
    ANSWER_WAIT, DATAGRAM_LINKS_MAX, RECEIVER_AWAY, UNRELIABLE_WAIT, UNRESOLVED_MAX,
};
use omniverb_device::qp_attributes::State;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{PostError, PostFault, Qp, Wc, status, wc_flags, wc_opcode};
use omniverb_terms::{Qkey, Qpn, Rkey, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn ready(pair: &Pair, side: usize) -> Arc<Qp> {
    let options = Options::new(Service::Ud);
    let qp = pair.sides[side].qp(&options);
    to_init(&qp, &options);
    to_rts(&qp, &options);
    qp
}

fn unlinked(pair: &Pair) -> [Arc<Qp>; 2] {
    [ready(pair, 0), ready(pair, 1)]
}

fn linked(pair: &Pair) -> [Arc<Qp>; 2] {
    let qps = unlinked(pair);
    pair.join(&qps, Options::new(Service::Ud).ring_bytes);
    qps
}

/// Where side 0 reaches a QP of side 1.
fn to(qp: &Qp) -> Destination {
    Destination { dgid: gid(1), sgid: gid(0), qpn: qp.number }
}

fn asked(pair: &Pair) -> Vec<(Qpn, Destination)> {
    std::mem::take(&mut *pair.sides[0].world.links.lock().unwrap())
}

#[test]
fn the_first_message_asks_for_a_link_and_is_held_back() {
    let pair = Pair::new();
    let qps = unlinked(&pair);
    let (from, there) = (Buffer::pattern(4096, 1), Buffer::new(4200));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&there));
    for id in 0..3 {
        receive(&qps[1], id, &[part(&target, 0, 60), part(&target, 60, 4140)]);
        let work = Work::send(id).sge(whole(&local)).immediate(id as u32);
        post(&qps[0], &work.to(to(&qps[1]), QKEY));
    }
    pair.settle();
    assert_eq!(asked(&pair), [(qps[0].number, to(&qps[1]))]);
    // Held back in a copy, so the application has its buffers back.
    assert_eq!(outcomes(&qps[0].send_cq), [(0, 0), (1, 0), (2, 0)]);
    pair.join(&qps, Options::new(Service::Ud).ring_bytes);
    pair.settle();
    let received = poll(&qps[1].recv_cq);
    assert_eq!(received.len(), 3);
    for (id, wc) in received.iter().enumerate() {
        let expected = Wc {
            wr_id: id as u64,
            opcode: wc_opcode::RECV,
            byte_len: 4096 + 40,
            immediate: id as u32,
            qp_num: qps[1].number.0,
            src_qp: qps[0].number.0,
            flags: wc_flags::GRH | wc_flags::WITH_IMM,
            sl: 2, // IPv4
            ..Wc::default()
        };
        assert_eq!(*wc, expected);
    }
    assert!(there.read(40, 4096) == from.all());
    assert_eq!(there.read(4136, 64), [0; 64]);
    // An IPv4 header, from us to them, in the second half of the 40 bytes.
    let header = there.read(0, 40);
    assert_eq!((&header[..20], header[20]), (&[0; 20][..], 0x45));
    assert_eq!((&header[32..36], &header[36..40]), (&gid(0).bytes()[12..], &gid(1).bytes()[12..]));
}

#[test]
fn no_listener_there() {
    let pair = Pair::new();
    let qps = unlinked(&pair);
    let nobody = Destination { qpn: Qpn(9999), ..to(&qps[1]) };
    post(&qps[0], &Work::send(1).to(nobody, QKEY));
    qps[0].unreachable(nobody);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    // Known for a second; asked again after that.
    post(&qps[0], &Work::send(2).to(nobody, QKEY));
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
    assert_eq!(asked(&pair).len(), 1);
    pair.wait(1_000_000_001);
    post(&qps[0], &Work::send(3).to(nobody, QKEY));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(3, status::SUCCESS)]);
    assert_eq!(asked(&pair).len(), 1);
}

/// The daemon never answers, say because it died: the message is lost, and a later one asks again.
#[test]
fn an_unanswered_link_request_is_repeated() {
    let pair = Pair::new();
    let qps = unlinked(&pair);
    post(&qps[0], &Work::send(1).to(to(&qps[1]), QKEY));
    pair.settle();
    assert_eq!(asked(&pair).len(), 1);
    for _ in 0..21 {
        pair.wait(UNRELIABLE_WAIT);
    }
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    post(&qps[0], &Work::send(2).to(to(&qps[1]), QKEY));
    pair.settle();
    assert_eq!(asked(&pair).len(), 1, "asked again");
}

/// Questions that are never answered do not fill the place of those that are, for good.
#[test]
fn held_back_messages_without_a_waiter_are_released() {
    let pair = Pair::new();
    let qps = unlinked(&pair);
    for id in 0..UNRESOLVED_MAX as u64 {
        let nobody = Destination { qpn: Qpn(5000 + id as u32), ..to(&qps[1]) };
        post(&qps[0], &Work::send(id).to(nobody, QKEY));
        assert_eq!(outcomes(&qps[0].send_cq), [(id, status::SUCCESS)]);
    }
    post(&qps[0], &Work::send(1).to(to(&qps[1]), QKEY));
    pair.settle();
    assert!(poll(&qps[0].send_cq).is_empty(), "no place to hold it back");
    pair.wait(ANSWER_WAIT);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    post(&qps[0], &Work::send(2).to(to(&qps[1]), QKEY));
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
}

/// Its receiver has no processor, and takes nothing: a datagram waits for room for a second, if it
/// holds up no other, and the next ones are lost at once, until there is room. Where others wait
/// behind it, it is lost sooner.
#[test]
fn a_datagram_waits_for_room_unless_others_wait_behind_it() {
    for others_after in [None, Some(0), Some(3)] {
        let pair = Pair::new();
        let [qp, there] = linked(&pair);
        let nobody = Destination { qpn: Qpn(9999), ..to(&there) };
        qp.unreachable(nobody);
        let from = Buffer::new(4096);
        let local = pair.sides[0].register(&from);
        let datagram = |id| Work::send(id).sge(whole(&local)).to(to(&there), QKEY);
        let mut id = 0;
        while outcomes(&qp.send_cq) == [(id, status::SUCCESS)] || id == 0 {
            id += 1;
            assert!(id < 10_000);
            post(&qp, &datagram(id));
        }
        post(&qp, &datagram(id + 1));
        let mut waits = 0;
        let lost = loop {
            if others_after == Some(waits) {
                post(&qp, &Work::send(id + 2).to(nobody, QKEY));
            }
            pair.clock.fetch_add(UNRELIABLE_WAIT, Ordering::Relaxed);
            qp.pump();
            waits += 1;
            let lost = outcomes(&qp.send_cq);
            if !lost.is_empty() {
                break lost;
            }
        };
        assert_eq!(lost[..2], [(id, status::SUCCESS), (id + 1, status::SUCCESS)]);
        let all = RECEIVER_AWAY / UNRELIABLE_WAIT;
        assert_eq!(waits, others_after.map_or(all, |after| after + 1), "{others_after:?}");
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_the_receive_stays() {
    let pair = Pair::new();
    let qps = linked(&pair);
    let (from, there) = (Buffer::pattern(64, 1), Buffer::new(104));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&there));
    receive(&qps[1], 1, &[part(&target, 0, 103)]);
    post(&qps[0], &Work::send(1).sge(whole(&local)).to(to(&qps[1]), QKEY));
    post(&qps[0], &Work::send(2).sge(part(&local, 0, 63)).to(to(&qps[1]), QKEY));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, 0), (2, 0)]);
    let received = poll(&qps[1].recv_cq);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].wr_id, received[0].byte_len), (1, 103));
    assert_eq!(there.read(40, 63), from.read(0, 63));
}

#[test]
fn the_key_must_match() {
    let pair = Pair::new();
    let qps = linked(&pair);
    let there = Buffer::new(40);
    let target = pair.sides[1].register(&there);
    receive(&qps[1], 1, &[whole(&target)]);
    post(&qps[0], &Work::send(1).to(to(&qps[1]), Qkey(QKEY.0 + 1)));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert!(poll(&qps[1].recv_cq).is_empty());
    // Bit 31 means the sender's own.
    post(&qps[0], &Work::send(2).to(to(&qps[1]), Qkey(1 << 31)));
    pair.settle();
    assert_eq!(outcomes(&qps[1].recv_cq), [(1, status::SUCCESS)]);
}

#[test]
fn a_message_longer_than_the_port_takes_fails() {
    let pair = Pair::new();
    let qps = linked(&pair);
    let from = Buffer::new(4097);
    let local = pair.sides[0].register(&from);
    post(&qps[0], &Work::send(1).sge(whole(&local)).to(to(&qps[1]), QKEY));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::LOC_LEN_ERR)]);
}

#[test]
fn without_a_receive_it_waits_a_while_and_is_lost_then() {
    let pair = Pair::new();
    let qps = linked(&pair);
    let there = Buffer::new(40);
    let target = pair.sides[1].register(&there);
    post(&qps[0], &Work::send(1).to(to(&qps[1]), QKEY));
    pair.settle();
    pair.wait(RECEIVER_AWAY - 1);
    receive(&qps[1], 1, &[whole(&target)]);
    pair.settle();
    assert_eq!(outcomes(&qps[1].recv_cq), [(1, status::SUCCESS)]);
    post(&qps[0], &Work::send(2).to(to(&qps[1]), QKEY));
    pair.settle();
    pair.wait(RECEIVER_AWAY);
    receive(&qps[1], 2, &[whole(&target)]);
    pair.settle();
    assert!(poll(&qps[1].recv_cq).is_empty());
}

#[test]
fn connected_operations_are_refused_when_posted() {
    let pair = Pair::new();
    let qps = linked(&pair);
    let refused = |fault| Err(PostError::Invalid(fault));
    let works = [
        Work::send(1),
        Work::write(1, (0, Rkey(0))).to(to(&qps[1]), QKEY),
        Work::read(1, (0, Rkey(0))).to(to(&qps[1]), QKEY),
        Work::send(1).invalidate(Rkey(3)).to(to(&qps[1]), QKEY),
    ];
    let faults = [PostFault::Destination, PostFault::Opcode, PostFault::Opcode, PostFault::Opcode];
    for (work, fault) in works.into_iter().zip(faults) {
        assert_eq!(crate::two_device_fixture::try_post(&qps[0], &work), refused(fault));
    }
    let connected = pair.connected(&Options::new(Service::Rc));
    let work = Work::send(1).to(to(&qps[1]), QKEY);
    assert_eq!(
        crate::two_device_fixture::try_post(&connected[0], &work),
        refused(PostFault::Destination)
    );
}

/// One QP, two peers: one dies, the other goes on.
#[test]
fn a_peer_that_died_is_forgotten() {
    let pair = Pair::new();
    let [sender, first] = linked(&pair);
    let second = ready(&pair, 1);
    pair.join(&[sender.clone(), second.clone()], Options::new(Service::Ud).ring_bytes);
    let there = Buffer::new(40);
    let target = pair.sides[1].register(&there);
    receive(&first, 1, &[whole(&target)]);
    receive(&second, 2, &[whole(&target)]);
    sender.peer_died(first.number);
    assert_eq!(sender.state(), State::Rts);
    post(&sender, &Work::send(1).to(to(&second), QKEY));
    post(&sender, &Work::send(2).to(to(&first), QKEY));
    pair.settle();
    assert_eq!(outcomes(&sender.send_cq), [(1, status::SUCCESS), (2, status::SUCCESS)]);
    assert_eq!(outcomes(&second.recv_cq), [(2, status::SUCCESS)]);
    assert!(poll(&first.recv_cq).is_empty());
    assert_eq!(asked(&pair), [(sender.number, to(&first))]);
}

/// A server talks to more clients in its life than it can hold links at once.
#[test]
fn link_slots_of_dead_peers_are_reused() {
    let pair = Pair::new();
    let server = ready(&pair, 0);
    let rings = (32 << 10, 4 << 10);
    for number in 0..DATAGRAM_LINKS_MAX + 10 {
        let client = ready(&pair, 1);
        let joint = pair.joint(rings);
        let qps = [server.clone(), client.clone()];
        assert!(pair.attach(0, &qps, &joint).is_some(), "client {number}");
        server.peer_died(client.number);
        client.destroy();
    }
}
