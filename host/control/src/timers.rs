//! What the server itself does at a time; tables, probes and helpers have deadlines of their own.

use omniverb_sys::clock;
use omniverb_tenancy::{SessionId, VnicId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Something of the server's own that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A client should have said hello by now.
    Hello(SessionId),
    /// What waits to be sent to a client is tried again.
    Flush(SessionId),
    /// Connections are accepted again.
    Accept,
    /// A port that was in use is tried again.
    Port(VnicId),
    /// Operators' connections are.
    AcceptOperators,
    /// It is said how many lines of the audit were left out.
    Audit,
}

/// All of that, by when it is due.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(u64, Timer)>);

impl Timers {
    pub(crate) fn set(&mut self, after: Duration, timer: Timer) {
        let at = clock::now() + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX / 2);
        self.0.insert((at, timer));
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.0.first().map(|(at, _)| *at)
    }

    /// The next that is due now.
    pub(crate) fn due(&mut self, now: u64) -> Option<Timer> {
        let (at, timer) = self.0.first().copied().filter(|(at, _)| *at <= now)?;
        self.0.remove(&(at, timer));
        Some(timer)
    }
}
