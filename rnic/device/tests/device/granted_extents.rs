//! Several extents of one region, against a simple model: for every byte, which way it went. The
//! grants lead to a *shadow* of the region, as in `mapped_operations`.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, Pair, outcomes, poll, post};
use crate::work_request_helpers::{Work, part, remote};
use omniverb_device::granted_peer_pages::{Denial, Grant};
use omniverb_device::{Qp, Region, access, status};
use omniverb_terms::Service;
use std::sync::Arc;

const PAGE: usize = 4096;
/// Pages of the region; another page before and behind them is its head and tail.
const PAGES: usize = 40;
const LENGTH: usize = (PAGES + 2) * PAGE;

struct Bench {
    pair: Pair,
    qps: [Arc<Qp>; 2],
    local: Arc<Region>,
    here: Buffer,
    there: Buffer,
    target: Arc<Region>,
    shadow: Buffer,
    /// Pages from one whole page of the region on, that are granted.
    mapped: Vec<bool>,
}

fn bench() -> Bench {
    let pair = Pair::new();
    let qps = pair.connected(&Options::new(Service::Rc));
    let (here, there) = (Buffer::new(LENGTH), Buffer::new(LENGTH));
    let (local, target) = (pair.sides[0].register(&here), pair.sides[1].register(&there));
    let (shadow, mapped) = (Buffer::new(LENGTH), vec![false; PAGES]);
    Bench { pair, qps, local, here, there, target, shadow, mapped }
}

impl Bench {
    /// The first whole page, in bytes behind the region's beginning.
    fn first(&self) -> usize {
        (self.target.iova as usize).next_multiple_of(PAGE) - self.target.iova as usize
    }

    fn grant(&mut self, page: usize, count: usize) -> bool {
        let at = self.first() + page * PAGE;
        let grant = Grant {
            rkey: self.target.rkey,
            access: access::REMOTE,
            address: self.target.iova,
            length: LENGTH as u64,
            page_start: self.target.iova + at as u64,
            epoch: self.qps[1].epoch() as u32,
            window: self.shadow.window(at, count * PAGE),
            backing: omniverb_device::granted_peer_pages::Backing::File,
        };
        self.qps[0].granted(self.qps[1].number, grant)
    }

    /// What was asked for since: the first byte, from the first whole page on.
    fn asked(&self) -> Option<usize> {
        let world = &self.pair.sides[0].world;
        world.grants.lock().unwrap().clear();
        let ranges = std::mem::take(&mut *world.ranges.lock().unwrap());
        assert!(ranges.len() <= 1, "one question for an operation at most");
        let (address, _) = *ranges.first()?;
        (address as usize).checked_sub(self.target.iova as usize + self.first())
    }

    /// Whether an access is mapped, as the model has it.
    fn is_mapped(&self, at: usize, length: usize) -> bool {
        let Some(from) = at.checked_sub(self.first()) else { return false };
        let pages = from / PAGE..(from + length).div_ceil(PAGE);
        pages.end <= PAGES && pages.into_iter().all(|page| self.mapped[page])
    }

    /// Writes, then reads back; says which way both went.
    fn write_and_read(&mut self, at: usize, length: usize, seed: u8) -> bool {
        let (old, old_shadow) = (self.there.read(at, length), self.shadow.read(at, length));
        let bytes = vec![seed; length];
        self.here.write(0, &bytes);
        let work = Work::write(1, remote(&self.target, at)).sge(part(&self.local, 0, length / 3));
        post(&self.qps[0], &work.sge(part(&self.local, length / 3, length - length / 3)));
        let at_once = !poll(&self.qps[0].send_cq).is_empty();
        if !at_once {
            self.pair.settle();
            assert_eq!(outcomes(&self.qps[0].send_cq), [(1, status::SUCCESS)]);
        }
        let (there, shadow) = (self.there.read(at, length), self.shadow.read(at, length));
        match at_once {
            true => assert!(shadow == bytes && there == old, "all of it here"),
            false => assert!(there == bytes && shadow == old_shadow, "all of it there"),
        }
        self.here.write(0, &vec![!seed; length]);
        let work = Work::read(2, remote(&self.target, at)).sge(part(&self.local, 0, length));
        post(&self.qps[0], &work);
        self.pair.settle();
        assert_eq!(outcomes(&self.qps[0].send_cq), [(2, status::SUCCESS)]);
        at_once
    }
}

