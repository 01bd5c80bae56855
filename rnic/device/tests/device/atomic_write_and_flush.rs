//! Tests ATOMIC WRITE and FLUSH: their effect, their path, and refusals.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, PD, Pair, outcomes, poll, post, try_post};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::granted_peer_pages::Grant;
use omniverb_device::{
    AsyncEvent, FarEnd, PostError, PostFault, Qp, Region, access, send_flags, status, wc_opcode,
};
use omniverb_terms::{Placement, Rkey, Selectivity, Service};
use std::sync::Arc;

const RANGE: (Placement, Selectivity) = (Placement::GLOBAL, Selectivity::Range);
const REGION: (Placement, Selectivity) = (Placement::GLOBAL, Selectivity::Region);
const KEPT: (Placement, Selectivity) = (Placement::PERSISTENT, Selectivity::Range);
const LENGTH: usize = 8192;

struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    here: Buffer,
    local: Arc<Region>,
    there: Buffer,
    target: Arc<Region>,
}

fn bench_of(options: &Options, rights: u32) -> Bench {
    let pair = Pair::new();
    let qps = pair.connected(options);
    let (here, there) = (Buffer::pattern(LENGTH, 1), Buffer::new(LENGTH));
    let local = pair.sides[0].register_in(PD, &here, 0);
    let target = pair.sides[1].register_in(PD, &there, rights | access::LOCAL_WRITE);
    Bench { pair, qps, here, local, there, target }
}

fn bench() -> Bench {
    bench_of(&Options::new(Service::Rc), access::REMOTE)
}

impl Bench {
    fn does(&self, work: &Work) -> Vec<(u64, u32)> {
        post(&self.qps[0], work);
        self.pair.settle();
        outcomes(&self.qps[0].send_cq)
    }

    fn at(&self, offset: usize) -> (u64, Rkey) {
        remote(&self.target, offset)
    }
}

#[test]
fn eight_bytes_arrive_as_they_are() {
    let bench = bench();
    let Bench { qps, here, local, there, .. } = &bench;
    // From one place that may be read only, from two, and from the request itself.
    let pieces = Work::atomic_write(2, bench.at(16)).sge(part(local, 3, 5));
    let copy = Buffer::pattern(8, 9);
    let works = [
        Work::atomic_write(1, bench.at(8)).sge(part(local, 1, 8)),
        pieces.sge(part(local, 100, 3)),
        Work::atomic_write(3, bench.at(24)).inline(&copy),
    ];
    for work in &works {
        post(&qps[0], work);
    }
    bench.pair.settle();
    let done = poll(&qps[0].send_cq);
    assert!(done.iter().all(|wc| wc.status == 0 && wc.opcode == wc_opcode::ATOMIC_WRITE));
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    let mut expected = here.read(1, 8);
    expected.extend([here.read(3, 5), here.read(100, 3), copy.all()].concat());
    assert_eq!(there.read(8, 24), expected);
    assert_eq!(there.read(0, 8), [0; 8]);
}

#[test]
fn a_flush_follows_what_was_written() {
    let bench = bench();
    let Bench { qps, here, local, there, .. } = &bench;
    for (id, how) in [(10, RANGE), (20, REGION)] {
        post(&qps[0], &Work::write(id, bench.at(0)).sge(whole(local)));
        // The length counts for nothing if all of the region is meant.
        let length = if how == RANGE { LENGTH as u32 } else { u32::MAX };
        post(&qps[0], &Work::flush(id + 1, bench.at(0), length, how));
        bench.pair.settle();
        let done = poll(&qps[0].send_cq);
        let opcodes: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        let expected = [(id, 0, wc_opcode::RDMA_WRITE), (id + 1, 0, wc_opcode::FLUSH)];
        assert_eq!(opcodes, expected);
        assert!(there.all() == here.all());
    }
    assert_eq!(bench.does(&Work::flush(3, bench.at(5), 0, RANGE)), [(3, 0)], "of nothing");
}

#[test]
fn what_is_mapped_is_stored_without_the_peer_and_flushed_by_it() {
    let bench = bench();
    let Bench { pair, qps, here, local, there, target } = &bench;
    let shadow = Buffer::new(LENGTH);
    assert_eq!(bench.does(&Work::atomic_write(0, bench.at(0)).sge(part(local, 0, 8))), [(0, 0)]);
    assert_eq!(pair.sides[0].world.grants.lock().unwrap().len(), 1, "it is asked for");
    assert_eq!(there.read(0, 8), here.read(0, 8));
    let grant = Grant {
        rkey: target.rkey,
        access: access::REMOTE,
        address: target.iova,
        length: LENGTH as u64,
        page_start: target.iova,
        epoch: qps[1].epoch() as u32,
        window: shadow.window(0, LENGTH),
        backing: omniverb_device::granted_peer_pages::Backing::File,
    };
    assert!(qps[0].granted(qps[1].number, grant));
    post(&qps[0], &Work::atomic_write(1, bench.at(64)).sge(part(local, 5, 8)));
    post(&qps[0], &Work::flush(2, bench.at(0), LENGTH as u32, RANGE));
    assert_eq!(outcomes(&qps[0].send_cq), [(1, 0)], "nobody else did anything");
    assert_eq!(shadow.read(64, 8), here.read(5, 8));
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), [(2, 0)]);
    // A misaligned one is the owner's to refuse.
    let work = Work::atomic_write(5, bench.at(65)).sge(part(local, 5, 8));
    assert_eq!(bench.does(&work), [(5, status::REM_INV_REQ_ERR)]);
}

