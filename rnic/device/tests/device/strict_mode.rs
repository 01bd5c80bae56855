//! A strict device: direct links forgive no more than a wire.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, Pair, outcomes, poll, post, receive};
use crate::work_request_helpers::{Work, whole};
use omniverb_device::qp_attributes::{QpAttributes, State};
use omniverb_device::{ToleratedMismatch, status};
use omniverb_terms::{Psn, Service};
use std::sync::atomic::Ordering;

/// A SEND of so many bytes by a strict device, to a queue pair that differs: how it ends, what is
/// said of it, and whether it arrives.
fn send(
    service: Service,
    bytes: usize,
    differ: impl Fn(&mut QpAttributes),
) -> (u32, Vec<ToleratedMismatch>, bool) {
    let pair = Pair::new();
    pair.sides[0].world.is_strict.store(true, Ordering::Relaxed);
    let options = Options::new(service);
    let other = options.clone().with(|options| differ(&mut options.attributes));
    let qps = pair.connected_with([&options, &other]);
    let (from, to) = (Buffer::pattern(bytes, 1), Buffer::new(bytes));
    let (local, target) = (pair.sides[0].register(&from), pair.sides[1].register(&to));
    receive(&qps[1], 2, &[whole(&target)]);
    post(&qps[0], &Work::send(1).sge(whole(&local)));
    pair.settle();
    let sent = outcomes(&qps[0].send_cq);
    let [(1, outcome)] = sent[..] else { panic!("{sent:?}") };
    let state = if outcome == status::SUCCESS { State::Rts } else { State::Err };
    assert_eq!(qps[0].state(), state);
    let said = pair.sides[0].world.forgiven.lock().unwrap().clone();
    (outcome, said, !poll(&qps[1].recv_cq).is_empty())
}

#[test]
fn what_is_equal_passes() {
    for service in [Service::Rc, Service::Uc] {
        assert_eq!(send(service, 10_000, |_| {}), (status::SUCCESS, vec![], true));
    }
}

#[test]
fn another_psn_is_not_answered() {
    let differ = |attributes: &mut QpAttributes| attributes.rq_psn = 5;
    let what = ToleratedMismatch::Psn { ours: Psn::new(0), theirs: Psn::new(5) };
    assert_eq!(send(Service::Rc, 8, differ), (status::RETRY_EXC_ERR, vec![what], false));
    // UC takes each message by itself.
    assert_eq!(send(Service::Uc, 8, differ), (status::SUCCESS, vec![], true));
}

#[test]
fn another_path_mtu_is_no_matter_for_one_packet() {
    let differ = |attributes: &mut QpAttributes| attributes.path_mtu = 3;
    let what = ToleratedMismatch::PathMtu { ours: 4096, theirs: 1024 };
    assert_eq!(send(Service::Rc, 1024, differ), (status::SUCCESS, vec![], true));
    assert_eq!(send(Service::Rc, 1025, differ), (status::REM_INV_REQ_ERR, vec![what], false));
    assert_eq!(send(Service::Uc, 1025, differ), (status::SUCCESS, vec![what], false));
}
