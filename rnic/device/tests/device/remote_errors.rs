//! Tests what a responder refuses, what the requester is told, and that memory stays as it was.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{
    Options, PD, Pair, gid, outcomes, poll, post, receive, to_init, to_rts,
};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, FarEnd, Peer, Qp, Region, access, status};
use omniverb_link::layout;
use omniverb_terms::{Lkey, Rkey, Service};
use std::sync::Arc;

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE;

struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    here: Buffer,
    local: Arc<Region>,
    there: Buffer,
}

fn bench(options: &Options) -> Bench {
    let pair = Pair::new();
    let qps = pair.connected_with([&Options::new(options.service), options]);
    let (here, there) = (Buffer::pattern(4096, 1), Buffer::pattern(4096, 2));
    let local = pair.sides[0].register(&here);
    Bench { pair, qps, here, local, there }
}

impl Bench {
    /// The request fails like this, what comes after it is flushed, and nothing was touched.
    fn refused(&self, work: &Work, why: u32, event: AsyncEvent) {
        let Bench { pair, qps, .. } = self;
        let (before, after) = (self.here.all(), self.there.all());
        receive(&qps[1], 77, &[]);
        post(&qps[0], work);
        post(&qps[0], &Work::send(99).flags(0));
        pair.settle();
        let expected = [(work.wr_id, why), (99, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), expected);
        assert_eq!(outcomes(&qps[1].recv_cq), [(77, status::WR_FLUSH_ERR)]);
        assert_eq!((qps[0].state(), qps[1].state()), (State::Err, State::Err));
        assert_eq!(pair.sides[1].events(), [event]);
        assert!(pair.sides[0].events().is_empty());
        assert!(self.here.all() == before, "the requester's memory changed");
        assert!(self.there.all() == after, "the responder's memory changed");
        pair.check_guards();
    }
}

/// Each one-sided operation on 8 bytes at `at`, with the right it needs.
fn operations(at: (u64, Rkey), local: &Region) -> [(Work, u32); 4] {
    [
        (Work::write(1, at).sge(part(local, 0, 8)), access::REMOTE_WRITE),
        (Work::read(1, at).sge(part(local, 0, 8)), access::REMOTE_READ),
        (Work::compare_swap(1, at, 0, 1).sge(part(local, 0, 8)), access::REMOTE_ATOMIC),
        (Work::fetch_add(1, at, 1).sge(part(local, 0, 8)), access::REMOTE_ATOMIC),
    ]
}

fn each(number: impl Fn(&Bench) -> (u64, Rkey)) {
    for index in 0..4 {
        let bench = bench(&Options::new(Service::Rc));
        let (work, _) = operations(number(&bench), &bench.local)[index].clone();
        bench.refused(&work, status::REM_ACCESS_ERR, AsyncEvent::QpAccessError);
    }
}

#[test]
fn a_key_that_does_not_exist() {
    each(|bench| (bench.there.address(), Rkey(0x1234_5600)));
}

#[test]
fn one_word_before_the_region_and_behind_it() {
    each(|bench| {
        let target = bench.pair.sides[1].register(&bench.there);
        (target.iova - 8, target.rkey)
    });
    each(|bench| remote(&bench.pair.sides[1].register(&bench.there), 4096));
    each(|bench| (u64::MAX - 7, bench.pair.sides[1].register(&bench.there).rkey));
}

#[test]
fn one_byte_too_far() {
    for read in [false, true] {
        for size in [2, 4096] {
            let bench = bench(&Options::new(Service::Rc));
            let target = bench.pair.sides[1].register(&bench.there);
            let at = remote(&target, 4096 - size + 1);
            let work = if read { Work::read(1, at) } else { Work::write(1, at) };
            let work = work.sge(part(&bench.local, 0, size));
            bench.refused(&work, status::REM_ACCESS_ERR, AsyncEvent::QpAccessError);
        }
    }
}

