//! A peer whose process has ended, as the kernel says where requesters look, before the daemon has
//! said anything.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, Pair, outcomes, poll, post, receive};
use crate::work_request_helpers::{Work, remote, whole};
use omniverb_device::status;
use omniverb_terms::Service;
use std::sync::atomic::Ordering;

fn silence() -> u64 {
    Options::new(Service::Rc).attributes.silence_max().unwrap()
}

/// Time passes, and only we have a turn.
fn wait(pair: &Pair, nanoseconds: u64) {
    pair.clock.fetch_add(nanoseconds, Ordering::Relaxed);
    while pair.sides[0].shared.progress().is_busy {}
}

/// Each receive is posted, and long enough: until then a SEND is complete when it is in the ring.
#[test]
fn a_send_to_the_dead_does_not_succeed() {
    for daemon_tells in [true, false] {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc));
        (0..8).for_each(|id| receive(&qps[1], id, &[]));
        post(&qps[0], &Work::send(0));
        assert_eq!(outcomes(&qps[0].send_cq), [(0, status::SUCCESS)]);
        pair.sides[1].die();
        (1..3).for_each(|id| post(&qps[0], &Work::send(id)));
        post(&qps[0], &Work::send(3).immediate(3));
        assert!(poll(&qps[0].send_cq).is_empty());
        wait(&pair, silence() - 1);
        assert!(poll(&qps[0].send_cq).is_empty());
        match daemon_tells {
            true => qps[0].peer_died(qps[1].number),
            false => wait(&pair, 1),
        }
        let failed =
            [(1, status::RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR), (3, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), failed);
    }
}

/// They are behind what waits already, and one is longer than a record.
#[test]
fn nor_does_one_that_waited_when_its_peer_died() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (long, there) = (Buffer::pattern(100_000, 1), Buffer::new(100_000));
    let (local, target) = (pair.sides[0].register(&long), pair.sides[1].register(&there));
    post(&qps[0], &Work::send(1).sge(whole(&local)));
    post(&qps[0], &Work::send(2));
    (0..8).for_each(|id| receive(&qps[1], id, &[whole(&target)]));
    pair.sides[1].die();
    qps[0].pump();
    wait(&pair, silence() - 1);
    assert!(poll(&qps[0].send_cq).is_empty());
    wait(&pair, 1);
    let failed = [(1, status::RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), failed);
}

/// What it was asked for and has not done it never will.
#[test]
fn what_is_on_its_way_to_the_dead_fails_without_a_daemon() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
    post(&qps[0], &Work::read(2, remote(&target, 0)).sge(whole(&local)));
    pair.sides[1].die();
    wait(&pair, 1);
    wait(&pair, silence());
    let failed = [(1, status::RETRY_EXC_ERR), (2, status::WR_FLUSH_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), failed);
}

/// They are not acknowledged in any case.
#[test]
fn unreliable_messages_leave_as_ever() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Uc));
    pair.sides[1].die();
    (0..3).for_each(|id| post(&qps[0], &Work::send(id)));
    assert_eq!(outcomes(&qps[0].send_cq), [0, 1, 2].map(|id| (id, status::SUCCESS)));
}
