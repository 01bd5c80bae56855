//! When a daemon that nobody uses ends.

use std::time::Duration;

/// How long nobody has been connected, and how long that may be.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Nanoseconds; `None`: for ever.
    patience: Option<u64>,
    /// When somebody was connected last.
    since: u64,
}

impl Idle {
    pub(crate) fn new(patience: Option<Duration>, now: u64) -> Idle {
        let patience = patience.and_then(|time| u64::try_from(time.as_nanos()).ok());
        Idle { patience, since: now }
    }

    /// When the daemon ends, if nobody comes and nobody is there.
    pub(crate) fn deadline(&self) -> Option<u64> {
        Some(self.since.saturating_add(self.patience?))
    }

    /// Somebody is connected.
    pub(crate) fn somebody_is_there(&mut self, now: u64) {
        self.since = now;
    }
}