/// A long WRITE that leaves the region by one byte places nothing, not even its first chunk.
#[test]
fn a_long_write_is_checked_whole() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::pattern(3 << 20, 1), Buffer::new((3 << 20) - 1));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    post(&qps[0], &Work::write(1, remote(&target, 0)).sge(whole(&local)));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(1, status::REM_ACCESS_ERR)]);
    assert!(there.all().iter().all(|byte| *byte == 0));
}

/// The requester that has not taken the data of earlier READs is told all the same.
#[test]
fn a_refusal_behind_data_that_was_not_taken() {
    for length in (8..layout::RESPONSE_BYTES_MIN / 2).step_by(8) {
        let rings = (layout::REQUEST_BYTES_MIN, layout::RESPONSE_BYTES_MIN);
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc).with(|o| o.ring_bytes = rings));
        let (here, there) = (Buffer::new(4096), Buffer::new(4096));
        let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
        let read = |id, at| Work::read(id, at).sge(part(&local, 0, length));
        post(&qps[0], &read(1, remote(&target, 0)));
        post(&qps[0], &read(2, remote(&target, 0)));
        post(&qps[0], &read(3, (0, Rkey(0))));
        for _ in 0..10 {
            let _ = pair.sides[1].shared.progress();
        }
        pair.settle();
        let expected = [(1, 0), (2, 0), (3, status::REM_ACCESS_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), expected, "READs of {length} bytes");
    }
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    each(|bench| remote(&bench.pair.sides[1].register_in(PD + 1, &bench.there, ALL), 0));
}

#[test]
fn a_deregistered_key_is_refused() {
    each(|bench| {
        let target = bench.pair.sides[1].register(&bench.there);
        bench.pair.sides[1].shared.regions.remove(target.lkey);
        remote(&target, 0)
    });
}

#[test]
fn a_right_that_the_region_lacks() {
    for index in 0..4 {
        let bench = bench(&Options::new(Service::Rc));
        let (_, right) = operations((0, Rkey(0)), &bench.local)[index];
        let target = bench.pair.sides[1].register_in(PD, &bench.there, ALL & !right);
        let (work, _) = operations(remote(&target, 0), &bench.local)[index].clone();
        bench.refused(&work, status::REM_ACCESS_ERR, AsyncEvent::QpAccessError);
    }
}

#[test]
fn a_right_that_the_queue_pair_lacks() {
    for index in 0..4 {
        let (_, right) =
            operations((0, Rkey(0)), &Pair::new().sides[0].register(&Buffer::new(8)))[index];
        let bench =
            bench(&Options::new(Service::Rc).with(|o| o.attributes.access_flags = ALL & !right));
        let target = bench.pair.sides[1].register(&bench.there);
        let (work, _) = operations(remote(&target, 0), &bench.local)[index].clone();
        bench.refused(&work, status::REM_INV_REQ_ERR, AsyncEvent::QpRequestError);
    }
}

#[test]
fn reads_and_atomics_where_none_are_served() {
    for index in 1..4 {
        let bench = bench(&Options::new(Service::Rc).with(|o| o.attributes.max_dest_rd_atomic = 0));
        let target = bench.pair.sides[1].register(&bench.there);
        let (work, _) = operations(remote(&target, 0), &bench.local)[index].clone();
        bench.refused(&work, status::REM_INV_REQ_ERR, AsyncEvent::QpRequestError);
    }
}

#[test]
fn a_misaligned_atomic_is_refused() {
    for index in 2..4 {
        let bench = bench(&Options::new(Service::Rc));
        let target = bench.pair.sides[1].register(&bench.there);
        let (work, _) = operations(remote(&target, 4), &bench.local)[index].clone();
        bench.refused(&work, status::REM_INV_REQ_ERR, AsyncEvent::QpRequestError);
    }
}

