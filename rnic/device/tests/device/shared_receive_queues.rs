//! Shared receive queues.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, PD, Pair, outcomes, poll, post, receive, to_state};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, PostError, PostFault, Srq, status, wc_opcode};
use omniverb_terms::Service;
use std::sync::Arc;

/// Side 1 receives from an SRQ; side 0 has receives of its own.
fn options(srq: &Arc<Srq>, rnr_retry: u8) -> [Options; 2] {
    let options = Options::new(Service::Rc).with(|o| o.attributes.rnr_retry = rnr_retry);
    [options.clone(), options.with(|o| o.srq = Some(srq.clone()))]
}

fn srq(pair: &Pair, capacity: u32) -> Arc<Srq> {
    Srq::new(&pair.sides[1].shared, PD, capacity, 4).unwrap()
}

#[test]
fn receives_go_to_the_queue_pair_that_needs_them() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let first = pair.connected_with([&plain, &shared]);
    let second = pair.connected_with([&plain, &shared]);
    let to = Buffer::new(64);
    let target = pair.sides[1].register(&to);
    for id in 0..4 {
        srq.post(id, &[part(&target, id as usize * 16, 16)]).unwrap();
    }
    let from = Buffer::pattern(64, 1);
    let local = pair.sides[0].register(&from);
    for (at, qps) in [&second, &first, &second, &first].into_iter().enumerate() {
        post(&qps[0], &Work::send(9).sge(part(&local, at * 16, 16)));
        // Shared receives cannot be promised: the send is done when it was taken.
        assert!(poll(&qps[0].send_cq).is_empty());
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(9, status::SUCCESS)]);
        let received = poll(&qps[1].recv_cq);
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].wr_id, received[0].qp_num), (at as u64, qps[1].number.0));
    }
    assert_eq!(to.all(), from.all());
    assert_eq!(first[1].post_recv(1, &[]), Err(PostError::Invalid(PostFault::Receives)));
}

#[test]
fn an_empty_srq_leaves_the_message_in_the_ring() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let qps = pair.connected_with([&plain, &shared]);
    let (from, to) = (Buffer::pattern(100_000, 1), Buffer::new(100_000));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    post(&qps[0], &Work::send(1).sge(whole(&local)));
    post(&qps[0], &Work::write(2, remote(&target, 0)).sge(part(&local, 5, 5)));
    for _ in 0..10 {
        pair.wait(640_000);
        assert!(poll(&qps[0].send_cq).is_empty());
    }
    // What is behind it waits, too.
    assert_eq!(to.read(0, 5), [0; 5]);
    srq.post(3, &[whole(&target)]).unwrap();
    pair.settle();
    let expected = [(1, status::SUCCESS), (2, status::SUCCESS)];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
    let received = poll(&qps[1].recv_cq);
    assert_eq!((received[0].wr_id, received[0].byte_len), (3, 100_000));
    assert_eq!(to.read(0, 5), from.read(5, 5));
    assert!(to.read(5, 99_995) == from.read(5, 99_995));
}

#[test]
fn an_empty_queue_counts_as_receiver_not_ready() {
    for retries in 0..3 {
        let pair = Pair::new();
        let srq = srq(&pair, 8);
        let [plain, shared] = options(&srq, retries);
        let qps = pair.connected_with([&plain, &shared]);
        post(&qps[0], &Work::send(1));
        post(&qps[0], &Work::send(2));
        pair.settle();
        let others = u64::from(retries.saturating_sub(1)) * 640_000;
        pair.wait(omniverb_device::limits::RECEIVER_LATE - others - 1);
        assert!(poll(&qps[0].send_cq).is_empty());
        pair.wait(1);
        for _ in 1..retries {
            assert!(poll(&qps[0].send_cq).is_empty());
            pair.wait(640_000);
        }
        let expected = [(1, status::RNR_RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), expected, "{retries} retries");
        // Heard and said, once each, and what came of it: docs/architecture.md has the words.
        let counted = |side: usize, word| pair.sides[side].counted(&qps[side], word);
        assert_eq!((counted(0, 10), counted(0, 11), counted(0, 13)), (1, 0, 1));
        assert_eq!((counted(1, 10), counted(1, 11), counted(1, 13)), (0, 1, 0));
    }
}

#[test]
fn one_receive_serves_one_of_two_that_wait() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let links = [0, 1, 2].map(|_| pair.connected_with([&plain, &shared]));
    for qps in &links {
        post(&qps[0], &Work::send(1));
    }
    pair.settle();
    for round in 1..=3 {
        srq.post(round, &[]).unwrap();
        pair.settle();
        let got: usize = links.iter().map(|qps| poll(&qps[1].recv_cq).len()).sum();
        let done: usize = links.iter().map(|qps| poll(&qps[0].send_cq).len()).sum();
        assert_eq!((got, done), (1, 1));
    }
}

