//! One-sided operations through granted mappings. The grants here lead to a *shadow* of the
//! region, not to the region: so one sees which way an operation went.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, Pair, outcomes, poll, post, to_init, to_rts, to_state};
use crate::work_request_helpers::{Work, part, remote};
use omniverb_device::granted_peer_pages::{Backing, Grant};
use omniverb_device::qp_attributes::State;
use omniverb_device::{Qp, Region, access, status};
use omniverb_terms::{Qpn, Rkey, Service};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[path = "mapped_operations/ordering.rs"]
mod ordering;

const LENGTH: usize = 16384;
/// The part of the region that is mapped.
const FIRST: usize = 4096;
const MAPPED: usize = 8192;

struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    here: Buffer,
    local: Arc<Region>,
    there: Buffer,
    target: Arc<Region>,
    shadow: Buffer,
}

/// What the grants lead to: memory of its own, or, in the module that is these tests again, a part
/// of more, as an extent is in the middle of a file.
fn shadow() -> Buffer {
    let around = if module_path!().contains("within") { 5 * 4096 } else { 0 };
    Buffer::within(MAPPED, around)
}

fn bench() -> Bench {
    bench_of(&Options::new(Service::Rc))
}

fn bench_of(options: &Options) -> Bench {
    let pair = Pair::new();
    let qps = pair.connected(options);
    let (here, there) = (Buffer::pattern(LENGTH, 1), Buffer::new(LENGTH));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    Bench { pair, qps, here, local, there, target, shadow: shadow() }
}

impl Bench {
    fn asked(&self) -> Vec<(Qpn, Qpn, Rkey)> {
        std::mem::take(&mut *self.pair.sides[0].world.grants.lock().unwrap())
    }

    fn grant(&self, access: u32) -> Grant {
        Grant {
            rkey: self.target.rkey,
            access,
            address: self.target.iova,
            length: LENGTH as u64,
            page_start: self.target.iova + FIRST as u64,
            epoch: self.qps[1].epoch() as u32,
            window: self.shadow.window(0, MAPPED),
            backing: Backing::File,
        }
    }

    /// A first operation makes the QP ask; then the grant comes.
    fn granted(self, access: u32) -> Bench {
        let work = Work::write(0, remote(&self.target, FIRST)).sge(part(&self.local, 0, 1));
        post(&self.qps[0], &work);
        self.pair.settle();
        assert_eq!(poll(&self.qps[0].send_cq).len(), 1);
        let ask = (self.qps[0].number, self.qps[1].number, self.target.rkey);
        assert_eq!(self.asked(), [ask]);
        self.there.write(FIRST, &[0]);
        assert!(self.qps[0].granted(self.qps[1].number, self.grant(access)));
        self
    }

    fn at(&self, offset: usize) -> (u64, Rkey) {
        remote(&self.target, offset)
    }

    fn is_zero(&self, buffer: &Buffer) -> bool {
        buffer.all().iter().all(|byte| *byte == 0)
    }
}

#[test]
fn a_grant_is_asked_for_once() {
    let bench = bench();
    for id in 0..5 {
        let work = Work::write(id, bench.at(0)).sge(part(&bench.local, 0, 8));
        post(&bench.qps[0], &work);
    }
    bench.pair.settle();
    let ask = (bench.qps[0].number, bench.qps[1].number, bench.target.rkey);
    assert_eq!(bench.asked(), [ask]);
    assert_eq!(bench.there.read(0, 8), bench.here.read(0, 8));
}

/// Of memory that was plugged into the machine all pages are there: the kernel is not asked.
#[test]
fn pages_of_a_device_are_not_asked_for() {
    for backing in [Backing::File, Backing::Device] {
        let bench = bench();
        let work = Work::write(0, remote(&bench.target, FIRST)).sge(part(&bench.local, 0, 1));
        post(&bench.qps[0], &work);
        bench.pair.settle();
        assert_eq!(poll(&bench.qps[0].send_cq).len(), 1);
        let grant = Grant { backing, ..bench.grant(access::REMOTE) };
        let world = &bench.pair.sides[0].world;
        world.holes.lock().unwrap().insert(grant.window.address());
        assert!(bench.qps[0].granted(bench.qps[1].number, grant));
        let work = Work::write(1, bench.at(FIRST)).sge(part(&bench.local, 0, MAPPED));
        post(&bench.qps[0], &work);
        let looks = world.looks.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(looks == 0, backing == Backing::Device);
        let mapped = bench.shadow.read(0, MAPPED) == bench.here.read(0, MAPPED);
        assert_eq!(mapped, backing == Backing::Device, "{backing:?}");
    }
}

