//! Stores the limit of one node of a tree: none, its own, or a part of a shared one.

use crate::limiter::{Limit, Limiter};
use crate::shared_limiter::Lease;

/// Where a node's limit is.
#[derive(Debug)]
pub(crate) enum Source {
    /// Nothing limits it.
    Free,
    Own(Limiter),
    Shared(Lease),
}

impl Source {
    pub(crate) fn new(limit: Option<Limit>, now: u64) -> Source {
        limit.map_or(Source::Free, |limit| Source::Own(Limiter::new(limit, now)))
    }

    /// Forgets what a silent sender has earned beyond its burst and so many nanoseconds' worth; or
    /// one that has waited, beyond what waiting may take. Takes a part of a shared limit if it has
    /// none.
    pub(crate) fn prepare(&mut self, credit: Option<u64>, now: u64) {
        match self {
            Source::Free => {}
            Source::Own(limiter) => match credit {
                Some(credit) => limiter.keep_credit(credit, now),
                None => limiter.keep_while_waiting(now),
            },
            Source::Shared(lease) => lease.renew(now),
        }
    }

    pub(crate) fn is_ready(&self, now: u64) -> bool {
        match self {
            Source::Free => true,
            Source::Own(limiter) => limiter.is_ready(now),
            Source::Shared(lease) => lease.is_ready(now),
        }
    }

    pub(crate) fn ready_at(&self) -> u64 {
        match self {
            Source::Free => 0,
            Source::Own(limiter) => limiter.ready_at(),
            Source::Shared(lease) => lease.ready_at(),
        }
    }

    pub(crate) fn take(&mut self, bytes: u64, now: u64) {
        match self {
            Source::Free => {}
            Source::Own(limiter) => {
                limiter.keep_while_waiting(now);
                limiter.take(bytes);
            }
            Source::Shared(lease) => lease.take(bytes),
        }
    }

    pub(crate) fn limit(&self) -> Option<Limit> {
        match self {
            Source::Free => None,
            Source::Own(limiter) => Some(limiter.limit()),
            Source::Shared(lease) => Some(lease.limit()),
        }
    }
}
