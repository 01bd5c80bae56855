//! UC: messages get lost, wholly, and the next one arrives.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, PD, Pair, outcomes, poll, post, receive, to_init, to_rtr, to_rts, to_state,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::limits::{LINK_WAIT, RECEIVER_AWAY, UNRELIABLE_WAIT};
use omniverb_device::qp_attributes::State;
use omniverb_device::{Qp, Srq, access, status};
use omniverb_terms::{Rkey, Service};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn uc() -> Options {
    Options::new(Service::Uc)
}

/// A small message arrives in the next receive.
fn next_one_arrives(pair: &Pair, qps: &[Arc<Qp>; 2], wr_id: u64) {
    let (from, to) = (Buffer::pattern(33, wr_id + 40), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    // Into whatever receive is oldest, so this one may be for later.
    let _ = qps[1].post_recv(wr_id, &[whole(&target)]);
    post(&qps[0], &Work::send(wr_id).sge(whole(&local)));
    pair.settle();
    let sent = outcomes(&qps[0].send_cq);
    assert_eq!(sent.last(), Some(&(wr_id, status::SUCCESS)));
    let received = poll(&qps[1].recv_cq);
    assert_eq!(received.len(), 1, "{received:?}");
    assert_eq!((received[0].status, received[0].byte_len), (status::SUCCESS, 33));
    assert_eq!((qps[0].state(), qps[1].state()), (State::Rts, State::Rts));
    assert!(pair.sides[1].events().is_empty());
}

#[test]
fn a_message_too_long_is_lost_and_its_receive_serves_the_next() {
    for size in [65, 20_000, 1 << 20] {
        let pair = Pair::new();
        let qps = pair.connected(&uc());
        let (from, to) = (Buffer::pattern(size, 1), Buffer::new(64));
        let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
        receive(&qps[1], 1, &[whole(&target)]);
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
        assert!(poll(&qps[1].recv_cq).is_empty());
        next_one_arrives(&pair, &qps, 2);
    }
}

#[test]
fn a_write_that_is_not_allowed_is_lost() {
    for size in [8, 100_000] {
        let pair = Pair::new();
        let qps = pair.connected(&uc());
        let (from, to) = (Buffer::pattern(size, 1), Buffer::new(size));
        let local = pair.sides[0].register(&from);
        let target = pair.sides[1].register_in(PD, &to, access::LOCAL_WRITE | access::REMOTE_READ);
        let good = pair.sides[1].register(&to);
        let places = [remote(&target, 0), (5, Rkey(5)), remote(&good, 1)];
        for (id, at) in places.into_iter().enumerate() {
            let work = Work::write(id as u64, at).sge(whole(&local));
            post(&qps[0], &work);
            post(&qps[0], &work.immediate(4));
            pair.settle();
            assert_eq!(outcomes(&qps[0].send_cq).len(), 2);
            assert!(poll(&qps[1].recv_cq).is_empty());
            next_one_arrives(&pair, &qps, 10 + id as u64);
        }
        assert!(to.all().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_message_waits_a_while_for_a_receive_and_is_lost_then() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    post(&qps[0], &Work::send(1));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    pair.wait(RECEIVER_AWAY - 1);
    receive(&qps[1], 5, &[]);
    pair.settle();
    assert_eq!(outcomes(&qps[1].recv_cq), [(5, status::SUCCESS)]);
    post(&qps[0], &Work::send(2));
    pair.settle();
    pair.wait(RECEIVER_AWAY);
    next_one_arrives(&pair, &qps, 3);
}

/// The receiver does not look for a while: the sender gives up in the middle of a message. The
/// receiver takes up again at the next message, into the same receive.
#[test]
fn a_message_that_was_broken_off_is_lost_alone() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    let (from, to) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    for with_receive in [true, false] {
        if with_receive {
            receive(&qps[1], 1, &[whole(&target)]);
            post(&qps[0], &Work::send(1).sge(whole(&local)));
        } else {
            post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
        }
        qps[0].pump();
        pair.clock.fetch_add(RECEIVER_AWAY - 1, Ordering::Relaxed);
        qps[0].pump();
        assert!(outcomes(&qps[0].send_cq).is_empty());
        pair.clock.fetch_add(1, Ordering::Relaxed);
        qps[0].pump();
        assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
        next_one_arrives(&pair, &qps, 2);
    }
}

/// Both get a processor now and then only: a message takes its time, and is not lost while it goes
/// on, however long that is in all.
#[test]
fn a_long_message_is_not_lost_while_it_goes_on() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    let (from, to) = (Buffer::pattern(4 << 20, 1), Buffer::new(4 << 20));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    for round in 0..2 {
        receive(&qps[1], round, &[whole(&target)]);
        let write = Work::write(round, remote(&target, 0)).immediate(4);
        let work = if round == 0 { Work::send(round) } else { write };
        post(&qps[0], &work.sge(whole(&local)));
        let mut turns = 0;
        while outcomes(&qps[0].send_cq).is_empty() {
            pair.clock.fetch_add(UNRELIABLE_WAIT - 1, Ordering::Relaxed);
            qps[0].pump();
            qps[1].pump();
            turns += 1;
        }
        assert!(turns * UNRELIABLE_WAIT > RECEIVER_AWAY, "{turns} turns");
        pair.settle();
        assert_eq!(outcomes(&qps[1].recv_cq), [(round, status::SUCCESS)]);
        assert_eq!(to.all(), from.all());
        to.write(0, &vec![0; 4 << 20]);
    }
}

/// A peer that takes nothing at all is waited for once, and then with each message for a short
/// while only.
#[test]
fn a_peer_that_takes_nothing_is_waited_for_once() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    let from = Buffer::new(1 << 20);
    let local = pair.sides[0].register(&from);
    (1..=3).for_each(|id| post(&qps[0], &Work::send(id).sge(whole(&local))));
    let look = |after: u64| {
        pair.clock.fetch_add(after, Ordering::Relaxed);
        qps[0].pump();
        outcomes(&qps[0].send_cq)
    };
    assert!(look(RECEIVER_AWAY - 1).is_empty());
    assert_eq!(look(1), [(1, status::SUCCESS)]);
    assert!(look(UNRELIABLE_WAIT - 1).is_empty());
    assert_eq!(look(1), [(2, status::SUCCESS)]);
    assert_eq!(look(UNRELIABLE_WAIT), [(3, status::SUCCESS)]);
    next_one_arrives(&pair, &qps, 4);
}