#[test]
fn a_missing_right_is_refused() {
    let eight = |bench: &Bench| Work::atomic_write(1, bench.at(8)).sge(part(&bench.local, 0, 8));
    let flush = |how| move |bench: &Bench| Work::flush(1, bench.at(0), 8, how);
    type Make = Box<dyn Fn(&Bench) -> Work>;
    let all = access::REMOTE | access::FLUSH_PERSISTENT;
    let (invalid, refused) = (status::REM_INV_REQ_ERR, status::REM_ACCESS_ERR);
    let table: [(Make, u32, u32, u32); 8] = [
        (Box::new(eight), !access::REMOTE_WRITE, all, invalid),
        (Box::new(eight), all, !access::REMOTE_WRITE, refused),
        (Box::new(flush(RANGE)), !access::FLUSH_GLOBAL, all, invalid),
        (Box::new(flush(RANGE)), all, access::REMOTE_WRITE, refused),
        (Box::new(flush(REGION)), all, access::REMOTE_WRITE, refused),
        (Box::new(flush(KEPT)), access::REMOTE, all, invalid),
        // As it is for every region of memory that forgets when the power goes.
        (Box::new(flush(KEPT)), all, access::REMOTE, refused),
        (Box::new(|bench| Work::flush(1, bench.at(1), LENGTH as u32, RANGE)), all, all, refused),
    ];
    for (number, (make, of_qp, of_region, expected)) in table.into_iter().enumerate() {
        let options = Options::new(Service::Rc).with(|o| o.attributes.access_flags = of_qp & all);
        let bench = bench_of(&options, of_region & all);
        assert_eq!(bench.does(&make(&bench)), [(1, expected)], "{number}");
        let event = match expected {
            status::REM_INV_REQ_ERR => AsyncEvent::QpRequestError,
            _ => AsyncEvent::QpAccessError,
        };
        assert_eq!(bench.pair.sides[1].events(), [event], "{number}");
        assert_eq!(bench.there.read(0, 16), [0; 16]);
    }
}

#[test]
fn what_is_no_request() {
    let bench = bench();
    let Bench { qps, local, .. } = &bench;
    let flush = Work::flush(1, bench.at(0), 8, RANGE);
    let bad = [
        flush.clone().sge(part(local, 0, 8)),
        Work { swap: 0, ..flush.clone() },
        Work { swap: 4, ..flush.clone() },
        Work { swap: 0x201, ..flush.clone() },
        flush.clone().and(send_flags::INLINE).inline(&Buffer::new(0)),
    ];
    for work in &bad {
        assert_eq!(try_post(&qps[0], work), Err(PostError::Invalid(PostFault::Flags)));
    }
    let long = Work::atomic_write(2, bench.at(0)).sge(part(local, 0, 9));
    assert_eq!(bench.does(&long), [(2, status::LOC_LEN_ERR)]);
    for service in [Service::Uc, Service::Ud] {
        let (pair, options) = (Pair::new(), Options::new(service));
        let qp = pair.sides[0].qp(&options);
        crate::two_device_fixture::to_init(&qp, &options);
        crate::two_device_fixture::to_rts(&qp, &options);
        assert!(matches!(try_post(&qp, &flush), Err(PostError::Invalid(_))));
    }
}

#[test]
fn by_the_engine_as_by_a_link() {
    let pair = Pair::new();
    let options = Options::new(Service::Rc).with(|o| o.far_end = FarEnd::Engine);
    let qps = [0, 1].map(|side| pair.sides[side].qp(&options));
    for qp in &qps {
        crate::two_device_fixture::to_init(qp, &options);
        crate::two_device_fixture::to_rts(qp, &options);
    }
    pair.join_by_engine(&qps, options.ring_bytes);
    let (here, there) = (Buffer::pattern(4096, 1), Buffer::new(4096));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    let at = remote(&target, 0);
    post(&qps[0], &Work::write(1, remote(&target, 8)).sge(part(&local, 8, 4000)));
    post(&qps[0], &Work::atomic_write(2, at).sge(part(&local, 0, 8)));
    post(&qps[0], &Work::flush(3, at, 4096, RANGE));
    post(&qps[0], &Work::flush(4, at, 4096, KEPT));
    pair.settle();
    let expected = [(1, 0), (2, 0), (3, 0), (4, status::REM_INV_REQ_ERR)];
    assert_eq!(outcomes(&qps[0].send_cq), expected);
    assert!(there.read(0, 4008) == here.read(0, 4008));
}
