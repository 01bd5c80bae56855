//! Tests that granted pages are reached, and no others, and none after a revocation.

use super::*;
use crate::pages::mapped_memory_budget::{Budget, Mappings};
use crate::pages::shared_extent_mappings::Hold;
use omniverb_datapath::testing::{end, end_that_rings};
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_ring::doorbell::{DIED, LIFE_OFFSET, PAGE_BYTES};
use omniverb_sys::mapping_as_ring_window::residency;
use omniverb_sys::{Access, Extent, memfd};

const KEY: Rkey = Rkey(9);
const START: u64 = 0x7000_0000;

struct Case {
    application: Endpoint,
    far: Endpoint,
    /// The application's page of the doorbell.
    bell: Window,
    grants: Grants,
    pages: Window,
    budget: Budget,
}

/// Runs a test for both kinds of extents: a file of its own, and a part of a larger one.
fn both(access: u32, test: impl Fn(Case)) {
    [0, 5 * 4096].into_iter().for_each(|offset| test(case(access, offset)));
}

/// Two pages with something in them, then a hole.
fn case(access: u32, offset: u64) -> Case {
    let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
    let (mut application, bell) = (end(&memory, 0).unwrap(), Window::private(PAGE_BYTES));
    let far = end_that_rings(&memory, 1, bell.clone()).unwrap();
    application.open(0);
    let file = memfd::create("test", 3 * 4096 + 2 * offset).unwrap();
    let map = || Extent::new(&file, offset, 3 * 4096).map(Access::ReadWrite).unwrap();
    let (pages, theirs, mut grants) = (map(), map(), Grants::default());
    UserMemory::lend(&[3; 8192], |bytes| pages.fill(0, bytes));
    assert!(!grants.reach(&far, target(0, 8), access), "not granted yet");
    let wanted = Some((KEY, (START, 8)));
    assert_eq!((grants.take_wanted(), grants.take_wanted()), (wanted, None));
    assert!(!grants.reach(&far, target(0, 8), access) && grants.take_wanted().is_none());
    let budget = Mappings::default().budget();
    let share = budget.share(3 * 4096).unwrap();
    grants.insert(&far, Grant::new(KEY, access, START, Hold::alone(theirs, share)), 0);
    Case { application, far, bell, grants, pages, budget }
}

fn target(offset: i64, length: u64) -> Target {
    Target { key: KEY, address: START.wrapping_add_signed(offset), length }
}

impl Case {
    fn writes(&mut self, offset: i64, length: usize) -> bool {
        let target = target(offset, length as u64);
        self.grants.write(&self.far, (target, 0), &vec![5; length], PacketPosition::Only, 1)
    }

    fn reads(&mut self, offset: i64, length: usize) -> bool {
        let target = target(offset, length as u64);
        self.grants.read(&self.far, (target, 0), &mut vec![0; length], 1)
    }

    fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        UserMemory::lend_mut(&mut byte, |to| self.pages.drain(at, to));
        byte[0]
    }
}

#[test]
fn only_granted_pages_are_reached() {
    both(REMOTE_WRITE, |mut case| {
        assert!(case.writes(0, 4096) && case.writes(4095, 4097));
        assert_eq!((case.byte(0), case.byte(8191)), (5, 5));
        for (offset, length) in [(-1, 1), (-1, 8192), (3 * 4096, 1), (3 * 4096 - 1, 2)] {
            assert!(!case.writes(offset, length), "{offset} {length}");
        }
        assert!(!case.grants.reach(&case.far, target(0, u64::MAX), REMOTE_WRITE));
        assert!(!case.reads(0, 8), "no right to read");
        assert!(
            !case.grants.write(&case.far, (target(0, 8), 4), &[1; 8], PacketPosition::Only, 1),
            "too long"
        );
        let other = Target { key: Rkey(8), ..target(0, 8) };
        assert!(
            !case.grants.write(&case.far, (other, 0), &[1; 8], PacketPosition::Only, 1),
            "another key"
        );
        case.application.close();
        assert!(!case.writes(0, 8), "the queue pair is gone");
    });
}

/// Requests that it had sent before leave nevertheless.
#[test]
fn pages_of_the_dead_are_left_alone() {
    both(REMOTE_WRITE | REMOTE_READ, |mut case| {
        case.bell.store(LIFE_OFFSET, DIED, omniverb_ring::shared_atomics::Ordering::Relaxed);
        assert!(!case.writes(0, 8) && !case.reads(0, 8));
        assert_eq!(case.byte(0), 3);
        let mut out = [0; 8];
        let pieces = [&mut out[..]].into_iter();
        assert!(case.grants.gather(&case.far, (target(0, 8), 0), pieces, 8, 1));
        assert_eq!(out, [3; 8]);
    });
}

#[test]
fn holes_are_left_to_the_application() {
    both(REMOTE_WRITE | REMOTE_READ, |mut case| {
        assert!(case.reads(4096, 4096) && !case.reads(8192, 1) && !case.reads(8191, 2));
        assert!(!case.writes(8192, 1) && !case.writes(8191, 2));
        let mut there = [1];
        residency(&case.pages, 8192, &mut there).unwrap();
        assert_eq!(there[0] & 1, 0, "nothing was put there");
        UserMemory::lend(&[1], |byte| case.pages.fill(8192, byte));
        case.grants.list[0].look_again(); // a millisecond later
        assert!(case.writes(8191, 2));
    });
}

#[test]
fn a_revocation_voids_and_lets_ask_anew() {
    both(REMOTE_WRITE, |mut case| {
        assert!(case.writes(0, 8));
        case.application.advance_epoch();
        assert!(!case.writes(0, 8), "void");
        assert!(!case.grants.reach(&case.far, target(0, 8), REMOTE_WRITE));
        let share = case.budget.share(3 * 4096).unwrap();
        let grant = Grant::new(KEY, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
        case.grants.insert(&case.far, grant, 1);
        let Case { application, far, grants, .. } = &mut case;
        let place = (target(0, 8), 0);
        assert!(grants.access(far, place, REMOTE_WRITE, 8, 1, |_, _| {}));
        let meanwhile = |_: &Window, _| application.advance_epoch();
        assert!(!grants.access(far, place, REMOTE_WRITE, 8, 1, meanwhile), "perhaps too late");
        assert!(!case.writes(0, 8), "void");
        assert_eq!(case.budget.mappings(), 0, "given back");
        case.grants.take_wanted();
        assert!(!case.grants.reach(&case.far, target(0, 8), REMOTE_WRITE));
        assert_eq!(case.grants.take_wanted(), Some((KEY, (START, 8))));
        // A grant from before everything was taken back does not count, even if it was requested
        // again since; nor does one that was never requested.
        let share = case.budget.share(3 * 4096).unwrap();
        let stale = Grant::new(KEY, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
        case.grants.insert(&case.far, stale, 0);
        assert!(!case.writes(0, 8), "the pages may have gone back since");
        case.application.advance_epoch();
        let share = case.budget.share(3 * 4096).unwrap();
        let late = Grant::new(KEY, REMOTE_WRITE, START, Hold::alone(case.pages.clone(), share));
        case.grants.insert(&case.far, late, 2);
        assert!(!case.writes(0, 8));
    });
}