/// A message longer than its receive, by one byte: the receive tells, and so does the send.
#[test]
fn a_receive_that_is_too_short() {
    for size in [11, 100_000] {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc));
        let (here, there) = (Buffer::pattern(size, 1), Buffer::new(size - 1));
        let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
        receive(&qps[1], 5, &[whole(&target)]);
        receive(&qps[1], 6, &[whole(&target)]);
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(1, status::REM_INV_REQ_ERR)]);
        let expected = [(5, status::LOC_LEN_ERR), (6, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[1].recv_cq), expected);
        assert!(pair.sides[1].events().is_empty(), "a completion tells already");
    }
}

/// A receive into memory that it may not write: local protection error, remote operational error.
#[test]
fn a_receive_that_may_not_be_written() {
    let there = Buffer::new(64);
    let regions: [fn(&Pair, &Buffer) -> Lkey; 4] = [
        |_, _| Lkey(0xdead_0000),
        |pair, there| pair.sides[1].register_in(PD, there, 0).lkey,
        |pair, there| pair.sides[1].register_in(PD + 1, there, ALL).lkey,
        |pair, there| {
            let region = pair.sides[1].register(there);
            pair.sides[1].shared.regions.remove(region.lkey);
            region.lkey
        },
    ];
    for lkey in regions {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc));
        let here = Buffer::pattern(64, 1);
        let local = pair.sides[0].register(&here);
        let mut sge = part(&pair.sides[1].register(&there), 0, 64);
        sge.lkey = lkey(&pair, &there);
        receive(&qps[1], 5, &[sge]);
        post(&qps[0], &Work::send(1).sge(whole(&local)));
        pair.settle();
        assert_eq!(outcomes(&qps[0].send_cq), [(1, status::REM_OP_ERR)]);
        assert_eq!(outcomes(&qps[1].recv_cq), [(5, status::LOC_PROT_ERR)]);
        assert_eq!(there.all(), [0; 64]);
    }
}

#[test]
fn regions_are_never_invalidated() {
    // Our own protection domain or not, a key that exists or not.
    for (pd, other) in [(PD, 0), (PD + 1, 0), (PD, 1)] {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc));
        let more = pair.connected(&Options::new(Service::Rc));
        let there = Buffer::new(64);
        let target = pair.sides[1].register_in(pd, &there, ALL);
        receive(&qps[1], 5, &[]);
        receive(&qps[1], 6, &[]);
        post(&qps[0], &Work::send(1).invalidate(Rkey(target.rkey.0 ^ other)));
        post(&qps[0], &Work::send(2));
        pair.settle();
        // The receive was promised, but not that the key goes.
        let sent = [(1, status::REM_ACCESS_ERR), (2, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), sent);
        let received = [(5, status::REM_INV_REQ_ERR), (6, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[1].recv_cq), received);
        assert_eq!((qps[0].state(), qps[1].state()), (State::Err, State::Err));
        if pd == PD {
            // For all other queue pairs nothing has happened.
            let local = pair.sides[0].register(&Buffer::pattern(8, 3));
            post(&more[0], &Work::write(3, remote(&target, 0)).sge(whole(&local)));
            pair.settle();
            assert_eq!(outcomes(&more[0].send_cq), [(3, status::SUCCESS)]);
        }
    }
}

