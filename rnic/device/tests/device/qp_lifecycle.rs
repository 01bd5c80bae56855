//! The life of a queue pair: states, what each allows, coming and going of links.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, Pair, outcomes, poll, post, receive, to_init, to_rtr, to_rts, to_state, try_post,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, PostError, PostFault, QpAttributes, QpMask, Wc, status};
use omniverb_terms::{Qkey, Qpn, Service};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn rc() -> Options {
    Options::new(Service::Rc)
}

#[test]
fn transitions_and_the_attributes_they_need() {
    use State::*;
    let pair = Pair::new();
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let options = Options::new(service);
        let fresh = |to: State| {
            let qp = pair.sides[0].qp(&options);
            if to != Reset {
                to_init(&qp, &options);
            }
            if to != Reset && to != Init {
                to_rtr(&qp, &options);
            }
            if to == Rts || to == Sqd {
                to_rts(&qp, &options);
            }
            if to == Sqd {
                to_state(&qp, Sqd);
            }
            if to == Err {
                to_state(&qp, Err);
            }
            qp
        };
        // (from, to) that need no attributes at all.
        let bare = [
            (Reset, Reset),
            (Init, Reset),
            (Rtr, Reset),
            (Rts, Reset),
            (Sqd, Reset),
            (Err, Reset),
            (Init, Err),
            (Rtr, Err),
            (Rts, Err),
            (Sqd, Err),
            (Err, Err),
            (Init, Init),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        for from in [Reset, Init, Rtr, Rts, Sqd, Err] {
            for to in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err] {
                let qp = fresh(from);
                let done = qp.modify(QpMask::STATE, to, &QpAttributes::default(), None);
                // UD goes from INIT to RTR without attributes.
                let allowed = bare.contains(&(from, to))
                    || (service == Service::Ud && (from, to) == (Init, Rtr));
                assert_eq!(done.is_ok(), allowed, "{service}: {from:?} to {to:?}");
                assert_eq!(qp.state(), if allowed { to } else { from });
                assert_eq!(qp.query().0, qp.state());
            }
        }
        // One attribute missing; one too many; the wrong present state.
        let full = QpMask::STATE | QpMask::PKEY_INDEX | QpMask::PORT;
        let last = if service == Service::Ud { QpMask::QKEY } else { QpMask::ACCESS_FLAGS };
        let wrong = if service == Service::Ud { QpMask::ACCESS_FLAGS } else { QpMask::QKEY };
        let attributes = &options.attributes;
        let qp = fresh(Reset);
        for mask in [full, full | last | wrong, full | last | QpMask::SQ_PSN] {
            assert_eq!(
                qp.modify(mask, Init, attributes, None),
                std::result::Result::Err(PostError::Invalid(PostFault::State))
            );
        }
        assert!(qp.modify(full | last, Init, attributes, Some(Rts)).is_err());
        assert!(qp.modify(full | last, Init, attributes, Some(Reset)).is_ok());
    }
}

#[test]
fn query_returns_the_attributes_as_set() {
    let pair = Pair::new();
    let options = rc().with(|o| {
        o.attributes.rq_psn = 17;
        o.attributes.sq_psn = 18;
        o.attributes.dest_qpn = Qpn(19);
        o.attributes.timeout = 9;
        o.attributes.min_rnr_timer = 3;
    });
    let qp = pair.sides[0].qp(&options);
    to_init(&qp, &options);
    to_rts(&qp, &options);
    let (state, told) = qp.query();
    assert_eq!(state, State::Rts);
    let set = QpAttributes { qkey: Qkey(0), ..options.attributes };
    assert_eq!(format!("{told:?}"), format!("{set:?}"));
    to_state(&qp, State::Reset);
    assert_eq!(format!("{:?}", qp.query().1), format!("{:?}", QpAttributes::default()));
}

