//! Shares a limit among several packet threads, each with a tree of its own.
//!
//! A thread takes some bytes of it ahead, about a packet's, with the time from which it may send
//! them. So waiting threads get their parts in the order in which they asked, whichever looks first
//! when the time has come, and the lock is not taken for every packet.

use crate::limiter::{Limit, Limiter};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a thread takes ahead.
const LEASE: u64 = 4096;

/// One limiter for all that have a copy of it.
#[derive(Clone, Debug)]
pub struct SharedLimiter(Arc<Mutex<Limiter>>);

impl SharedLimiter {
    /// One whose senders were silent until now.
    #[must_use]
    pub fn new(limit: Limit, now: u64) -> SharedLimiter {
        SharedLimiter(Arc::new(Mutex::new(Limiter::new(limit, now))))
    }

    /// Another limit for all from now on. Each tree has to be told that it is
    /// ([`crate::Pacer::set_shared_limit`]), or what waits there waits as long as before.
    pub fn change(&self, limit: Limit, now: u64) {
        self.with(|limiter| limiter.change(limit, now));
    }

    fn with<T>(&self, work: impl FnOnce(&mut Limiter) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A thread's part of a shared limit.
#[derive(Debug)]
pub(crate) struct Lease {
    limiter: SharedLimiter,
    /// Bytes that were taken ahead and not sent; below 0: sent and not yet taken.
    left: i64,
    /// When they may be sent.
    from: u64,
}

impl Lease {
    /// Nothing is taken yet.
    pub(crate) fn new(limiter: SharedLimiter) -> Lease {
        Lease { limiter, left: 0, from: 0 }
    }

    /// Takes over the bytes that another has sent and not yet taken.
    pub(crate) fn owes_like(&mut self, old: &Lease) {
        self.left = old.left.min(0);
    }

    /// Takes some more if there are none left.
    pub(crate) fn renew(&mut self, now: u64) {
        if self.left > 0 {
            return;
        }
        let bytes = LEASE.saturating_add(self.left.unsigned_abs());
        self.from = self.limiter.with(|limiter| {
            limiter.keep_while_waiting(now);
            let from = limiter.ready_at();
            limiter.take(bytes);
            from
        });
        self.left = LEASE.cast_signed();
    }

    pub(crate) fn is_ready(&self, now: u64) -> bool {
        self.left > 0 && self.from <= now
    }

    /// When more may be sent, as far as is known.
    pub(crate) fn ready_at(&self) -> u64 {
        if self.left > 0 { self.from } else { self.limiter.with(|limiter| limiter.ready_at()) }
    }

    /// So many bytes were sent.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub_unsigned(bytes);
    }

    pub(crate) fn limit(&self) -> Limit {
        self.limiter.with(|limiter| limiter.limit())
    }
}