#[test]
fn the_limit_event_comes_once() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let qps = pair.connected_with([&plain, &shared]);
    (0..6).for_each(|id| srq.post(id, &[]).unwrap());
    assert!(!srq.set_limit(9) && srq.set_limit(4));
    assert_eq!(srq.query(), (8, 4, 4));
    let expected: [&[AsyncEvent]; 5] = [&[], &[], &[AsyncEvent::SrqLimitReached], &[], &[]];
    for events in expected {
        post(&qps[0], &Work::send(1));
        pair.settle();
        assert_eq!(pair.sides[1].events(), events);
    }
    assert_eq!(srq.query().2, 0);
    // Armed below the limit.
    assert!(srq.set_limit(4));
    assert_eq!(pair.sides[1].events(), [AsyncEvent::SrqLimitReached]);
}

#[test]
fn a_full_srq_stays_full_until_completions_are_polled() {
    let pair = Pair::new();
    let srq = srq(&pair, 2);
    let [plain, shared] = options(&srq, 7);
    let qps = pair.connected_with([&plain, &shared]);
    (0..2).for_each(|id| srq.post(id, &[]).unwrap());
    assert_eq!(srq.post(2, &[]), Err(PostError::Full));
    let long = [omniverb_device::Sge::default(); 5];
    assert_eq!(srq.post(2, &long), Err(PostError::Invalid(PostFault::Entries)));
    post(&qps[0], &Work::send(1));
    pair.settle();
    assert_eq!(srq.post(2, &[]), Err(PostError::Full));
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    srq.post(2, &[]).unwrap();
    assert_eq!(srq.post(3, &[]), Err(PostError::Full));
}

/// However a QP ends, what it took from the queue makes room again.
#[test]
fn no_place_is_lost_when_queue_pairs_end() {
    type Ending = fn(&Pair, &[Arc<omniverb_device::Qp>; 2]);
    let endings: [Ending; 4] = [
        |_, qps| to_state(&qps[1], State::Reset),
        |_, qps| qps[1].destroy(),
        |_, qps| to_state(&qps[1], State::Err),
        |_, qps| qps[1].peer_died(qps[0].number),
    ];
    let pair = Pair::new();
    let srq = srq(&pair, 1);
    let [plain, shared] = options(&srq, 7);
    let from = Buffer::pattern(1 << 20, 1);
    let local = pair.sides[0].register(&from);
    let to = Buffer::new(1 << 20);
    let target = pair.sides[1].register(&to);
    for (number, end) in endings.into_iter().enumerate() {
        // Half a message arrives.
        let qps = pair.connected_with([&plain, &shared]);
        srq.post(1, &[whole(&target)]).unwrap_or_else(|why| panic!("ending {number}: {why:?}"));
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        qps[1].pump();
        end(&pair, &qps);
        poll(&qps[1].recv_cq);

        // A whole one arrives, and no poll is made.
        let qps = pair.connected_with([&plain, &shared]);
        srq.post(2, &[whole(&target)]).unwrap_or_else(|why| panic!("ending {number}: {why:?}"));
        post(&qps[0], &Work::send(1));
        qps[1].pump();
        end(&pair, &qps);
        poll(&qps[1].recv_cq);
    }
    assert_eq!(srq.post(3, &[]), Ok(()));
}

#[test]
fn the_last_receive_is_announced() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let qps = pair.connected_with([&plain, &shared]);
    srq.post(1, &[]).unwrap();
    to_state(&qps[1], State::Err);
    assert_eq!(pair.sides[1].events(), [AsyncEvent::QpLastWqeReached]);
    assert!(poll(&qps[1].recv_cq).is_empty(), "shared receives are not flushed");
    assert!(srq.is_busy());
    qps[1].destroy();
    assert!(!srq.is_busy());
}

#[test]
fn a_write_with_immediate_takes_a_shared_receive() {
    let pair = Pair::new();
    let srq = srq(&pair, 8);
    let [plain, shared] = options(&srq, 7);
    let qps = pair.connected_with([&plain, &shared]);
    let (from, to) = (Buffer::pattern(40_000, 1), Buffer::new(40_000));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    let work = Work::write(1, remote(&target, 0)).sge(whole(&local)).immediate(3);
    post(&qps[0], &work);
    pair.settle();
    // The part with the immediate data has not been placed.
    assert_eq!(to.read(39_999, 1), [0]);
    srq.post(2, &[]).unwrap();
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    let received = poll(&qps[1].recv_cq);
    assert_eq!((received[0].opcode, received[0].byte_len), (wc_opcode::RECV_RDMA_WITH_IMM, 40_000));
    assert!(to.all() == from.all());
    // And the other way round: side 0 has receives of its own.
    receive(&qps[0], 4, &[]);
    post(&qps[1], &Work::send(5));
    pair.settle();
    assert_eq!(outcomes(&qps[0].recv_cq), [(4, status::SUCCESS)]);
}
