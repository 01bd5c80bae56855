//! A link in hand for one short call, that only touches memory: by the turn of its one sender, or its
//! one reader. To be held ([`links::enter`]) costs two locked instructions more.
//!
//! Who has come in finds whatever was there when he had his turn, until he gives that back: who ends
//! a link waits for that, or leaves its row as it is. So does who closes a number: he sees that
//! somebody is there.
//!
//! **Ordering.** Who comes in takes the turn and then looks whether the number is still for the row;
//! who ends it has taken the number away before he looks at the turns. All four are sequentially
//! consistent, so one of the two finds what the other did. Who finds the number to be for something
//! else has touched nothing but the turn, of a row that may be another link's by now: so turns are
//! never reset with a row, and to give one back is the affair of who has taken it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::sched_yield;

use super::links::{self, Link, Word};
use crate::place;

/// How often it is looked whether calls are over, and how many of these times without giving the
/// processor away.
const TRIES: u32 = 200;
const TRIES_AWAKE: u32 = 100;

/// A link that has memory, in hand until this is dropped.
pub(super) struct Brief {
    link: Link,
    turn: &'static AtomicU64,
}

impl Brief {
    pub(super) fn link(&self) -> Link {
        self.link
    }
}

impl Drop for Brief {
    #[inline(always)]
    fn drop(&mut self) {
        self.turn.store(0, Ordering::Release);
    }
}

/// The link of a number, if it has one with memory, and the turn at it is free.
#[inline(always)]
pub(super) fn enter(number: c_int, turn: Word) -> Option<Brief> {
    if !links::is_on() {
        return None;
    }
    let word = links::word_of(number)?;
    let found = word.load(Ordering::Acquire);
    if found == 0 || !place::is_ours() {
        return None;
    }
    let link = Link::at((found - 1) as u32)?;
    let (turn, me) = (link.word(turn), place::this_thread());
    turn.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).ok()?;
    let brief = Brief { link, turn };
    let is_its = word.load(Ordering::SeqCst) == found && link.get(Word::Memory) != 0;
    is_its.then_some(brief)
}

fn turns(link: Link) -> [u64; 2] {
    [Word::Writer, Word::Reader].map(|turn| link.word(turn).load(Ordering::SeqCst))
}

/// Such a call is under way.
pub(super) fn is_any(link: Link) -> bool {
    turns(link) != [0; 2]
}

/// They are over, or will be before long, which is waited for. Nobody else comes: no number is for
/// this link any more. `false`: this thread is in the middle of one itself, or they take too long.
pub(super) fn are_over(link: Link) -> bool {
    for tried in 0..TRIES {
        let turns = turns(link);
        if turns == [0; 2] {
            return true;
        }
        if turns.contains(&place::this_thread()) {
            return false;
        }
        if tried < TRIES_AWAKE { core::hint::spin_loop() } else { sched_yield() }
    }
    false
}
