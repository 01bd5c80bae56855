//! Keeps timers: each event has one time at most.
//!
//! Setting an event again moves it, and removing its cause removes it, so nothing is due without a
//! cause.

use crate::network::route_destination_cache::Question;
use crate::row_keys::{RemotePeer, SessionId};
use omniverb_terms::Qpn;
use std::collections::{BTreeMap, BTreeSet};

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The owner of an MR has not answered the question of this token.
    Grant(u64),
    /// A wish's network is asked again, or a resumed one is given up.
    Wish { qpn: Qpn, peer: Qpn },
    /// The network is asked whether it still lets links be.
    Consent(Question),
    /// The addresses of a relation's ends are read again.
    RelationAddresses(u64),
    /// A message of a connection's is repeated, or it is over: of this session's, by its number.
    Connection(SessionId, u32),
    /// Requests for connections that came early were kept long enough.
    EarlyRequests,
    /// A last word of an id that is gone is said again.
    DreqRetransmissions,
    /// A peer has not answered the notice of a link's port.
    PortNotice { qpn: Qpn, peer: RemotePeer },
    /// A process has not given a link that it carries.
    GiveLink { qpn: Qpn, peer: RemotePeer },
    /// A call that was over a rate is handled.
    PacedCall(SessionId),
}

/// All timers that are set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    times: BTreeMap<Timer, u64>,
    order: BTreeSet<(u64, Timer)>,
}

impl Timers {
    pub(crate) fn is_empty(&self) -> bool {
        self.times.is_empty() && self.order.is_empty()
    }

    /// It happens at this time, and at no other.
    pub(crate) fn set(&mut self, timer: Timer, at: u64) {
        self.clear(timer);
        self.times.insert(timer, at);
        self.order.insert((at, timer));
    }

    /// It is not to be due, if it was set.
    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.times.remove(&timer) {
            self.order.remove(&(at, timer));
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.order.first().map(|(at, _)| *at)
    }

    /// One that is due, the oldest first. It is not set any more.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<Timer> {
        let (at, timer) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_set_again_is_due_once_at_the_later_time() {
        let mut timers = Timers::default();
        timers.set(Timer::Grant(1), 10);
        timers.set(Timer::Grant(2), 20);
        timers.set(Timer::Grant(1), 30);
        assert_eq!(timers.next(), Some(20));
        assert_eq!(timers.take_due(19), None);
        assert_eq!(timers.take_due(100), Some(Timer::Grant(2)));
        assert_eq!(timers.take_due(100), Some(Timer::Grant(1)));
        assert_eq!((timers.take_due(100), timers.is_empty()), (None, true));
    }

    #[test]
    fn a_cleared_timer_is_never_due() {
        let mut timers = Timers::default();
        timers.set(Timer::Wish { qpn: Qpn(2), peer: Qpn(3) }, 10);
        timers.clear(Timer::Wish { qpn: Qpn(3), peer: Qpn(2) });
        assert_eq!(timers.next(), Some(10));
        timers.clear(Timer::Wish { qpn: Qpn(2), peer: Qpn(3) });
        assert!(timers.take_due(u64::MAX).is_none() && timers.is_empty());
    }
}
