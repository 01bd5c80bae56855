//! Tests how news are announced: watched links, ready bits, kicks, and notifications that got lost.

use crate::fake_platform::Channel;
use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, Pair, outcomes, poll, post, receive, to_init, to_rts, to_state,
};
use crate::work_request_helpers::{Work, remote, whole};
use omniverb_device::background_progress::ProgressReport;
use omniverb_device::limits::{IDLE_LOOKS_MAX, LOOK_LATER, WATCHED_MAX};
use omniverb_device::qp_attributes::State;
use omniverb_device::{Cq, Notify, Wc, status};
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn kicks(pair: &Pair, side: usize) -> usize {
    pair.sides[side].ringer.kicks.swap(0, Ordering::Relaxed)
}

/// Takes the ready bits of a side as if the peer had not seen that it must set them.
fn lose_bits(pair: &Pair, side: usize) {
    pair.sides[side].bell.page.take_ready(|_| {});
}

#[test]
fn a_sleeper_is_kicked_once() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    (0..4).for_each(|id| receive(&qps[1], id, &[]));
    pair.settle();
    kicks(&pair, 1);
    post(&qps[0], &Work::send(0));
    assert_eq!(kicks(&pair, 1), 0, "nobody sleeps");
    pair.sides[1].bell.page.want_kick();
    post(&qps[0], &Work::send(1));
    post(&qps[0], &Work::send(2));
    assert_eq!(kicks(&pair, 1), 1);
    pair.settle();
    assert_eq!(poll(&qps[1].recv_cq).len(), 3);
}

#[test]
fn a_posted_receive_rings_the_waiting_senders_doorbell() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    post(&qps[0], &Work::send(0));
    pair.settle();
    pair.sides[0].bell.page.want_kick();
    kicks(&pair, 0);
    receive(&qps[1], 0, &[]);
    assert_eq!(kicks(&pair, 0), 1);
}

/// A poller that finds a completion each time sees the other links all the same.
#[test]
fn polls_that_find_completions_look_now_and_then() {
    let pair = Pair::new();
    let many = Options::new(Service::Rc).with(|o| (o.send_max, o.recv_max) = (128, 128));
    let [busy, quiet] = [0, 1].map(|_| pair.connected(&many));
    (0..120).for_each(|id| receive(&busy[1], id, &[]));
    (0..120).for_each(|id| post(&busy[0], &Work::send(id)));
    pair.settle();
    receive(&quiet[1], 0, &[]);
    post(&quiet[0], &Work::send(7));
    assert!(pair.sides[1].bell.page.has_ready());
    let mut out = [Wc::default(); 1];
    for _ in 0..100 {
        assert_eq!(busy[1].recv_cq.poll(&mut out), 1);
    }
    assert!(!pair.sides[1].bell.page.has_ready(), "it has been seen to");
    assert_eq!(poll(&quiet[1].recv_cq).len(), 1);
}

/// A queue pair that the progress thread looks after already begins another wait: it has to hear of
/// that, as it may sleep for longer.
#[test]
fn each_timed_wait_is_registered_with_the_progress_thread() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc);
    let qps = pair.connected(&options);
    post(&qps[0], &Work::send(0));
    pair.settle();
    to_state(&qps[0], State::Reset);
    pair.sides[0].world.attended.store(0, Ordering::Relaxed);
    to_init(&qps[0], &options);
    to_rts(&qps[0], &options);
    post(&qps[0], &Work::send(1));
    assert!(pair.sides[0].world.attended.load(Ordering::Relaxed) > 0);
}

/// A watched link rings no bell; one that is not watched any more does.
#[test]
fn polling_stops_the_bell() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    (0..20).for_each(|id| receive(&qps[1], id, &[]));
    let page = &pair.sides[1].bell.page;
    let ring = || {
        post(&qps[0], &Work::send(0));
        page.has_ready()
    };
    assert!(turn_after_polls(&pair, &qps[1].recv_cq, 1000).is_polled);
    assert!(ring());
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    assert!(!ring(), "the CQ watches the link");
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    assert!(turn_after_polls(&pair, &qps[1].recv_cq, 1000).is_polled);
    assert!(!ring());
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    // The progress thread finds that there was no poll between two of its turns.
    turn_after_polls(&pair, &qps[1].recv_cq, 0);
    assert!(ring());
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
}

