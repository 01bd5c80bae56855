//! Decides when an unused daemon ends.
//!
//! The broker knows its own clients only. So before the daemon ends it asks the broker for how long
//! it has had none.

use std::time::Duration;

/// No daemon ends sooner: the broker is asked no more often than that.
const LEAST: Duration = Duration::from_millis(100);

/// How long no client has been connected, and how long that may last.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Nanoseconds; `None`: for ever.
    patience: Option<u64>,
    /// When a client was connected last.
    since: u64,
    /// The state of the broker.
    broker: Broker,
}

/// Whether the broker has clients.
#[derive(Debug, PartialEq, Eq)]
enum Broker {
    Unknown,
    /// It was asked, at that time.
    Asked(u64),
    /// None, since [`Idle::since`] at least.
    Alone,
}

impl Idle {
    pub(crate) fn new(patience: Option<Duration>, now: u64) -> Idle {
        let patience = patience.map(|time| time.max(LEAST));
        let patience = patience.and_then(|time| u64::try_from(time.as_nanos()).ok());
        Idle { patience, since: now, broker: Broker::Unknown }
    }

    /// When the daemon ends, if no client comes and none is connected. If the broker does not
    /// answer: when it is asked again.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let since = match self.broker {
            Broker::Asked(at) => at,
            Broker::Unknown | Broker::Alone => self.since,
        };
        Some(since.saturating_add(self.patience?))
    }

    /// A client is connected, or there is a new broker, without clients so far.
    pub(crate) fn client_connected(&mut self, now: u64) {
        (self.since, self.broker) = (now, Broker::Unknown);
    }

    /// The broker is to be asked now. `false`: it was, and has answered.
    pub(crate) fn asks(&mut self, now: u64) -> bool {
        let is_alone = self.broker == Broker::Alone;
        if !is_alone {
            self.broker = Broker::Asked(now);
        }
        !is_alone
    }

    /// The broker's answer: for how many nanoseconds it has had no client; `None`: it has one.
    pub(crate) fn answered(&mut self, alone: Option<u64>, now: u64) {
        if !matches!(self.broker, Broker::Asked(_)) {
            return;
        }
        let since = now.saturating_sub(alone.unwrap_or(0));
        let is_longer = alone.is_some() && since <= self.since;
        self.since = self.since.max(since);
        self.broker = if is_longer { Broker::Alone } else { Broker::Unknown };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_daemon_is_idle_when_the_broker_is_too() {
        let mut idle = Idle::new(Some(Duration::from_secs(10)), 5 * SECOND);
        assert_eq!(idle.deadline(), Some(15 * SECOND));
        assert!(idle.asks(15 * SECOND));
        assert_eq!(idle.deadline(), Some(25 * SECOND), "it has not answered");
        // The broker had a client until five seconds ago.
        idle.answered(Some(5 * SECOND), 15 * SECOND);
        assert_eq!(idle.deadline(), Some(20 * SECOND));
        assert!(idle.asks(20 * SECOND));
        idle.answered(None, 20 * SECOND);
        assert_eq!(idle.deadline(), Some(30 * SECOND), "a client is there");
        assert!(idle.asks(30 * SECOND));
        idle.answered(Some(u64::MAX), 30 * SECOND);
        assert!(!idle.asks(30 * SECOND) && idle.deadline() == Some(30 * SECOND), "that is all");
        // A client at the last moment counts, and so does one that may come to a new broker.
        idle.client_connected(31 * SECOND);
        assert!(idle.asks(41 * SECOND));
        idle.client_connected(42 * SECOND);
        idle.answered(Some(u64::MAX), 50 * SECOND);
        assert_eq!(idle.deadline(), Some(52 * SECOND), "of a question of long ago");
        assert_eq!(Idle::new(None, 0).deadline(), None);
    }

    #[test]
    fn no_daemon_asks_without_end() {
        let mut idle = Idle::new(Some(Duration::ZERO), 0);
        assert!(idle.deadline().is_some_and(|at| at > 0) && idle.asks(SECOND));
        idle.answered(None, SECOND);
        assert!(idle.deadline().is_some_and(|at| at > SECOND));
    }
}
