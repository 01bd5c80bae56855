//! Completion counters: what counts as what, also what gives no completion in a CQ.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, PD, Pair, outcomes, poll, post, receive, to_init, to_rts, to_state, try_post,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{
    AttachError, COUNTER_MAX, CountedUnit, Counter, CounterValue, PostError, Qp, Srq, counted,
    send_flags, status,
};
use omniverb_terms::{Rkey, Service};
use std::sync::Arc;

/// Both numbers, as they are.
fn both(counter: &Counter) -> (u64, u64) {
    (counter.read(CounterValue::Successes), counter.read(CounterValue::Failures))
}

fn requests() -> Arc<Counter> {
    Counter::new(CountedUnit::Requests)
}

/// Two that are connected, each with the counters that it is given.
fn counting(
    pair: &Pair,
    options: [&Options; 2],
    counters: [&[(&Arc<Counter>, u32)]; 2],
) -> [Arc<Qp>; 2] {
    let qps = [0, 1].map(|side| {
        let qp = pair.sides[side].qp(options[side]);
        for (counter, operations) in counters[side] {
            qp.attach_counter(counter, *operations).unwrap();
        }
        to_init(&qp, options[side]);
        qp
    });
    pair.join(&qps, options[0].ring_bytes);
    for (qp, options) in qps.iter().zip(options) {
        to_rts(qp, options);
    }
    qps
}

#[test]
fn what_gives_no_completion_is_counted() {
    for service in [Service::Rc, Service::Uc] {
        let pair = Pair::new();
        let options = Options::new(service);
        let [sends, writes, receives, written] = [0; 4].map(|_| requests());
        let qps = counting(
            &pair,
            [&options, &options],
            [
                &[(&sends, counted::SEND), (&writes, counted::RDMA_WRITE)],
                &[(&receives, counted::RECV), (&written, counted::REMOTE_RDMA_WRITE)],
            ],
        );
        let (here, there) = (Buffer::pattern(50_000, 1), Buffer::new(50_000));
        let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
        for id in 0..4 {
            receive(&qps[1], id, &[whole(&target)]);
        }
        post(&qps[0], &Work::send(1).sge(part(&local, 0, 20)).flags(0));
        post(&qps[0], &Work::send(2).sge(whole(&local)).flags(0));
        post(&qps[0], &Work::send(3).sge(part(&local, 0, 1)).immediate(9).flags(0));
        post(&qps[0], &Work::write(4, remote(&target, 0)).sge(whole(&local)).flags(0));
        post(&qps[0], &Work::write(5, remote(&target, 0)).immediate(7).flags(0));
        // No thread polls or takes a turn: the reader has it done.
        let all = [&sends, &receives, &writes, &written];
        for _ in 0..100 {
            all.iter().for_each(|counter| _ = both(counter));
        }
        let found = all.map(|counter| both(counter));
        assert_eq!(found, [(3, 0), (4, 0), (2, 0), (2, 0)], "{service:?}");
        assert!(poll(&qps[0].send_cq).is_empty());
        assert_eq!(poll(&qps[1].recv_cq).len(), 4, "receives complete as ever");
    }
}

#[test]
fn reads_count_on_both_sides_and_atomics_on_none() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let [asked, answered] = [0; 2].map(|_| Counter::new(CountedUnit::Bytes));
    let qps = counting(
        &pair,
        [&options, &options],
        [&[(&asked, counted::ALL)], &[(&answered, counted::ALL)]],
    );
    let (here, there) = (Buffer::new(300_000), Buffer::pattern(300_000, 1));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::read(1, remote(&target, 0)).sge(whole(&local)));
    post(&qps[0], &Work::read(2, remote(&target, 5)).sge(part(&local, 0, 7)).flags(0));
    post(&qps[0], &Work::fetch_add(3, remote(&target, 8), 1).sge(part(&local, 0, 8)));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, 0), (3, 0)]);
    assert_eq!((both(&asked), both(&answered)), ((300_007, 0), (300_007, 0)));
}

#[test]
fn a_counter_of_bytes_adds_what_completions_tell() {
    let pair = Pair::new();
    let srq = Srq::new(&pair.sides[1].shared, PD, 8, 4).unwrap();
    let plain = Options::new(Service::Rc);
    let shared = plain.clone().with(|o| o.srq = Some(srq.clone()));
    let counter = Counter::new(CountedUnit::Bytes);
    let qps = counting(&pair, [&plain, &shared], [&[], &[(&counter, counted::RECV)]]);
    let (from, to) = (Buffer::pattern(100, 1), Buffer::new(100));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    srq.post(1, &[whole(&target)]).unwrap();
    srq.post(2, &[whole(&target)]).unwrap();
    post(&qps[0], &Work::send(1).sge(part(&local, 0, 60)));
    post(&qps[0], &Work::send(2).sge(part(&local, 0, 40)));
    pair.settle();
    assert_eq!(both(&counter), (100, 0));
    assert_eq!(poll(&qps[1].recv_cq).iter().map(|wc| wc.byte_len).sum::<u32>(), 100);
}

