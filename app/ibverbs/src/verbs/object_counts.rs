//! Counts objects: those of a context, against its limits, and those that use another object.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use omniverb_sys::refusal_log;
use omniverb_terms::Errno;

use super::object_limits::{AH_MAX, COUNTER_COUNT_MAX, CQ_MAX, PD_MAX, SRQ_MAX};

/// Objects of a family of contexts, against its limits.
#[derive(Default)]
pub(super) struct ObjectCounts {
    pub(super) pds: ObjectCount<PD_MAX>,
    pub(super) cqs: ObjectCount<CQ_MAX>,
    pub(super) srqs: ObjectCount<SRQ_MAX>,
    pub(super) ahs: ObjectCount<AH_MAX>,
    pub(super) counters: ObjectCount<COUNTER_COUNT_MAX>,
    device_memory: AtomicU64,
}

impl ObjectCounts {
    /// Takes so many bytes of device memory, of which there are `most`. Says whether they are left.
    pub(super) fn take_device_memory(&self, bytes: u64, most: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
        self.device_memory.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Gives them back.
    pub(super) fn give_device_memory(&self, bytes: u64) {
        self.device_memory.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// How many objects of a kind there are: `MOST` at most.
#[derive(Default)]
pub(super) struct ObjectCount<const MOST: u32> {
    count: AtomicU32,
    /// That there may be no more was said.
    said: AtomicBool,
}

impl<const MOST: u32> ObjectCount<MOST> {
    /// Counts one more object, for this verb.
    ///
    /// # Errors
    /// `ENOMEM`: there may not be one more.
    pub(super) fn one_more(&self, verb: &str) -> Result<(), Errno> {
        let more = |count| (count < MOST).then_some(count + 1);
        let counted = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        counted.map(drop).map_err(|_| {
            let why = format_args!("{verb}: a device has {MOST} of these, and all are there");
            refusal_log::say(&self.said, Errno::ENOMEM, why)
        })
    }

    /// Counts one object less.
    pub(super) fn one_less(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How many objects are made of another.
#[derive(Default)]
pub(super) struct UserCount(AtomicU32);

impl UserCount {
    /// Whether there are some.
    pub(super) fn are_some(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// One more is.
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One is gone.
    pub(super) fn one_less(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
