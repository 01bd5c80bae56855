//! Whether polls serve the peers, or the progress thread has to.
//!
//! A program that polls without a pause finds what peers send at once, and must not be woken for
//! it. One that polls now and then has its peers wait until it does: they wake the progress thread,
//! as if nobody polled. What counts is how often polls *look*: one that finds a completion in the
//! queue serves nobody.

use crate::limits::{ATTENDED_LOOKS, ATTENDED_TIME};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often polls of a CQ look for news.
#[derive(Default)]
pub(super) struct Attendance {
    looks: AtomicU64,
    /// `looks` when they were counted last.
    counted: AtomicU64,
    given: AtomicBool,
}

impl Attendance {
    /// A poll looks. Only a hint: a lost count does no harm.
    #[inline(always)]
    pub(super) fn look(&self) {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
    }

    /// The time in which they are counted is over.
    pub(super) fn count(&self) {
        let looks = self.looks.load(Ordering::Relaxed);
        let before = self.counted.swap(looks, Ordering::Relaxed);
        self.given.store(looks.wrapping_sub(before) >= ATTENDED_LOOKS, Ordering::Relaxed);
    }

    /// Whether there were many, when they were counted last.
    pub(super) fn is_given(&self) -> bool {
        self.given.load(Ordering::Relaxed)
    }
}

/// When looks are counted, for all CQs.
#[derive(Default)]
pub(crate) struct Counting {
    last: AtomicU64,
}

impl Counting {
    /// Whether they are to be counted `now`, in nanoseconds of the host's clock: turns of the
    /// progress thread may follow each other at once, and in no time nobody looks often.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let due = now.saturating_sub(self.last.load(Ordering::Relaxed)) >= ATTENDED_TIME;
        if due {
            self.last.store(now, Ordering::Relaxed);
        }
        due
    }
}
