//! Memory that the program made unreachable after it had registered it: peers are refused, and
//! nothing of it is touched.

use crate::guarded_buffer::Buffer;
use crate::random_operations::expected_state::Random;
use crate::two_device_fixture::{Options, PD, Pair, outcomes, post, receive, try_post};
use crate::work_request_helpers::{Work, part, remote, whole};
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, Qp, Region, access, status};
use omniverb_link::layout;
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LENGTH: usize = 256 << 10;

struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    here: Buffer,
    local: Arc<Region>,
    there: Buffer,
    target: Arc<Region>,
}

fn bench(options: &Options) -> Bench {
    let pair = Pair::new();
    let qps = pair.connected(options);
    let (here, there) = (Buffer::pattern(LENGTH, 1), Buffer::pattern(LENGTH, 2));
    let local = pair.sides[0].register(&here);
    let target = pair.sides[1].register_in(PD, &there, access::LOCAL_WRITE | access::REMOTE);
    Bench { pair, qps, here, local, there, target }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pages {
    ReadOnly,
    Gone,
}

impl Bench {
    /// The byte at an offset of the target is of a page that became that.
    fn spoil(&self, offset: usize, pages: Pages) {
        let world = &self.pair.sides[1].world;
        let bytes = match pages {
            Pages::ReadOnly => &world.read_only,
            Pages::Gone => &world.unreachable,
        };
        bytes.lock().unwrap().insert(self.there.address() as usize + offset);
    }

    fn refused(&self, work: &Work) {
        post(&self.qps[0], work);
        self.pair.settle();
        let expected = [(work.wr_id, status::REM_ACCESS_ERR)];
        assert_eq!(outcomes(&self.qps[0].send_cq), expected);
        assert_eq!((self.qps[0].state(), self.qps[1].state()), (State::Err, State::Err));
        assert_eq!(self.pair.sides[1].events(), [AsyncEvent::QpAccessError]);
        self.pair.check_guards();
    }
}

#[test]
fn each_operation_is_refused_that_would_fault() {
    for pages in [Pages::ReadOnly, Pages::Gone] {
        for index in 0..5 {
            let bench = bench(&Options::new(Service::Rc));
            let at = remote(&bench.target, 4096);
            let eight = part(&bench.local, 0, 8);
            let (work, writes) = match index {
                0 => (Work::write(1, at).sge(eight), true),
                1 => (Work::read(1, at).sge(eight), false),
                2 => (Work::compare_swap(1, at, 0, 1).sge(eight), true),
                3 => (Work::fetch_add(1, at, 1).sge(eight), true),
                _ => (Work::atomic_write(1, at).sge(eight), true),
            };
            bench.spoil(4096 + 7, pages);
            let before = bench.there.all();
            if writes || pages == Pages::Gone {
                bench.refused(&work);
            } else {
                post(&bench.qps[0], &work);
                bench.pair.settle();
                assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, 0)]);
                assert_eq!(bench.here.read(0, 8), before[4096..4104]);
            }
            assert!(bench.there.all() == before);
        }
    }
}

/// What comes before it may have moved, nothing behind it.
#[test]
fn a_page_in_the_middle_ends_a_long_message() {
    for read in [false, true] {
        let bench = bench(&Options::new(Service::Rc));
        let (before, ours) = (bench.there.all(), bench.here.all());
        bench.spoil(LENGTH / 2, Pages::Gone);
        let at = remote(&bench.target, 0);
        let work = if read { Work::read(1, at) } else { Work::write(1, at) };
        bench.refused(&work.sge(whole(&bench.local)));
        let half = LENGTH / 2..;
        if read {
            assert!(bench.here.all()[half.clone()] == ours[half]);
        } else {
            assert!(bench.there.all()[half.clone()] == before[half]);
        }
    }
}

/// A READ that waits for room finds that its pages went meanwhile.
#[test]
fn pages_that_go_while_an_answer_waits() {
    let rings = (layout::REQUEST_BYTES_MIN, layout::RESPONSE_BYTES_MIN);
    let bench = bench(&Options::new(Service::Rc).with(|options| options.ring_bytes = rings));
    post(&bench.qps[0], &Work::read(1, remote(&bench.target, 0)).sge(whole(&bench.local)));
    bench.qps[1].pump();
    bench.spoil(LENGTH - 1, Pages::Gone);
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, status::REM_ACCESS_ERR)]);
    assert_eq!(bench.pair.sides[1].events(), [AsyncEvent::QpAccessError]);
}

/// The receive that the end of a WRITE would have taken is flushed as any.
#[test]
fn a_write_with_immediate_data_gives_its_receive_back() {
    let bench = bench(&Options::new(Service::Rc));
    receive(&bench.qps[1], 77, &[]);
    bench.spoil(0, Pages::ReadOnly);
    let at = remote(&bench.target, 0);
    bench.refused(&Work::write(1, at).sge(part(&bench.local, 0, 8)).immediate(5));
    assert_eq!(outcomes(&bench.qps[1].recv_cq), [(77, status::WR_FLUSH_ERR)]);
}

/// UC has no peer to tell: the message is lost, and the next one comes.
#[test]
fn an_unreliable_write_is_lost() {
    let bench = bench(&Options::new(Service::Uc));
    bench.spoil(0, Pages::Gone);
    for (id, offset) in [(1, 0), (2, 4096)] {
        let at = remote(&bench.target, offset);
        post(&bench.qps[0], &Work::write(id, at).sge(part(&bench.local, 0, 64)));
    }
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, 0), (2, 0)]);
    assert_eq!(bench.there.read(4096, 64), bench.here.read(0, 64));
    assert_eq!(bench.qps[1].state(), State::Rts);
}