#[test]
fn what_may_be_posted_in_which_state() {
    let pair = Pair::new();
    let qp = pair.sides[0].qp(&rc());
    let invalid = Err(PostError::Invalid(PostFault::State));
    let too_many = Err(PostError::Invalid(PostFault::Entries));
    assert_eq!(qp.post_recv(1, &[]), invalid);
    assert_eq!(try_post(&qp, &Work::send(1)), invalid);
    to_init(&qp, &rc());
    assert_eq!(qp.post_recv(1, &[]), Ok(()));
    assert_eq!(try_post(&qp, &Work::send(1)), invalid);
    to_rtr(&qp, &rc());
    assert_eq!(qp.post_recv(2, &[]), Ok(()));
    assert_eq!(try_post(&qp, &Work::send(1)), invalid);
    to_rts(&qp, &rc());
    assert_eq!(try_post(&qp, &Work::send(3)), Ok(()));
    to_state(&qp, State::Err);
    assert_eq!(qp.post_recv(4, &[]), Ok(()));
    assert_eq!(try_post(&qp, &Work::send(5).flags(0)), Ok(()));
    let mut flushed = outcomes(&qp.send_cq);
    flushed.sort_unstable();
    assert_eq!(flushed, [1, 2, 3, 4, 5].map(|id| (id, status::WR_FLUSH_ERR)));
    // 33 entries where 32 were asked for.
    let list = [omniverb_device::Sge::default(); 33];
    assert_eq!(qp.post_recv(6, &list), too_many);
    let mut work = Work::send(7);
    work.sges = list.to_vec();
    assert_eq!(try_post(&qp, &work), too_many);
}

#[test]
fn receives_posted_before_the_link_count() {
    let pair = Pair::new();
    let options = rc().with(|o| o.attributes.rnr_retry = 0);
    let qps = [pair.sides[0].qp(&options), pair.sides[1].qp(&options)];
    to_init(&qps[1], &options);
    receive(&qps[1], 1, &[]);
    receive(&qps[1], 2, &[]);
    to_init(&qps[0], &options);
    to_rts(&qps[0], &options);
    // The link comes late, and the other side is only RTR.
    post(&qps[0], &Work::send(1));
    let joint = pair.joint(options.ring_bytes);
    pair.attach(0, &qps, &joint).unwrap();
    pair.settle();
    assert!(poll(&qps[0].send_cq).is_empty());
    pair.attach(1, &qps, &joint).unwrap();
    pair.settle();
    assert!(poll(&qps[0].send_cq).is_empty(), "INIT receives nothing");
    to_rtr(&qps[1], &options);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(outcomes(&qps[1].recv_cq), [(1, status::SUCCESS)]);
    assert_eq!(pair.sides[1].events(), [AsyncEvent::CommunicationEstablished]);
    post(&qps[0], &Work::send(2));
    post(&qps[0], &Work::send(3));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
    pair.wait(omniverb_device::limits::RECEIVER_LATE);
    assert_eq!(outcomes(&qps[0].send_cq), [(3, status::RNR_RETRY_EXC_ERR)]);
    assert!(pair.sides[1].events().is_empty());
}

#[test]
fn a_reset_queue_pair_is_as_good_as_new() {
    let pair = Pair::new();
    let qps = pair.connected(&rc());
    let (here, there) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    for round in 0..5 {
        // Everything at once, in the middle of a message, completions unpolled.
        receive(&qps[1], 9, &[whole(&target)]);
        receive(&qps[0], 9, &[]);
        post(&qps[0], &Work::read(1, remote(&target, 0)).sge(whole(&local)));
        post(&qps[0], &Work::write(2, remote(&target, 0)).sge(whole(&local)));
        post(&qps[0], &Work::send(3).sge(whole(&local)));
        (0..round).for_each(|_| qps.iter().for_each(|qp| qp.pump()));
        for qp in &qps {
            to_state(qp, State::Reset);
            to_init(qp, &rc());
        }
        pair.join(&qps, rc().ring_bytes);
        qps.iter().for_each(|qp| to_rts(qp, &rc()));
        assert!(poll(&qps[0].send_cq).is_empty() && poll(&qps[1].send_cq).is_empty());
        here.write(0, &[round as u8; 10]);
        for id in 0..64 {
            receive(&qps[1], id, &[part(&target, 0, 10)]);
            post(&qps[0], &Work::send(id).sge(part(&local, 0, 10)));
        }
        pair.settle();
        assert_eq!((poll(&qps[0].send_cq).len(), poll(&qps[1].recv_cq).len()), (64, 64));
        assert_eq!(there.read(0, 10), [round as u8; 10]);
    }
}

#[test]
fn a_drained_queue_holds_what_comes() {
    let pair = Pair::new();
    let qps = pair.connected(&rc());
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::read(1, remote(&target, 0)).sge(whole(&local)));
    let mask = QpMask::STATE | QpMask::EN_SQD_ASYNC_NOTIFY;
    qps[0].modify(mask, State::Sqd, &QpAttributes::default(), None).unwrap();
    assert!(pair.sides[0].events().is_empty(), "the READ is under way");
    post(&qps[0], &Work::write(2, remote(&target, 0)).sge(whole(&local)));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(pair.sides[0].events(), [AsyncEvent::SqDrained]);
    to_state(&qps[0], State::Rts);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
}