#[test]
fn what_fails_and_what_is_flushed_counts_as_failed() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let [here, there] = [0; 2].map(|_| requests());
    let qps = counting(
        &pair,
        [&options, &options],
        [&[(&here, counted::ALL)], &[(&there, counted::ALL)]],
    );
    receive(&qps[0], 8, &[]);
    receive(&qps[1], 9, &[]);
    let buffer = Buffer::new(8);
    let local = pair.sides[0].register(&buffer);
    post(&qps[0], &Work::send(1).flags(0));
    post(&qps[0], &Work::write(2, (0, Rkey(0x666))).sge(whole(&local)).flags(0));
    pair.settle();
    // The refused WRITE; the receive that waits at this side; none waits at the other, where it is
    // the refusal.
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::REM_ACCESS_ERR), (8, status::WR_FLUSH_ERR)]);
    assert_eq!((both(&here), both(&there)), ((1, 2), (1, 1)));
    post(&qps[0], &Work::send(3).flags(0));
    assert_eq!(both(&here), (1, 3), "posted to be flushed");
}

#[test]
fn several_queue_pairs_add_to_one_counter_until_they_are_destroyed() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let counter = requests();
    let links =
        [0; 3].map(|_| counting(&pair, [&options, &options], [&[(&counter, counted::SEND)], &[]]));
    for qps in &links {
        receive(&qps[1], 1, &[]);
        post(&qps[0], &Work::send(1).flags(0));
    }
    pair.settle();
    assert_eq!(both(&counter), (3, 0));
    for qps in &links {
        assert!(counter.is_attached());
        qps[0].destroy();
    }
    assert!(!counter.is_attached());
    assert_eq!(both(&counter), (3, 0));
}

#[test]
fn what_is_counted_and_not_signalled_takes_no_room() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc).with(|o| o.send_max = 4);
    let counter = requests();
    let qps = counting(&pair, [&options, &options], [&[(&counter, counted::SEND)], &[]]);
    let posts = |count: u64, flags: u32| {
        (0..count)
            .map(|id| {
                receive(&qps[1], id, &[]);
                let posted = try_post(&qps[0], &Work::send(id).flags(flags));
                pair.settle();
                poll(&qps[1].recv_cq);
                posted
            })
            .collect::<Result<Vec<_>, _>>()
    };
    assert!(posts(20, 0).is_ok(), "nobody polls");
    assert_eq!(both(&counter), (20, 0));
    // What has a completion takes room until that is polled, and so does what follows it.
    assert!(posts(1, send_flags::SIGNALED).is_ok());
    assert!(posts(3, 0).is_ok());
    assert_eq!(posts(1, 0), Err(PostError::Full));
    assert_eq!(both(&counter), (24, 0));
    assert_eq!(poll(&qps[0].send_cq).len(), 1);
    assert!(posts(20, 0).is_ok());
    let works = [0; 4].map(|_| Work::send(1).flags(0));
    for _ in 0..3 {
        (0..4).for_each(|id| receive(&qps[1], id, &[]));
        let works: Vec<_> = works.iter().map(Work::as_send).collect();
        assert_eq!(qps[0].post_all(&works), Ok(()));
        pair.settle();
        poll(&qps[1].recv_cq);
    }
    assert_eq!(both(&counter), (24 + 20 + 12, 0));
}

#[test]
fn numbers_are_set_and_wrap() {
    let counter = requests();
    counter.set(CounterValue::Successes, COUNTER_MAX);
    counter.set(CounterValue::Failures, 7);
    counter.add(CounterValue::Successes, 1);
    counter.add(CounterValue::Failures, 5);
    assert_eq!(both(&counter), (0, 12));
    counter.add(CounterValue::Successes, COUNTER_MAX);
    assert_eq!(counter.read(CounterValue::Successes), COUNTER_MAX);
}

#[test]
fn an_operation_has_one_counter_from_the_beginning() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let qp = pair.sides[0].qp(&options);
    let (one, other) = (requests(), requests());
    let both = counted::SEND | counted::RECV;
    assert_eq!(qp.attach_counter(&one, 0), Err(AttachError::Invalid));
    assert_eq!(qp.attach_counter(&one, 64), Err(AttachError::NotOffered));
    assert_eq!(qp.attach_counter(&one, counted::SEND), Ok(()));
    assert_eq!(qp.attach_counter(&other, both), Err(AttachError::Taken));
    assert_eq!(qp.attach_counter(&one, counted::SEND), Err(AttachError::Taken));
    assert!(!other.is_attached(), "all or nothing");
    to_init(&qp, &options);
    assert_eq!(qp.attach_counter(&other, counted::RECV), Ok(()));
    let [_, connected] = pair.connected(&options);
    assert_eq!(connected.attach_counter(&one, counted::SEND), Err(AttachError::Invalid));
    // RESET is no end of it.
    to_state(&qp, State::Reset);
    assert!(one.is_attached());
    assert_eq!(qp.attach_counter(&other, counted::SEND), Err(AttachError::Taken));
}

#[test]
fn a_counting_queue_pair_lends_no_pages() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let counter = requests();
    let local = &[(&counter, counted::ALL & !counted::REMOTE)];
    let qps = counting(&pair, [&options, &options], [local, &[(&counter, counted::REMOTE)]]);
    assert!(qps[0].lend() && !qps[1].lend());
}