/// Of no bytes nothing is touched, whatever is there.
#[test]
fn nothing_is_refused_of_nothing() {
    let bench = bench(&Options::new(Service::Rc));
    bench.spoil(0, Pages::Gone);
    let at = remote(&bench.target, 0);
    post(&bench.qps[0], &Work::write(1, at));
    post(&bench.qps[0], &Work::read(2, at));
    bench.pair.settle();
    assert_eq!(outcomes(&bench.qps[0].send_cq), [(1, 0), (2, 0)]);
}

/// What a row of operations left behind.
#[derive(Debug, PartialEq)]
struct TrialResult {
    sent: Vec<(u64, u32)>,
    received: Vec<(u64, u32)>,
    states: [State; 2],
    events: Vec<AsyncEvent>,
    target: Vec<u8>,
}

/// WRITEs of `seed`'s choice, small ones most of them, over each other too; the one that is `bad`
/// goes to a page that is gone, or has a key that opens nothing. Together or one at a time. Says
/// how often the host placed something, too.
fn row(service: Service, seed: u64, bad: usize, together: bool) -> (TrialResult, usize) {
    let bench = bench(&Options::new(service));
    let world = &bench.pair.sides[1].world;
    bench.spoil(LENGTH - 1, Pages::ReadOnly);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9) | 1);
    for index in 0..ROW {
        let length = match random.below(8) {
            0 => 1024 + random.below(2),
            1 => 1 + random.below(1500),
            _ => 1 + random.below(64),
        };
        let mut at = remote(&bench.target, random.below(8192));
        let (is_gone, with_immediate) = (random.chance(2), random.chance(12));
        if index == bad {
            match is_gone {
                true => at = remote(&bench.target, LENGTH - length),
                false => at.1.0 ^= 0x55,
            }
        }
        let from = random.below(8192);
        let mut work = Work::write(index as u64, at).sge(part(&bench.local, from, length));
        if with_immediate {
            receive(&bench.qps[1], index as u64, &[]);
            work = work.immediate(index as u32);
        }
        let _ = try_post(&bench.qps[0], &work);
        if !together {
            bench.pair.settle();
        }
    }
    bench.pair.settle();
    bench.pair.check_guards();
    let left = TrialResult {
        sent: outcomes(&bench.qps[0].send_cq),
        received: outcomes(&bench.qps[1].recv_cq),
        states: [0, 1].map(|side| bench.qps[side].state()),
        events: bench.pair.sides[1].events(),
        target: bench.there.all(),
    };
    (left, world.places.load(Ordering::Relaxed))
}

const ROW: usize = 40;

/// Wherever in a row of WRITEs the one is that fails: those before it are there and none behind it,
/// as if each had been served alone.
#[test]
fn writes_served_together_end_as_each_alone() {
    for service in [Service::Rc, Service::Uc] {
        let mut calls = [0; 2];
        for seed in [1, 2] {
            for bad in 0..=ROW {
                let [(one, few), (other, many)] =
                    [true, false].map(|together| row(service, seed, bad, together));
                assert!(one == other, "{service:?} {seed} {bad}: {one:?} {other:?}");
                calls = [calls[0] + few, calls[1] + many];
            }
        }
        assert!(calls[0] * 2 < calls[1], "{service:?}: {calls:?}");
    }
}

/// Long WRITEs of `seed`'s choice whose records are placed together, each into memory of which a
/// page may be gone: all that comes before that page's record is there, and nothing from it on.
#[test]
fn records_of_a_long_write_are_placed_up_to_a_page_that_is_gone() {
    const CHUNK: usize = 16 << 10;
    for service in [Service::Rc, Service::Uc] {
        let (mut calls, mut records) = (0, 0);
        for seed in 0..60 {
            let bench = bench(&Options::new(service));
            let mut random = Random(seed * 2 + 1);
            let length = CHUNK + 1 + random.below(LENGTH - CHUNK - 1);
            let from = random.below(LENGTH - length + 1);
            let gone = random.chance(2).then(|| random.below(length));
            if let Some(gone) = gone {
                bench.spoil(from + gone, Pages::ReadOnly);
            }
            let (before, ours) = (bench.there.all(), bench.here.all());
            let mut work = Work::write(7, remote(&bench.target, from));
            work = work.sge(part(&bench.local, 0, length));
            let with_immediate = random.chance(2);
            if with_immediate {
                receive(&bench.qps[1], 77, &[]);
                work = work.immediate(5);
            }
            post(&bench.qps[0], &work);
            bench.pair.settle();
            bench.pair.check_guards();
            let placed = gone.map_or(length, |gone| gone / CHUNK * CHUNK);
            let mut expected = before;
            expected[from..from + placed].copy_from_slice(&ours[..placed]);
            assert!(bench.there.all() == expected, "{service:?} {seed}");
            let is_refused = gone.is_some() && service == Service::Rc;
            let sent = if is_refused { status::REM_ACCESS_ERR } else { 0 };
            assert_eq!(outcomes(&bench.qps[0].send_cq), [(7, sent)], "{service:?} {seed}");
            let received = match (with_immediate, gone) {
                (true, None) => vec![(77, 0)],
                (true, Some(_)) if is_refused => vec![(77, status::WR_FLUSH_ERR)],
                _ => vec![],
            };
            assert_eq!(outcomes(&bench.qps[1].recv_cq), received, "{service:?} {seed}");
            calls += bench.pair.sides[1].world.places.load(Ordering::Relaxed);
            records += placed.div_ceil(CHUNK);
        }
        assert!(calls * 4 < records * 3, "{service:?}: {calls} calls for {records}");
    }
}