#[test]
fn mapped_operations_need_no_other_process() {
    let bench = bench().granted(access::REMOTE);
    let Bench { qps, here, local, shadow, .. } = &bench;
    let cases: [(usize, usize); 6] =
        [(FIRST, 1), (FIRST, MAPPED), (FIRST + MAPPED - 1, 1), (5001, 900), (5000, 8), (6000, 0)];
    for (offset, length) in cases {
        let work = Work::write(1, bench.at(offset));
        let work = work.sge(part(local, 7, length / 2)).sge(part(local, 9000, length - length / 2));
        post(&qps[0], &work);
        assert_eq!(outcomes(&qps[0].send_cq), [(1, status::SUCCESS)]);
        let expected = [here.read(7, length / 2), here.read(9000, length - length / 2)].concat();
        assert!(shadow.read(offset - FIRST, length) == expected);

        let back = Buffer::new(length);
        let region = bench.pair.sides[0].register(&back);
        post(&qps[0], &Work::read(2, bench.at(offset)).sge(part(&region, 0, length)));
        assert_eq!(outcomes(&qps[0].send_cq), [(2, status::SUCCESS)]);
        assert!(back.all() == expected);
    }
    shadow.write(8, &50u64.to_ne_bytes());
    let atomics = [
        (Work::fetch_add(3, bench.at(FIRST + 8), 5), 50, 55),
        (Work::compare_swap(3, bench.at(FIRST + 8), 55, 7), 55, 7),
        (Work::compare_swap(3, bench.at(FIRST + 8), 55, 8), 7, 7),
    ];
    for (work, found, left) in atomics {
        post(&qps[0], &work.sge(part(local, 16, 8)));
        assert_eq!(outcomes(&qps[0].send_cq), [(3, status::SUCCESS)]);
        assert_eq!((here.number(16), shadow.number(8)), (found, left));
    }
    assert!(bench.is_zero(&bench.there));
}

/// Its pages are mapped here still, but what becomes of them is not seen any more.
#[test]
fn pages_of_the_dead_are_left_alone() {
    let bench = bench().granted(access::REMOTE);
    let Bench { pair, qps, local, shadow, .. } = &bench;
    let at = bench.at(FIRST);
    let works = [Work::write(1, at), Work::read(2, at), Work::fetch_add(3, at, 1)];
    pair.sides[1].die();
    for work in works {
        post(&qps[0], &work.sge(part(local, 0, 8)));
    }
    assert!(poll(&qps[0].send_cq).is_empty() && bench.is_zero(shadow));
    qps[0].peer_died(qps[1].number);
    let flushed = |id| (id, status::WR_FLUSH_ERR);
    let failed = [(1, status::RETRY_EXC_ERR), flushed(2), flushed(3)];
    assert_eq!(outcomes(&qps[0].send_cq), failed);
    assert!(bench.is_zero(shadow) && bench.is_zero(&bench.there));
}

