//! Receivers that are not ready, peers that are silent, and for how long either is borne.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, Pair, outcomes, poll, post, receive, to_init, to_rts, to_state,
};
use crate::work_request_helpers::{Work, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, status};
use omniverb_terms::{Qpn, Rkey, Service};

/// In nanoseconds, what `min_rnr_timer` 12 stands for.
const RNR_TIMER: u64 = 640_000;
/// A receiver that is late has this long at least.
const LATE: u64 = omniverb_device::limits::RECEIVER_LATE;

fn impatient(rnr_retry: u8) -> Options {
    Options::new(Service::Rc).with(|o| o.attributes.rnr_retry = rnr_retry)
}

#[test]
fn a_send_without_a_receive_waits_for_one() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(7));
    let (from, to) = (Buffer::pattern(100, 1), Buffer::new(100));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    post(&qps[0], &Work::send(1).sge(whole(&local)));
    // Seven is for ever.
    for _ in 0..100 {
        pair.wait(RNR_TIMER);
        assert!(poll(&qps[0].send_cq).is_empty());
    }
    receive(&qps[1], 2, &[whole(&target)]);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(2, status::SUCCESS)]);
    assert_eq!(to.all(), from.all());
}

#[test]
fn a_receiver_that_is_merely_late_costs_no_connection() {
    for retries in [0, 1] {
        let pair = Pair::new();
        let qps = pair.connected(&impatient(retries));
        post(&qps[0], &Work::send(1).flags(0));
        post(&qps[0], &Work::send(2).flags(0));
        pair.settle();
        pair.wait(LATE - 1);
        assert!(poll(&qps[0].send_cq).is_empty(), "{retries} retries");
        pair.wait(1);
        let failed = [(1, status::RNR_RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), failed, "{retries} retries");
        assert_eq!(qps[0].state(), State::Err);
        // The responder did nothing wrong.
        assert_eq!(qps[1].state(), State::Rts);
    }
    let pair = Pair::new();
    let qps = pair.connected(&impatient(0));
    post(&qps[0], &Work::send(1));
    pair.wait(LATE - 1);
    receive(&qps[1], 2, &[]);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(2, status::SUCCESS)]);
}

#[test]
fn rnr_retries_are_counted() {
    // min_rnr_timer 31: 491.52 ms each; all of them are waited for.
    const LONG: u64 = 491_520_000;
    for retries in 3..7 {
        let pair = Pair::new();
        let options = impatient(retries).with(|o| o.attributes.min_rnr_timer = 31);
        let qps = pair.connected(&options);
        post(&qps[0], &Work::send(1));
        for _ in 0..retries {
            pair.settle();
            pair.wait(LONG - 1);
            assert!(poll(&qps[0].send_cq).is_empty(), "{retries} retries");
            pair.wait(1);
        }
        pair.settle();
        assert_eq!(
            outcomes(&qps[0].send_cq),
            [(1, status::RNR_RETRY_EXC_ERR)],
            "{retries} retries"
        );
    }
}

#[test]
fn what_was_not_ready_and_what_failed_is_counted() {
    // Words of a statistics slot: docs/architecture.md.
    const SENDS: usize = 1;
    const OTHERS: usize = 7;
    const RNR: usize = 9;
    const HEARD: usize = 10;
    const SAID: usize = 11;
    const SILENCE: usize = 12;
    const FAILED: usize = 13;
    let pair = Pair::new();
    let qps = pair.connected(&impatient(1));
    let counted = |side: usize, words: &[usize]| {
        words.iter().map(|word| pair.sides[side].counted(&qps[side], *word)).collect::<Vec<_>>()
    };
    let (from, to) = (Buffer::pattern(8, 1), Buffer::new(8));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
    post(&qps[0], &Work::send(2));
    pair.settle();
    assert_eq!(counted(0, &[SENDS, OTHERS, RNR, HEARD, SAID]), [0, 1, 1, 1, 0]);
    // A sender without credits sees by itself that there is no receive: no message says so.
    assert_eq!(counted(1, &[RNR, HEARD, SAID]), [0, 0, 0]);
    receive(&qps[1], 3, &[]);
    pair.settle();
    assert_eq!(counted(0, &[SENDS, OTHERS, HEARD, FAILED]), [1, 1, 1, 0]);
    post(&qps[0], &Work::send(4));
    pair.wait(LATE);
    pair.settle();
    let expected = [(1, status::SUCCESS), (2, status::SUCCESS), (4, status::RNR_RETRY_EXC_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
    assert_eq!(counted(0, &[SENDS, OTHERS, HEARD, FAILED, SILENCE]), [1, 1, 2, 1, 0]);
}

#[test]
fn a_write_with_immediate_places_nothing_without_a_receive() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(1));
    let (from, to) = (Buffer::pattern(100, 1), Buffer::new(100));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    let work = Work::write(1, remote(&target, 0)).sge(whole(&local)).immediate(5);
    post(&qps[0], &work);
    pair.settle();
    assert_eq!(to.all(), [0; 100]);
    pair.wait(LATE);
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::RNR_RETRY_EXC_ERR)]);
    assert_eq!(to.all(), [0; 100]);
}