#[test]
fn an_access_that_spans_extents_is_mapped_and_one_that_leaves_them_travels() {
    let mut bench = bench();
    let first = bench.first();
    assert!(!bench.write_and_read(first + 10 * PAGE, 8, 1));
    assert_eq!(bench.asked(), Some(10 * PAGE));
    assert!(bench.grant(8, 4), "around it");
    bench.mapped[8..12].fill(true);
    assert!(bench.write_and_read(first + 8 * PAGE, 4 * PAGE, 2));
    // Much has to move until more is asked for: what is not mapped of it.
    let mut asked = None;
    for _ in 0..200 {
        assert!(!bench.write_and_read(first + 11 * PAGE, 3 * PAGE, 3));
        asked = bench.asked();
        if asked.is_some() {
            break;
        }
    }
    assert_eq!(asked, Some(12 * PAGE));
    assert!(bench.grant(12, 2));
    assert!(bench.write_and_read(first + 11 * PAGE + 7, 2 * PAGE, 4), "over the boundary");
    assert!(!bench.write_and_read(first + 11 * PAGE + 7, 3 * PAGE, 5), "beyond the second");
    bench.qps[1].revoke_grants();
    assert!(!bench.write_and_read(first + 8 * PAGE, 8, 6));
}

#[test]
fn what_does_not_hold_what_was_asked_for_is_not_taken() {
    let mut bench = bench();
    let first = bench.first();
    assert!(!bench.write_and_read(first + 10 * PAGE, 8, 1));
    assert!(!bench.grant(11, 20), "beside it");
    assert!(!bench.grant(8, 4), "that was the answer");
    assert!(!bench.write_and_read(first + 10 * PAGE, 8, 1));
    assert!(!bench.qps[0].drop_oldest_grant());
}

#[test]
fn pages_that_are_not_in_memory_are_the_owners_to_make() {
    let mut bench = bench();
    let first = bench.first();
    bench.write_and_read(first, 8, 1);
    assert!(bench.grant(0, PAGES));
    let hole = bench.shadow.address() as usize + first + 5 * PAGE;
    let world = bench.pair.sides[0].world.clone();
    world.holes.lock().unwrap().insert(hole);
    assert!(bench.write_and_read(first + 4 * PAGE, PAGE, 2));
    assert!(!bench.write_and_read(first + 5 * PAGE + 100, 8, 3), "a hole");
    assert!(!bench.write_and_read(first + 4 * PAGE, 2 * PAGE, 4), "in part");
    world.holes.lock().unwrap().clear();
    assert!(bench.write_and_read(first + 5 * PAGE + 100, 8, 5), "the owner has made it");
    // What was seen is not asked for again, until the process has gone far enough.
    let looks = || world.looks.load(std::sync::atomic::Ordering::Relaxed);
    let before = looks();
    for _ in 0..10_000 {
        let work = Work::write(1, remote(&bench.target, first)).sge(part(&bench.local, 0, 8));
        post(&bench.qps[0], &work);
        assert_eq!(poll(&bench.qps[0].send_cq).len(), 1);
    }
    assert!(looks() - before <= 1, "{} looks", looks() - before);
}

/// Accesses, grants around what was asked for, refusals, and revocations, in any order.
#[test]
fn operations_go_where_the_grants_say() {
    for seed in 1..=150 {
        any_order(seed);
    }
}

fn any_order(seed: u64) {
    let mut bench = bench();
    let mut waiting: Option<usize> = None;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    for step in 0..80 {
        let (at, around) = (below(LENGTH), below(6));
        let length = (1 + below(5 * PAGE)).min(LENGTH - at);
        let (peer, rkey) = (bench.qps[1].number, bench.target.rkey);
        match below(20) {
            0 => {
                bench.qps[1].revoke_grants();
                bench.mapped.fill(false);
                waiting = None;
            }
            1 if waiting.take().is_some() => {
                let denied = if around > 0 { Denial::ForNow } else { Denial::ForGood };
                bench.qps[0].not_granted(peer, rkey, denied);
            }
            2..=7 => {
                let Some(asked) = waiting.take() else { continue };
                // As the daemon does it: it overlaps nothing that there is.
                let page = asked / PAGE;
                let low = page.saturating_sub(around);
                let free = |page: &usize| !bench.mapped[*page];
                let start = (low..=page).rev().take_while(free).last();
                let end = (page..PAGES.min(page + 1 + around)).take_while(free).last();
                let (Some(start), Some(end)) = (start, end) else { continue };
                assert!(bench.grant(start, end + 1 - start), "seed {seed}");
                bench.mapped[start..=end].fill(true);
            }
            _ => {
                let mapped = bench.is_mapped(at, length);
                let went = bench.write_and_read(at, length, step as u8 | 1);
                assert_eq!(went, mapped, "seed {seed}: {length} bytes at {at}");
                // In no whole page: the daemon says so. (A question that precedes the first whole
                // page by less than its head cannot be told from none here.)
                match bench.asked() {
                    Some(asked) if asked < PAGES * PAGE => waiting = Some(asked),
                    Some(_) => bench.qps[0].not_granted(peer, rkey, Denial::ForNow),
                    None if waiting.is_none() => {
                        bench.qps[0].not_granted(peer, rkey, Denial::ForNow)
                    }
                    None => {}
                }
            }
        }
    }
    bench.there.check_guards();
    bench.shadow.check_guards();
}