#[test]
fn a_closed_peer_holds_up_no_other() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    to_state(&qps[1], State::Reset);
    let from = Buffer::new(8);
    let local = pair.sides[0].register(&from);
    post(&qps[0], &Work::send(1));
    post(&qps[0], &Work::write(2, (0, Rkey(0))).sge(whole(&local)));
    pair.settle();
    pair.wait(UNRELIABLE_WAIT);
    pair.wait(UNRELIABLE_WAIT);
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS), (2, status::SUCCESS)]);
}

/// A peer that never comes is waited for once, and not with each message anew.
#[test]
fn a_peer_that_is_not_found_holds_up_one_message_only() {
    let pair = Pair::new();
    let qp = pair.sides[0].qp(&uc());
    to_init(&qp, &uc());
    to_rtr(&qp, &uc());
    to_rts(&qp, &uc());
    (1..=3).for_each(|id| post(&qp, &Work::send(id)));
    pair.clock.fetch_add(1, Ordering::Relaxed);
    let look = |after: u64| {
        pair.clock.fetch_add(after, Ordering::Relaxed);
        qp.pump();
        outcomes(&qp.send_cq)
    };
    assert!(look(LINK_WAIT - 2).is_empty());
    assert_eq!(look(2), [(1, status::SUCCESS)]);
    assert!(look(UNRELIABLE_WAIT - 1).is_empty());
    assert_eq!(look(1), [(2, status::SUCCESS)]);
    assert_eq!(look(UNRELIABLE_WAIT), [(3, status::SUCCESS)]);
}

#[test]
fn reads_and_atomics_are_refused_when_posted() {
    let pair = Pair::new();
    let qps = pair.connected(&uc());
    for work in [Work::read(1, (0, Rkey(0))), Work::fetch_add(1, (0, Rkey(0)), 1)] {
        let refused = Err(omniverb_device::PostError::Invalid(omniverb_device::PostFault::Opcode));
        assert_eq!(crate::two_device_fixture::try_post(&qps[0], &work), refused);
    }
}

#[test]
fn shared_receives_come_back_when_messages_are_lost() {
    let pair = Pair::new();
    let srq = Srq::new(&pair.sides[1].shared, PD, 2, 1).unwrap();
    let qps = pair.connected_with([&uc(), &uc().with(|o| o.srq = Some(srq.clone()))]);
    let (from, to) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    for round in 0..10 {
        // Too long; then broken off.
        srq.post(round, &[part(&target, 0, 64)]).unwrap();
        post(&qps[0], &Work::send(1).sge(part(&local, 0, 65)));
        pair.settle();
        assert_eq!(outcomes(&qps[1].recv_cq), [(round, status::LOC_LEN_ERR)]);
        srq.post(round, &[whole(&target)]).unwrap();
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        qps[1].pump();
        qps[0].pump();
        pair.clock.fetch_add(RECEIVER_AWAY, Ordering::Relaxed);
        qps[0].pump();
        let work = Work::write(2, remote(&target, 0)).sge(part(&local, 0, 8));
        post(&qps[0], &work);
        pair.settle();
        assert_eq!(to.read(0, 8), from.read(0, 8));
        poll(&qps[0].send_cq);
        poll(&qps[1].recv_cq);
    }
}
