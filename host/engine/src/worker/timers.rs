//! Orders the deadlines of links and vNICs.

use omniverb_terms::VnicId;
use std::collections::BTreeSet;

/// The owner of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The link at this index.
    Link(usize),
    /// A vNIC for which delayed packets arrive.
    Faults(VnicId),
    /// A vNIC that keeps early packets.
    Early(VnicId),
    /// A vNIC whose packets are encrypted, and that waits for an answer or changes keys.
    Tunnel(VnicId),
}

/// All of them, soonest first.
#[derive(Default)]
pub(crate) struct Timers(BTreeSet<(u64, Due)>);

/// When an alarm goes off, if it is set: the same time as in [`Timers`].
#[derive(Default)]
pub(crate) struct Alarm(Option<u64>);

impl Alarm {
    /// Has it go off at a time. If that is later than before it is not moved: it goes off too early
    /// and is set again, which is cheaper than moving it with every packet. Nor is it taken back
    /// if there is no such time any more.
    pub(crate) fn set(&mut self, timers: &mut Timers, owner: Due, at: Option<u64>) {
        let Some(at) = at else { return };
        if self.0.is_some_and(|old| old <= at) {
            return;
        }
        self.cancel(timers, owner);
        timers.0.insert((at, owner));
        self.0 = Some(at);
    }

    /// Takes it back.
    pub(crate) fn cancel(&mut self, timers: &mut Timers, owner: Due) {
        if let Some(old) = self.0.take() {
            timers.0.remove(&(old, owner));
        }
    }

    /// It went off: [`Timers::next`] said so.
    pub(crate) fn went_off(&mut self) {
        self.0 = None;
    }
}

impl Timers {
    /// The next due owner; its alarm is to know it.
    pub(crate) fn next(&mut self, now: u64) -> Option<Due> {
        let (at, owner) = *self.0.first()?;
        (at <= now).then(|| {
            self.0.remove(&(at, owner));
            owner
        })
    }

    /// When the first alarm goes off.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_moved_forward_only_and_leaves_nothing_behind() {
        let (mut timers, mut alarm, owner) = (Timers::default(), Alarm::default(), Due::Link(3));
        for (at, first) in [(Some(20), 20), (Some(30), 20), (None, 20), (Some(10), 10)] {
            alarm.set(&mut timers, owner, at);
            assert_eq!((timers.first(), timers.0.len()), (Some(first), 1));
        }
        assert_eq!([timers.next(9), timers.next(10), timers.next(30)], [None, Some(owner), None]);
        alarm.went_off();
        alarm.set(&mut timers, owner, Some(40));
        alarm.cancel(&mut timers, owner);
        alarm.cancel(&mut timers, owner);
        assert_eq!(timers.first(), None);
    }
}