/// A READ was consumed, but its answer not taken. What is mapped comes after it in our own memory,
/// too.
#[test]
fn answers_that_are_on_their_way_come_first() {
    let Bench { pair, qps, target, shadow, .. } = &bench().granted(access::REMOTE);
    let landing = Buffer::new(LENGTH);
    let region = pair.sides[0].register(&landing);
    let (end, word) = (LENGTH - 8, FIRST + 8);
    shadow.write(8, &50u64.to_ne_bytes());
    let read = |id, at, length| Work::read(id, remote(target, at)).sge(part(&region, 0, length));
    let atomic = Work::fetch_add(2, remote(target, word), 5).sge(part(&region, end, 8));
    for work in [read(1, 0, LENGTH), atomic] {
        post(&qps[0], &work);
        qps[1].pump();
    }
    pair.settle();
    let done = [(1, status::SUCCESS), (2, status::SUCCESS)];
    assert_eq!(outcomes(&qps[0].send_cq), done);
    assert_eq!((landing.number(end), shadow.number(8)), (50, 55));
    for work in [read(1, 0, LENGTH), read(2, FIRST, MAPPED)] {
        post(&qps[0], &work);
        qps[1].pump();
    }
    pair.settle();
    assert_eq!(outcomes(&qps[0].send_cq), done);
    assert!(landing.read(0, MAPPED) == shadow.all());
}

#[test]
fn what_leaves_the_mapped_pages_travels() {
    let bench = bench().granted(access::REMOTE);
    let cases =
        [(FIRST - 1, 1), (FIRST - 1, 2), (FIRST + MAPPED, 1), (FIRST + MAPPED - 1, 2), (0, LENGTH)];
    for (offset, length) in cases {
        let work = Work::write(1, bench.at(offset)).sge(part(&bench.local, 0, length));
        post(&bench.qps[0], &work);
        assert!(poll(&bench.qps[0].send_cq).is_empty());
        bench.pair.settle();
        assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
        assert!(bench.there.read(offset, length) == bench.here.read(0, length));
        assert!(bench.is_zero(&bench.shadow));
    }
    // Behind the region: refused, as ever.
    let work = Work::write(1, bench.at(LENGTH - 1)).sge(part(&bench.local, 0, 2));
    post(&bench.qps[0], &work);
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_ACCESS_ERR)]);
}

#[test]
fn addresses_that_wrap_are_not_mapped() {
    for address in [0, u64::MAX, u64::MAX - 8] {
        let bench = bench().granted(access::REMOTE);
        let at = (address, bench.target.rkey);
        post(&bench.qps[0], &Work::write(1, at).sge(part(&bench.local, 0, 100)));
        bench.pair.settle();
        assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_ACCESS_ERR)]);
        assert!(bench.is_zero(&bench.shadow));
    }
}

#[test]
fn a_grant_is_only_for_what_it_allows() {
    let one = |right: u32| bench().granted(right);
    let mapped = |bench: &Bench, work: Work| {
        post(&bench.qps[0], &work.sge(part(&bench.local, 0, 8)));
        let done = poll(&bench.qps[0].send_cq).len() == 1;
        bench.pair.settle();
        poll(&bench.qps[0].send_cq);
        done
    };
    for right in [access::REMOTE_READ, access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
        let write = |bench: &Bench| mapped(bench, Work::write(1, bench.at(FIRST)));
        let read = |bench: &Bench| mapped(bench, Work::read(1, bench.at(FIRST)));
        let add = |bench: &Bench| mapped(bench, Work::fetch_add(1, bench.at(FIRST), 1));
        assert_eq!(write(&one(right)), right == access::REMOTE_WRITE);
        assert_eq!(read(&one(right)), right == access::REMOTE_READ);
        assert_eq!(add(&one(right)), right == access::REMOTE_ATOMIC);
    }
}

#[test]
fn unrequested_grants_are_ignored() {
    let bench = bench();
    let peer = bench.qps[1].number;
    assert!(!bench.qps[0].granted(peer, bench.grant(access::REMOTE)));
    let bench = bench.granted(access::REMOTE);
    assert!(!bench.qps[0].granted(Qpn(peer.0 + 1), bench.grant(access::REMOTE)));
    let other = Grant { rkey: Rkey(1), ..bench.grant(access::REMOTE) };
    assert!(!bench.qps[0].granted(peer, other));
    assert!(!bench.qps[1].granted(bench.qps[0].number, bench.grant(access::REMOTE)));
}

