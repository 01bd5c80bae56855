//! Waiting for something that another thread brings about.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use omniverb_sys::lock;

/// A waiting thread looks, and looks again whenever something has changed.
#[derive(Default)]
pub(crate) struct ConditionWait {
    changes: Mutex<u64>,
    changed: Condvar,
}

impl ConditionWait {
    /// Something has changed.
    pub(crate) fn notify(&self) {
        *lock(&self.changes) += 1;
        self.changed.notify_all();
    }

    /// What `look` finds; none if it found nothing for so long.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let before = *lock(&self.changes);
            if let Some(found) = look() {
                return Some(found);
            }
            let mut changes = lock(&self.changes);
            while *changes == before {
                let left = match end {
                    Some(end) => end.checked_duration_since(Instant::now())?,
                    None => Duration::from_secs(3600),
                };
                let waited = self.changed.wait_timeout(changes, left);
                changes = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
        }
    }
}

/// As C says how long: milliseconds, negative for ever.
pub(crate) fn limit(milliseconds: i32) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