/// What the progress thread of side 1 finds after a millisecond with so many polls, awake before.
fn turn_after_polls(pair: &Pair, cq: &Cq, polls: usize) -> ProgressReport {
    pair.sides[1].shared.progress();
    (0..polls).for_each(|_| assert_eq!(cq.poll(&mut [Wc::default()]), 0));
    pair.clock.fetch_add(1_000_000, Ordering::Relaxed);
    pair.sides[1].shared.progress()
}

/// A program polls by a timer of its own. A peer that has something for it need not wait for that.
#[test]
fn a_seldom_poller_is_served_meanwhile() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    (0..20).for_each(|id| receive(&qps[1], id, &[]));
    let cq = &qps[1].recv_cq;
    let bell = &pair.sides[1].bell;
    for round in 0..3 {
        // Until a moment ago it polled all the time.
        assert!(turn_after_polls(&pair, cq, 1000).is_polled);
        assert!(!turn_after_polls(&pair, cq, 2).is_polled);
        bell.page.want_kick();
        kicks(&pair, 1);
        post(&qps[0], &Work::send(round));
        assert!(bell.page.has_ready() && kicks(&pair, 1) == 1);
        assert!(pair.sides[1].shared.rung());
        assert_eq!(outcomes(&qps[0].send_cq), [(round, status::SUCCESS)], "nobody has polled");
        assert_eq!(cq.poll(&mut [Wc::default(); 4]), 1);
        // Its polls find nothing, and do not begin to watch the link.
        post(&qps[0], &Work::send(round));
        assert!(bell.page.has_ready());
        assert_eq!(cq.poll(&mut [Wc::default(); 4]), 1);
        post(&qps[0], &Work::send(round));
        assert!(bell.page.has_ready(), "polls watch it");
        assert_eq!(cq.poll(&mut [Wc::default(); 4]), 1);
        assert_eq!(outcomes(&qps[0].send_cq).len(), 2);
    }
}

/// The sender read that the link is watched just before it was not: no bit, but the record is
/// found by a turn that is later by the clock, however many came before it. (They follow each other
/// at once while peers wake the process.)
#[test]
fn a_bit_lost_while_watching_ends_is_made_up_for() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    (0..20).for_each(|id| receive(&qps[1], id, &[]));
    post(&qps[0], &Work::send(0));
    assert_eq!(poll(&qps[1].recv_cq).len(), 1);
    let side = &pair.sides[1];
    (0..5).for_each(|_| _ = side.shared.progress());
    post(&qps[0], &Work::send(0));
    lose_bits(&pair, 1);
    assert!(side.shared.progress().deadline.is_some(), "it is to look again");
    pair.clock.fetch_add(LOOK_LATER, Ordering::Relaxed);
    side.shared.progress();
    lose_bits(&pair, 1);
    let mut out = [Wc::default(); 4];
    assert_eq!(qps[1].recv_cq.poll(&mut out), 1);
    assert_eq!((0..3).map(|_| side.shared.progress()).last(), Some(ProgressReport::default()));
}

/// A READ's answer waits for room. The requester makes room, but did not see yet that the answer
/// waits for it.
#[test]
fn an_answer_that_waits_for_room_is_looked_after() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::new(90 << 10), Buffer::pattern(90 << 10, 1));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::read(1, remote(&target, 0)).sge(whole(&local)));
    qps[1].pump();
    qps[0].pump();
    lose_bits(&pair, 1);
    (0..3).for_each(|_| _ = pair.sides[1].shared.progress());
    pair.clock.fetch_add(LOOK_LATER, Ordering::Relaxed);
    pair.sides[1].shared.progress();
    qps[0].pump();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert!(here.all() == there.all());
}