/// A message that has begun is finished before the queue counts as drained.
#[test]
fn draining_finishes_the_message_under_way() {
    let pair = Pair::new();
    let qps = pair.connected(&rc());
    let (here, there) = (Buffer::pattern(1 << 20, 1), Buffer::new(1 << 20));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
    post(&qps[0], &Work::write(2, remote(&target, 0)).sge(part(&local, 1, 9)));
    let mask = QpMask::STATE | QpMask::EN_SQD_ASYNC_NOTIFY;
    qps[0].modify(mask, State::Sqd, &QpAttributes::default(), None).unwrap();
    assert!(pair.sides[0].events().is_empty(), "half of it is out");
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(pair.sides[0].events(), [AsyncEvent::SqDrained]);
    assert!(there.all() == here.all());
    to_state(&qps[0], State::Rts);
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
}

#[test]
fn a_link_for_a_queue_pair_that_cannot_use_it() {
    let pair = Pair::new();
    let qps = [pair.sides[0].qp(&rc()), pair.sides[1].qp(&rc())];
    let joint = pair.joint(rc().ring_bytes);
    assert_eq!(pair.attach(0, &qps, &joint), None);
    to_init(&qps[0], &rc());
    to_state(&qps[0], State::Err);
    assert_eq!(pair.attach(0, &qps, &joint), None);
}

#[test]
fn destroyed_queue_pairs_leave_nothing() {
    let pair = Pair::new();
    // More than there are slots, one after the other.
    for _ in 0..omniverb_device::limits::QP_SLOTS / 2 + 10 {
        let qp = pair.sides[0].qp(&rc().with(|o| (o.send_max, o.recv_max) = (1, 1)));
        let cq = qp.recv_cq.clone();
        to_init(&qp, &rc());
        receive(&qp, 1, &[]);
        to_state(&qp, State::Err);
        qp.destroy();
        assert!(poll(&cq).is_empty() && !cq.is_busy());
        let weak = Arc::downgrade(&qp);
        drop(qp);
        assert!(weak.upgrade().is_none());
    }
}

/// One thread polls, one plays the progress thread, one connects, sends and tears down.
#[test]
fn tearing_down_while_others_look() {
    let pair = Arc::new(Pair::new());
    let cqs = [pair.sides[0].cq(), pair.sides[1].cq()];
    let over = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut threads = Vec::new();
    for side in [0, 1] {
        let (pair_, over_) = (pair.clone(), over.clone());
        threads.push(std::thread::spawn(move || {
            while !over_.load(Ordering::Relaxed) {
                pair_.sides[side].shared.progress();
            }
        }));
        let (cq, over_) = (cqs[side].clone(), over.clone());
        threads.push(std::thread::spawn(move || {
            let mut some = [Wc::default(); 16];
            while !over_.load(Ordering::Relaxed) {
                for _ in 0..3000 {
                    cq.poll(&mut some);
                }
                std::thread::yield_now();
            }
        }));
    }
    let (pair_, over_, rounds_) = (pair.clone(), over.clone(), rounds.clone());
    threads.push(std::thread::spawn(move || {
        let options = |side: usize| {
            let cq: &Arc<omniverb_device::Cq> = &cqs[side];
            rc().with(|o| (o.send_cq, o.recv_cq) = (Some(cq.clone()), Some(cq.clone())))
        };
        while !over_.load(Ordering::Relaxed) {
            let sets = [0, 1, 2].map(|_| pair_.connected_with([&options(0), &options(1)]));
            for qps in &sets {
                receive(&qps[1], 1, &[]);
                post(&qps[0], &Work::send(2));
                qps[1].pump();
            }
            std::thread::yield_now();
            for qps in &sets {
                to_state(&qps[0], State::Reset);
                qps.iter().for_each(|qp| qp.destroy());
            }
            rounds_.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let end = Instant::now() + Duration::from_secs(3);
    let mut last = (0, Instant::now());
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        let now = rounds.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        assert!(last.1.elapsed() < Duration::from_secs(20), "deadlock after {now} rounds");
    }
    over.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    for thread in threads {
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "deadlock");
            std::thread::sleep(Duration::from_millis(10));
        }
        thread.join().unwrap();
    }
    assert!(rounds.load(Ordering::Relaxed) > 10);
}
