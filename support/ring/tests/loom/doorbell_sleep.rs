//! Going to sleep: the owner says `want_kick` and looks once more; the ringer publishes and then
//! looks whether to kick. Neither has a full fence, so both looks may miss (the first test shows
//! that they do). The owner therefore looks again a millisecond later.
//!
//! **What a millisecond is here.** Real time gives one thing the memory model does not: a store
//! becomes visible to other cores long before a millisecond is over. So whatever the ringer did
//! before the owner's second look is visible to that look, and whatever it does afterwards sees
//! `want_kick`. The model says it with an edge between the threads, put at each of the three
//! places where the millisecond can end, seen from the ringer: before it publishes, between
//! publishing and looking, and when it is done.

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use omniverb_ring::DoorbellPage;
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::loom_memory::Words;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Ends {
    BeforePublishing,
    BeforeLooking,
    WhenDone,
}

struct Shared {
    page: DoorbellPage<Words>,
    /// The header of a record.
    record: AtomicU64,
    /// What wakes the owner.
    kicked: AtomicBool,
    /// The millisecond is over.
    over: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            page: DoorbellPage::new(Words::at(PAGE_BYTES, [0])),
            record: AtomicU64::new(0),
            kicked: AtomicBool::new(false),
            over: AtomicBool::new(false),
        })
    }

    fn wait_until_over(&self) {
        while !self.over.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn ring(&self, ends: Ends) {
        if ends == Ends::BeforePublishing {
            self.wait_until_over();
        }
        self.record.store(1, Ordering::Release);
        if ends == Ends::BeforeLooking {
            self.wait_until_over();
        }
        if self.page.take_kick() {
            self.kicked.store(true, Ordering::Release);
        }
    }

    fn look(&self) -> bool {
        self.record.load(Ordering::Acquire) == 1
    }
}

/// A ringer beside an owner that looks in this way once it wants to be kicked, and then sleeps.
fn check_looks(look: fn(&Shared) -> bool) {
    loom::model(move || {
        let shared = Shared::new();
        let ringer = {
            let shared = shared.clone();
            thread::spawn(move || shared.ring(Ends::WhenDone))
        };
        shared.page.want_kick();
        let seen = look(&shared);
        ringer.join().unwrap();
        assert!(seen || shared.kicked.load(Ordering::Acquire), "lost wake-up");
    });
}

/// Without the second look there is a run in which the record is there, no kick comes, and the
/// owner sleeps. (If the ringer ever gets a fence this test fails: then drop the second look.)
#[test]
#[should_panic(expected = "lost wake-up")]
fn one_look_is_not_enough() {
    check_looks(Shared::look);
}

/// Nor are two that follow each other at once: as many looks as there are before the ringer's store
/// is visible are one. The second is later only by the clock.
#[test]
#[should_panic(expected = "lost wake-up")]
fn a_second_look_at_once_is_no_later_look() {
    check_looks(|shared| shared.look() | shared.look());
}

fn check(ends: Ends) {
    loom::model(move || {
        let shared = Shared::new();
        let mut ringer = {
            let shared = shared.clone();
            Some(thread::spawn(move || shared.ring(ends)))
        };
        shared.page.want_kick();
        let mut seen = shared.look();
        shared.over.store(true, Ordering::Release);
        if ends == Ends::WhenDone {
            ringer.take().into_iter().for_each(|ringer| ringer.join().unwrap());
        }
        seen |= shared.look();
        ringer.into_iter().for_each(|ringer| ringer.join().unwrap());
        assert!(seen || shared.kicked.load(Ordering::Acquire), "lost wake-up");
    });
}

#[test]
fn the_ringer_comes_after_the_second_look() {
    check(Ends::BeforePublishing);
}

#[test]
fn the_second_look_falls_between_publishing_and_looking() {
    check(Ends::BeforeLooking);
}

#[test]
fn the_ringer_is_done_before_the_second_look() {
    check(Ends::WhenDone);
}

/// A kick is taken once, by one ringer: the owner's eventfd is not written for nothing.
#[test]
fn one_kick_a_sleep() {
    loom::model(|| {
        let page = Arc::new(DoorbellPage::new(Words::at(PAGE_BYTES, [0])));
        page.want_kick();
        let ringers = [0, 1].map(|_| {
            let page = page.clone();
            thread::spawn(move || page.take_kick())
        });
        let kicks = ringers.into_iter().map(|ringer| ringer.join().unwrap());
        assert_eq!(kicks.filter(|kicked| *kicked).count(), 1);
        assert!(!page.wants_kick());
    });
}
