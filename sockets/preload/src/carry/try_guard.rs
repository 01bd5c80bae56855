//! Guards a link for one short call, if its sender's or reader's lock is free
//! ([`omniverb_formats::try_guard`]).
//!
//! To hold the link ([`links::enter`]) costs two locked instructions more.
//!
//! Mostly such a call only touches memory. But it may be interrupted by a handler that does not
//! come back, or find that the other end has just gone to sleep, and have the kernel send what it
//! has put there. So a thread that ends a link waits for those calls for a moment, and otherwise
//! leaves its slot as it is until later ([`Link::is_in_short_call`]).

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;

use omniverb_formats::private_link_slot::{Field, LinkSlot};
use omniverb_formats::try_guard;

use super::links::{self, Link};
use crate::vfork_check;

/// A link that has memory, in hand until this is dropped.
pub(super) struct TryGuard {
    link: Link,
    lock: &'static AtomicU64,
}

impl TryGuard {
    pub(super) fn link(&self) -> Link {
        self.link
    }
}

impl Drop for TryGuard {
    #[inline(always)]
    fn drop(&mut self) {
        try_guard::unlock(self.lock);
    }
}

/// The link of a descriptor, if it has one with memory, and the lock at it is free.
#[inline(always)]
pub(super) fn enter(
    fd: c_int,
    lock: impl FnOnce(&'static LinkSlot) -> &'static Field,
) -> Option<TryGuard> {
    let (link, is_its) = links::find(fd)?;
    let lock = lock(link.slot());
    let is_its = || is_its() && link.identity.memory.get() != 0;
    // One that is made gives the lock back.
    try_guard::try_lock(lock, vfork_check::this_thread(), is_its).then(|| TryGuard { link, lock })
}