#[test]
fn progress_starts_the_retries_anew() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(2));
    for id in 0..5 {
        post(&qps[0], &Work::send(id));
    }
    for id in 0..4 {
        pair.wait(LATE - RNR_TIMER);
        assert!(poll(&qps[0].send_cq).is_empty());
        receive(&qps[1], id, &[]);
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(id, status::SUCCESS)]);
    }
    pair.wait(LATE - RNR_TIMER);
    pair.wait(RNR_TIMER);
    assert_eq!(outcomes(&qps[0].send_cq), [(4, status::RNR_RETRY_EXC_ERR)]);
}

/// timeout 14: 67 ms, eight times.
const SILENCE: u64 = (4096 << 14) * 8;

#[test]
fn a_peer_that_closed_is_given_up_after_its_retries() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(7));
    (0..3).for_each(|id| receive(&qps[0], 50 + id, &[]));
    to_state(&qps[1], State::Reset);
    let here = Buffer::new(8);
    let local = pair.sides[0].register(&here);
    post(&qps[0], &Work::send(1));
    post(&qps[0], &Work::write(2, (0, Rkey(1))).sge(whole(&local)));
    post(&qps[0], &Work::read(3, (0, Rkey(1))).sge(whole(&local)));
    pair.settle();
    pair.wait(SILENCE - 1);
    assert!(poll(&qps[0].send_cq).is_empty());
    pair.wait(1);
    let sent: Vec<_> = outcomes(&qps[0].send_cq);
    let expected = [
        (1, status::RETRY_EXC_ERR),
        (2, status::WR_FLUSH_ERR),
        (3, status::WR_FLUSH_ERR),
        (50, status::WR_FLUSH_ERR),
        (51, status::WR_FLUSH_ERR),
        (52, status::WR_FLUSH_ERR),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn requests_under_way_fail_when_the_peer_closes() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(7));
    let (here, there) = (Buffer::new(64), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::read(1, remote(&target, 0)).sge(whole(&local)));
    post(&qps[0], &Work::write(2, remote(&target, 0)).sge(whole(&local)));
    // Both are in the ring; the peer forgets everything without having looked.
    to_state(&qps[1], State::Reset);
    pair.settle();
    pair.wait(SILENCE);
    pair.wait(SILENCE);
    let expected = [(1, status::RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
}

#[test]
fn timeout_zero_waits_for_ever() {
    let pair = Pair::new();
    let options = impatient(7).with(|o| o.attributes.timeout = 0);
    let qps = pair.connected(&options);
    to_state(&qps[1], State::Reset);
    post(&qps[0], &Work::send(1));
    pair.wait(3_600_000_000_000);
    assert!(poll(&qps[0].send_cq).is_empty());
    // The peer comes back.
    to_init(&qps[1], &options);
    pair.join(&qps, options.ring_bytes);
    to_rts(&qps[1], &options);
    receive(&qps[1], 2, &[]);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(2, status::SUCCESS)]);
}

/// The peer reset its QP with our requests unread and comes back with a new link: what happened to
/// them is not known, so they did not succeed.
#[test]
fn nothing_succeeds_that_went_into_an_old_link() {
    let pair = Pair::new();
    let options = impatient(7);
    let qps = pair.connected(&options);
    let (here, there) = (Buffer::pattern(64, 3), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    for id in 0..3 {
        post(&qps[0], &Work::write(id, remote(&target, 0)).sge(whole(&local)));
    }
    to_state(&qps[1], State::Reset);
    to_init(&qps[1], &options);
    let joint = pair.joint(options.ring_bytes);
    pair.attach(0, &qps, &joint);
    pair.attach(1, &qps, &joint);
    to_rts(&qps[1], &options);
    for id in 3..20 {
        let _ = crate::two_device_fixture::try_post(
            &qps[0],
            &Work::write(id, remote(&target, 0)).sge(whole(&local)),
        );
    }
    pair.settle();
    pair.wait(SILENCE);
    pair.wait(SILENCE);
    let sent = outcomes(&qps[0].send_cq);
    assert_eq!(sent.len(), 20);
    for (id, status) in &sent[..3] {
        assert_ne!(*status, status::SUCCESS, "request {id} is lost");
    }
}

#[test]
fn a_dead_peer_ends_everything_at_once() {
    let pair = Pair::new();
    let qps = pair.connected(&impatient(7));
    let (from, to) = (Buffer::pattern(1 << 20, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[0].register(&to));
    receive(&qps[0], 10, &[whole(&target)]);
    receive(&qps[0], 11, &[whole(&target)]);
    // Its last words arrive; what we say does not.
    let last = Buffer::pattern(8, 2);
    let last = pair.sides[1].register(&last);
    post(&qps[1], &Work::send(1).sge(whole(&last)));
    post(&qps[0], &Work::send(2).sge(whole(&local)));
    post(&qps[0], &Work::send(3));
    qps[0].peer_died(qps[1].number);
    let expected = [
        (10, status::SUCCESS),
        (2, status::RETRY_EXC_ERR),
        (3, status::WR_FLUSH_ERR),
        (11, status::WR_FLUSH_ERR),
    ];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
    assert_eq!(to.read(0, 8), crate::guarded_buffer::pattern(8, 2));
    assert_eq!(pair.sides[0].events(), [AsyncEvent::QpFatal]);
    // Twice is as good as once, and strangers' deaths do not matter.
    qps[0].peer_died(qps[1].number);
    qps[0].peer_died(Qpn(12345));
    assert!(poll(&qps[0].send_cq).is_empty() && pair.sides[0].events().is_empty());
}