/// Many more QPs on one CQ than it watches: all are served.
#[test]
fn a_hundred_links_on_one_queue() {
    let pair = Pair::new();
    let cq = Cq::new(&pair.sides[1].shared, 1 << 16, None);
    let options = Options::new(Service::Rc).with(|o| o.ring_bytes = (128 << 10, 16 << 10));
    let listening = options.clone().with(|o| {
        (o.send_cq, o.recv_cq, o.recv_max) = (Some(cq.clone()), Some(cq.clone()), 400);
    });
    let links: Vec<_> = (0..100).map(|_| pair.connected_with([&options, &listening])).collect();
    for qps in &links {
        (0..400).for_each(|id| receive(&qps[1], id, &[]));
    }
    for round in 0..6 {
        let mut sent = 0;
        for qps in links.iter().skip(round).step_by(1 + round) {
            for id in 0..50 {
                post(&qps[0], &Work::send(id));
                sent += 1;
            }
            poll(&qps[0].send_cq);
        }
        // One poll may look at a few bells and links only; but it comes to all of them.
        let mut received = 0;
        for _ in 0..10_000 {
            received += cq.poll(&mut [Wc::default(); 64]);
            if received == sent {
                break;
            }
        }
        assert_eq!(received, sent);
    }
}

/// What an empty poll looks at is bounded, however many QPs had news, and is one link before long.
#[test]
fn idle_links_make_polls_no_dearer() {
    let pair = Pair::new();
    let cq = pair.sides[1].cq();
    let options = Options::new(Service::Rc).with(|o| o.ring_bytes = (32 << 10, 4 << 10));
    let listening = options.clone().with(|o| o.recv_cq = Some(cq.clone()));
    let links: Vec<_> = (0..200).map(|_| pair.connected_with([&options, &listening])).collect();
    for qps in &links {
        receive(&qps[1], 0, &[]);
        post(&qps[0], &Work::send(0));
        let mut out = [Wc::default(); 4];
        let arrived = (0..1000).any(|_| cq.poll(&mut out) == 1);
        assert!(arrived);
        assert!((1..=WATCHED_MAX).contains(&cq.watched_links()));
    }
    // One link at a time is dropped.
    for _ in 0..=WATCHED_MAX as u32 * (IDLE_LOOKS_MAX + 1) {
        assert_eq!(cq.poll(&mut [Wc::default(); 4]), 0);
    }
    assert_eq!(cq.watched_links(), 1);
}

/// A poller takes no more than a batch at once, and leaves nothing behind.
#[test]
fn polling_serves_a_full_ring_to_the_end() {
    let pair = Pair::new();
    let cq = Cq::new(&pair.sides[1].shared, 1 << 16, None);
    let listening = Options::new(Service::Rc).with(|o| {
        (o.send_cq, o.recv_cq, o.recv_max) = (Some(cq.clone()), Some(cq.clone()), 2000);
    });
    let links: Vec<_> =
        (0..12).map(|_| pair.connected_with([&Options::new(Service::Rc), &listening])).collect();
    for qps in &links {
        (0..1000).for_each(|id| receive(&qps[1], id, &[]));
        for id in 0..1000 {
            post(&qps[0], &Work::send(id));
            poll(&qps[0].send_cq);
        }
    }
    let mut received = 0;
    for _ in 0..20_000 {
        received += cq.poll(&mut [Wc::default(); 64]);
    }
    // Those it does not watch are the progress thread's.
    pair.settle();
    received += poll(&cq).len();
    assert_eq!(received, 12_000);
}

/// A program polls for completions, and then looks at memory for its peer's WRITE. The peer polls
/// for that WRITE's completion.
#[test]
fn a_poll_in_vain_wakes_a_peer_that_polled_lately() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    for id in 0..3 {
        assert_eq!(poll(&qps[1].recv_cq).len(), 0);
        pair.sides[1].shared.progress();
        assert_eq!(poll(&qps[1].recv_cq).len(), 0);
        there.write(0, &[0; 64]);
        post(&qps[0], &Work::write(id, remote(&target, 0)).sge(whole(&local)));
        assert_eq!(kicks(&pair, 1), 0, "nobody sleeps, for all that is known");
        (0..1000).for_each(|_| assert_eq!(poll(&qps[0].send_cq).len(), 0));
        assert_eq!(kicks(&pair, 1), 1, "once");
        assert!(pair.sides[1].shared.rung(), "also if the peer polls");
        assert!(there.all() == here.all());
        assert_eq!(outcomes(&qps[0].send_cq), [(id, status::SUCCESS)]);
        // A thread that answers its own doorbell takes away what a poll would have found there.
        pair.sides[0].shared.rung();
    }
}

