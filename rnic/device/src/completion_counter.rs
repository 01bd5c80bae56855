//! Counts requests of some queue pairs that have succeeded and failed, or the bytes they moved. In:
//! what queue pairs complete, whether or not that gives an entry in a CQ. Out: two numbers.
//!
//! Ordering (SYNC: counted): a queue pair adds under its own lock, several of them at once, after
//! the data are in place; each addition releases, and a reader of the sum acquires. Additions are
//! read-modify-write operations, so a sum carries on what every one before it released: a reader
//! that sees `n` requests done sees what all of them brought. A program that sets a number while
//! requests complete may undo additions, as with any device.

use crate::spin_lock::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// What a success adds to a counter. A failure always adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedUnit {
    /// One, whatever its length.
    Requests,
    /// The bytes of the message, as its completion tells them.
    Bytes,
}

/// The largest number of a counter; the one after it is 0.
pub const COUNTER_MAX: u64 = u64::MAX;

/// A queue pair that counts.
pub(crate) trait CountedQueue: Send + Sync {
    /// Takes in what has come. If another thread is at it, that one does.
    fn look(&self);
}

/// A completion counter.
pub struct Counter {
    counts: CountedUnit,
    successes: AtomicU64,
    failures: AtomicU64,
    /// Queue pairs that count here.
    attached: Mutex<Vec<Weak<dyn CountedQueue>>>,
}

/// One of the two numbers of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterValue {
    /// Requests that succeeded, or their bytes: see [`CountedUnit`].
    Successes,
    /// Requests that failed or were flushed.
    Failures,
}

impl Counter {
    /// One with which nothing has been counted.
    #[must_use]
    pub fn new(counts: CountedUnit) -> Arc<Counter> {
        let (successes, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Counter { counts, successes, failures, attached: Mutex::default() })
    }

    fn cell(&self, tally: CounterValue) -> &AtomicU64 {
        match tally {
            CounterValue::Successes => &self.successes,
            CounterValue::Failures => &self.failures,
        }
    }

    /// A number as it is now. Looks for news of its queue pairs first, as a poll of their CQs
    /// would: a program that reads counters need not poll.
    pub fn read(&self, tally: CounterValue) -> u64 {
        // Without the lock: what is found may end a queue pair, which is taken off the list then.
        let attached = lock(&self.attached).clone();
        for one in attached.iter().filter_map(Weak::upgrade) {
            one.look();
        }
        self.cell(tally).load(Ordering::Acquire) // SYNC: counted
    }

    /// Sets a number.
    pub fn set(&self, tally: CounterValue, value: u64) {
        self.cell(tally).store(value, Ordering::Release); // SYNC: counted
    }

    /// Adds to a number, which goes on at 0 behind [`COUNTER_MAX`].
    pub fn add(&self, tally: CounterValue, amount: u64) {
        self.cell(tally).fetch_add(amount, Ordering::AcqRel); // SYNC: counted
    }

    /// A request is done that moved so many bytes; `None`: it has failed.
    pub(crate) fn count(&self, moved: Option<u64>) {
        match (moved, self.counts) {
            (None, _) => self.add(CounterValue::Failures, 1),
            (Some(_), CountedUnit::Requests) => self.add(CounterValue::Successes, 1),
            (Some(bytes), CountedUnit::Bytes) => self.add(CounterValue::Successes, bytes),
        }
    }

    /// Whether queue pairs count here.
    pub fn is_attached(&self) -> bool {
        !lock(&self.attached).is_empty()
    }

    /// A queue pair counts here from now on.
    pub(crate) fn attach(&self, one: Weak<dyn CountedQueue>) {
        let mut attached = lock(&self.attached);
        if !attached.iter().any(|other| other.ptr_eq(&one)) {
            attached.push(one);
        }
    }

    /// One does no longer.
    pub(crate) fn detach<C: CountedQueue + 'static>(&self, one: &Weak<C>) {
        lock(&self.attached).retain(|other| !std::ptr::addr_eq(other.as_ptr(), one.as_ptr()));
    }
}