#[test]
fn revoked_grants_are_not_used_any_more() {
    let bench = bench().granted(access::REMOTE);
    bench.qps[1].revoke_grants();
    // The same grant, granted before and arriving late, is void.
    assert!(!bench.qps[0].granted(bench.qps[1].number, bench.grant(access::REMOTE)));
    let work = Work::write(1, bench.at(FIRST)).sge(part(&bench.local, 0, 8));
    post(&bench.qps[0], &work);
    assert!(poll(&bench.qps[0].send_cq).is_empty());
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
    assert!(bench.is_zero(&bench.shadow));
    assert_eq!(bench.there.read(FIRST, 8), bench.here.read(0, 8));
    // It asks anew, and a new grant counts.
    assert_eq!(bench.asked().len(), 1);
    assert!(bench.qps[0].granted(bench.qps[1].number, bench.grant(access::REMOTE)));
    post(&bench.qps[0], &work);
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
    assert_eq!(bench.shadow.read(0, 8), bench.here.read(0, 8));
}

#[test]
fn a_side_on_the_way_to_reclaimed_pages_turns_round() {
    for (gives_up, writes) in [(false, true), (true, true), (false, false), (true, false)] {
        let bench = bench().granted(access::REMOTE);
        let at = bench.at(FIRST);
        let work = match writes {
            true => Work::write(1, at).sge(part(&bench.local, 0, 8)),
            false => Work::read(1, at).sge(part(&bench.local, 0, 8)),
        };
        assert!(!bench.qps[1].peers_reach_pages());
        // Between its first look at the EPOCH and its going there, the pages are on their way back.
        let owner = bench.qps[1].clone();
        let seen = Arc::new(AtomicBool::new(false));
        let (told, first) = (seen.clone(), AtomicBool::new(true));
        let hook = move || {
            if first.swap(false, Ordering::Relaxed) {
                told.store(owner.peers_reach_pages(), Ordering::Relaxed);
                owner.revoke_grants();
                if gives_up {
                    owner.give_up_on_peers();
                }
            }
        };
        *bench.pair.sides[0].world.on_look.lock().unwrap() = Some(Box::new(hook));
        post(&bench.qps[0], &work);
        bench.pair.settle();
        assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::SUCCESS)]);
        assert!(!seen.load(Ordering::Relaxed), "it is not there before it has looked");
        assert!(bench.is_zero(&bench.shadow), "void grants are not used");
        assert!(!bench.qps[1].peers_reach_pages());
    }
}

#[test]
fn a_granter_is_told_when_the_queue_pair_fails() {
    let bench = bench().granted(access::REMOTE);
    let failed = || std::mem::take(&mut *bench.pair.sides[1].world.failed.lock().unwrap());
    to_state(&bench.qps[1], State::Err);
    assert!(failed().is_empty(), "nothing was granted by it");
    assert!(!bench.qps[1].lend());
    to_state(&bench.qps[1], State::Reset);
    assert!(!bench.qps[1].lend());
    to_init(&bench.qps[1], &Options::new(Service::Rc));
    assert!(bench.qps[1].lend());
    to_state(&bench.qps[1], State::Err);
    assert_eq!(failed(), [bench.qps[1].number]);
    to_state(&bench.qps[1], State::Reset);
    to_init(&bench.qps[1], &Options::new(Service::Rc));
    to_state(&bench.qps[1], State::Err);
    assert!(failed().is_empty());
}

#[test]
fn a_new_link_knows_no_old_grants() {
    let options = Options::new(Service::Rc);
    let bench = bench().granted(access::REMOTE);
    for qp in &bench.qps {
        to_state(qp, State::Reset);
        to_init(qp, &options);
    }
    bench.pair.join(&bench.qps, options.ring_bytes);
    bench.qps.iter().for_each(|qp| to_rts(qp, &options));
    post(&bench.qps[0], &Work::write(1, bench.at(FIRST)).sge(part(&bench.local, 0, 8)));
    bench.pair.settle();
    assert!(bench.is_zero(&bench.shadow));
}

#[test]
fn misaligned_mapped_atomics_are_refused_by_the_responder() {
    let bench = bench().granted(access::REMOTE);
    post(&bench.qps[0], &Work::fetch_add(1, bench.at(FIRST + 4), 1).sge(part(&bench.local, 0, 8)));
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_INV_REQ_ERR)]);
    assert!(bench.is_zero(&bench.shadow));
}
