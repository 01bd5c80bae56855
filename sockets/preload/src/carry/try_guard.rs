//! Guards a link for one short call, if its sender's or reader's lock is free
//! ([`omniverb_formats::brief`]).
//!
//! To hold the link ([`links::enter`]) costs two locked instructions more.
//!
//! Mostly such a call only touches memory. But it may be interrupted by a handler that does not
//! come back, or find that the other end has just gone to sleep, and have the kernel send what it
//! has put there. So who ends a link waits for those calls for a moment, and otherwise leaves its
//! slot as it is until later ([`Link::is_in_short_call`]).

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;

use omniverb_formats::brief;

use super::links::{self, Link, Word};
use crate::memory_owner;

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
        brief::leave(self.turn);
    }
}

/// The link of a descriptor, if it has one with memory, and the turn at it is free.
#[inline(always)]
pub(super) fn enter(fd: c_int, turn: Word) -> Option<Brief> {
    let (link, is_its) = links::find(fd)?;
    let turn = link.word(turn);
    let is_its = || is_its() && link.get(Word::Memory) != 0;
    // One that is made gives the turn back.
    brief::enter(turn, memory_owner::this_thread(), is_its).then(|| Brief { link, turn })
}
