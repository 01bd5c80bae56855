//! Calls over a rate are answered later, in their order; other vNICs do not notice.

use crate::support::*;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::testing::random_driver::{Bench, vnic};
use omniverb_tenancy::{Action, ControlLimits, Limits, Policy, SessionId};
use omniverb_terms::{Errno, Qpn, Service};
use std::num::NonZeroU32;

const MILLISECOND: u64 = 1_000_000;

fn limit(bench: &mut Bench, number: u64, control: ControlLimits) {
    let policy = Policy { control, ..bench.tenancy.policy(vnic(number)) };
    drop(bench.tenancy.set_policy(vnic(number), policy));
}

/// Queue pairs that a process was told of since.
fn created(bench: &Bench, session: u64) -> usize {
    let is_one = |action: &&Action| {
        matches!(action, Action::Reply { session: to, message: Message::QpCreated(_), .. }
            if *to == SessionId(session))
    };
    bench.told.iter().filter(is_one).count()
}

#[test]
fn calls_over_the_rate_wait_and_others_do_not() {
    let mut bench = bench();
    bench.now = 1000 * MILLISECOND;
    for session in 1..=3 {
        hello(&mut bench, session, 1, 0);
    }
    hello(&mut bench, 4, 2, 0);
    let rate = NonZeroU32::new(10);
    limit(&mut bench, 1, ControlLimits { queue_pairs_per_second: rate, ..Default::default() });
    for _ in 0..2 {
        qp(&mut bench, 1, Service::Rc);
    }
    // Over it: the calls of three processes wait, each for its own time.
    bench.told.clear();
    for session in 1..=3 {
        assert_eq!(call_once(&mut bench, session, create_qp(Service::Rc)), None);
    }
    // Its process waits, and nobody else: what ends something is free, and so are other vNICs.
    assert_eq!(errno(call(&mut bench, 1, create_qp(Service::Rc))), Errno::EBUSY);
    for _ in 0..100 {
        qp(&mut bench, 4, Service::Rc);
    }
    bench.told.clear();
    for (session, wait) in [(1, 100), (2, 100), (3, 100)] {
        bench.wait((wait - 1) * MILLISECOND);
        assert_eq!(created(&bench, session), 0, "{session}");
        bench.wait(MILLISECOND);
        assert_eq!(created(&bench, session), 1, "{session}");
    }
    // Its end takes a call with it.
    assert_eq!(call_once(&mut bench, 1, create_qp(Service::Rc)), None);
    bench.end(1);
    bench.wait(10_000 * MILLISECOND);
    // Without the limit nothing waits.
    limit(&mut bench, 1, ControlLimits::default());
    for _ in 0..100 {
        qp(&mut bench, 2, Service::Rc);
    }
}

#[test]
fn a_call_that_would_wait_for_too_long_is_refused() {
    let mut bench = bench();
    bench.now = 1000 * MILLISECOND;
    let rate = NonZeroU32::new(2);
    limit(&mut bench, 1, ControlLimits { operations: rate, ..Default::default() });
    for session in 1..=4 {
        hello(&mut bench, session, 1, 0);
    }
    let first = qp(&mut bench, 1, Service::Ud);
    for session in 2..=3 {
        assert_eq!(call_once(&mut bench, session, create_qp(Service::Rc)), None);
    }
    assert_eq!(errno(call_once(&mut bench, 4, create_qp(Service::Rc))), Errno::EAGAIN);
    // What ends something is not held up.
    assert!(matches!(
        call_once(&mut bench, 1, DestroyQp { qpn: first, reserved: 0 }),
        Some(Message::Done(_))
    ));
}

#[test]
fn a_vnic_has_no_more_queue_pairs_than_its_policy_says() {
    let mut bench = bench_with(Limits::default());
    for session in 1..=2 {
        hello(&mut bench, session, 1, 0);
    }
    limit(&mut bench, 1, ControlLimits { queue_pairs: Some(3), ..Default::default() });
    let first = qp(&mut bench, 1, Service::Rc);
    for session in [1, 2] {
        assert_ne!(qp(&mut bench, session, Service::Ud), Qpn(0));
    }
    for session in [1, 2] {
        assert_eq!(errno(call(&mut bench, session, create_qp(Service::Rc))), Errno::ENOMEM);
    }
    call(&mut bench, 1, DestroyQp { qpn: first, reserved: 0 });
    qp(&mut bench, 2, Service::Rc);
    // Those that there are stay when there may be fewer.
    limit(&mut bench, 1, ControlLimits { queue_pairs: Some(1), ..Default::default() });
    assert_eq!(errno(call(&mut bench, 2, create_qp(Service::Rc))), Errno::ENOMEM);
}