#[test]
fn a_peer_that_consumes_is_not_woken() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    for id in 0..100 {
        post(&qps[0], &Work::write(id, remote(&target, 0)).sge(whole(&local)));
        (0..5).for_each(|_| assert_eq!(poll(&qps[0].send_cq).len(), 0));
        assert_eq!(poll(&qps[1].recv_cq).len(), 0);
        assert_eq!(outcomes(&qps[0].send_cq), [(id, status::SUCCESS)]);
    }
    assert_eq!(kicks(&pair, 1), 0);
}

/// A long message is consumed piece by piece, and what is consumed counts.
#[test]
fn a_long_request_wakes_no_thread_while_it_goes_on() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc).with(|o| o.ring_bytes = (128 << 10, 16 << 10));
    let qps = pair.connected(&options);
    let (here, there) = (Buffer::pattern(4 << 20, 1), Buffer::new(4 << 20));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
    let mut done = Vec::new();
    while done.is_empty() {
        (0..5).for_each(|_| done.append(&mut outcomes(&qps[0].send_cq)));
        poll(&qps[1].recv_cq);
    }
    assert_eq!(done, [(1, status::SUCCESS)]);
    assert_eq!(kicks(&pair, 1), 0);
    assert!(here.all() == there.all());
}

/// What nothing can come by any more need not be heard.
#[test]
fn a_bell_is_unused_when_all_its_links_have_ended() {
    let pair = Pair::new();
    let bell = &pair.sides[1].bell;
    assert!(bell.is_unused());
    let first = pair.connected(&Options::new(Service::Rc));
    let second = pair.connected(&Options::new(Service::Uc));
    assert!(!bell.is_unused());
    to_state(&first[1], State::Reset);
    assert!(!bell.is_unused(), "the other link is alive");
    drop(second);
    assert!(bell.is_unused());
    assert!(!pair.sides[0].bell.is_unused(), "whose peer has gone has not gone itself");
    to_state(&first[0], State::Reset);
    assert!(pair.sides[0].bell.is_unused());
}

/// Once it is kicked, a side takes a turn before the other one goes on.
fn answers_at_once(pair: &Pair, side: usize) {
    let shared = pair.sides[side].shared.clone();
    pair.sides[side].bell.page.want_kick();
    let act = move || _ = shared.progress();
    *pair.sides[side].ringer.at_once.lock().unwrap() = Some(Box::new(act));
}

/// The peer is so quick that it has done all before it can see that it is waited for. Our program
/// sleeps, and our progress thread does not look for a millisecond.
#[test]
fn what_is_done_at_once_is_seen_at_once() {
    let pair = Pair::new();
    let channel = Arc::new(Channel::default());
    let cq = Cq::new(&pair.sides[0].shared, 64, Some(channel.clone()));
    let options = Options::new(Service::Rc);
    let asking = options.clone().with(|o| o.send_cq = Some(cq.clone()));
    let qps = pair.connected_with([&asking, &options]);
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    answers_at_once(&pair, 1);
    let works = [
        Work::write(0, remote(&target, 0)).sge(whole(&local)),
        Work::read(1, remote(&target, 0)).sge(whole(&local)),
        // Waits for a receive, which comes while it is posted.
        Work::write(2, remote(&target, 0)).sge(whole(&local)).immediate(1),
    ];
    for (id, work) in works.iter().enumerate() {
        if id == 2 {
            let receiver = qps[1].clone();
            let act = move || receive(&receiver, 9, &[]);
            *pair.sides[0].world.on_now.lock().unwrap() = Some(Box::new(act));
        }
        pair.sides[1].bell.page.want_kick();
        pair.sides[0].bell.page.want_kick();
        kicks(&pair, 0);
        cq.arm(Notify::Any);
        post(&qps[0], work);
        if kicks(&pair, 0) > 0 {
            pair.sides[0].shared.rung();
            pair.sides[0].shared.progress();
        }
        let events = std::mem::take(&mut *channel.events.lock().unwrap());
        assert_eq!(events.len(), 1, "request {id} is complete, and nobody knows");
        assert_eq!(outcomes(&cq), [(id as u64, status::SUCCESS)]);
    }
}