/// The sender's own mistakes never reach the peer.
#[test]
fn local_errors_stay_local() {
    type Mistake = fn(&Pair, &Buffer) -> Work;
    let cases: [(Mistake, u32); 6] = [
        (
            |_, here| {
                Work::send(1).sge(omniverb_device::Sge {
                    address: here.address(),
                    length: 8,
                    lkey: Lkey(5),
                })
            },
            status::LOC_PROT_ERR,
        ),
        (
            |pair, here| Work::send(1).sge(part(&pair.sides[0].register(here), 60, 5)),
            status::LOC_PROT_ERR,
        ),
        (
            |pair, here| {
                Work::send(1).sge(part(&pair.sides[0].register_in(PD + 1, here, ALL), 0, 5))
            },
            status::LOC_PROT_ERR,
        ),
        (
            |pair, here| {
                Work::read(1, (0, Rkey(0))).sge(part(&pair.sides[0].register_in(PD, here, 0), 0, 5))
            },
            status::LOC_PROT_ERR,
        ),
        (
            |pair, here| {
                Work::fetch_add(1, (0, Rkey(0)), 1).sge(part(&pair.sides[0].register(here), 0, 7))
            },
            status::LOC_LEN_ERR,
        ),
        (
            |pair, here| {
                let (good, bad) =
                    (pair.sides[0].register(here), pair.sides[0].register_in(PD + 1, here, ALL));
                Work::send(1).sge(part(&good, 0, 5)).sge(part(&bad, 0, 5))
            },
            status::LOC_PROT_ERR,
        ),
    ];
    for (work, why) in cases {
        let pair = Pair::new();
        let qps = pair.connected(&Options::new(Service::Rc));
        let here = Buffer::new(64);
        receive(&qps[0], 3, &[]);
        receive(&qps[1], 4, &[]);
        post(&qps[0], &work(&pair, &here).flags(0));
        post(&qps[0], &Work::send(2).flags(0));
        pair.settle();
        let expected = [(1, why), (3, status::WR_FLUSH_ERR), (2, status::WR_FLUSH_ERR)];
        assert_eq!(outcomes(&qps[0].send_cq), expected);
        assert!(poll(&qps[1].recv_cq).is_empty());
        assert_eq!(qps[1].state(), State::Rts);
    }
}

/// What was sent before the refused request has succeeded, and says so first.
#[test]
fn order_is_kept_around_a_refusal() {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::pattern(64, 1), Buffer::new(64));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    receive(&qps[1], 9, &[]);
    let at = remote(&target, 0);
    post(&qps[0], &Work::write(1, at).sge(whole(&local)));
    post(&qps[0], &Work::read(2, at).sge(whole(&local)));
    post(&qps[0], &Work::send(3));
    post(&qps[0], &Work::write(4, (at.0 + 1, at.1)).sge(whole(&local)));
    post(&qps[0], &Work::read(5, at).sge(whole(&local)));
    pair.settle();
    let expected = [
        (1, status::SUCCESS),
        (2, status::SUCCESS),
        (3, status::SUCCESS),
        (4, status::REM_ACCESS_ERR),
        (5, status::WR_FLUSH_ERR),
    ];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
    // Posting in ERR is allowed, and flushed at once.
    post(&qps[0], &Work::send(6).flags(0));
    receive(&qps[0], 7, &[]);
    let flushed = [(6, status::WR_FLUSH_ERR), (7, status::WR_FLUSH_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), flushed);
}

#[test]
fn a_queue_pair_connected_with_itself_learns_the_refused_request() {
    let options = Options::new(Service::Rc);
    let pair = Pair::new();
    let qp = pair.sides[0].qp(&options);
    to_init(&qp, &options);
    let joint = pair.joint(options.ring_bytes);
    for side in 0..2 {
        let far_end = FarEnd::Process;
        let peer = Peer { qpn: qp.number, dgid: gid(0), sgid: gid(0), far_end };
        qp.attach(peer, pair.endpoint(side, &joint)).unwrap();
    }
    to_rts(&qp, &options);
    let memory = Buffer::pattern(4096, 1);
    let region = pair.sides[0].register(&memory);
    post(&qp, &Work::read(1, remote(&region, 0)).sge(part(&region, 1024, 512)));
    post(&qp, &Work::write(2, (0x9000, Rkey(1))).sge(part(&region, 0, 8)));
    post(&qp, &Work::write(3, remote(&region, 0)).sge(part(&region, 0, 8)));
    (0..10).for_each(|_| qp.pump());
    let flushed = (3, status::WR_FLUSH_ERR);
    assert_eq!(outcomes(&qp.send_cq), [(1, 0), (2, status::REM_ACCESS_ERR), flushed]);
    assert_eq!(memory.read(1024, 512), memory.read(0, 512));
    qp.destroy();
}
