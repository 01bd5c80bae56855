//! Moments at which links and vNICs want to be looked at.

use crate::identity::VnicId;
use std::collections::BTreeSet;

/// Who.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The link at this index.
    Link(usize),
    /// A vNIC whose limit lets it send again.
    Vnic(VnicId),
    /// A vNIC for which delayed packets arrive.
    Faults(VnicId),
}

/// All of them, soonest first.
#[derive(Default)]
pub(crate) struct Timers(BTreeSet<(u64, Due)>);

impl Timers {
    /// Moves somebody's alarm from one time to another, and says when it is now. One that is later
    /// than the old is not moved: it goes off too early and is set again, which is cheaper than
    /// moving it with every packet.
    pub(crate) fn arm(&mut self, who: Due, old: Option<u64>, new: Option<u64>) -> Option<u64> {
        match (old, new) {
            (Some(old), Some(new)) if old <= new => Some(old),
            (Some(old), None) => Some(old),
            (old, Some(new)) => {
                if let Some(old) = old {
                    self.0.remove(&(old, who));
                }
                self.0.insert((new, who));
                Some(new)
            }
            (None, None) => None,
        }
    }

    /// Takes an alarm back.
    pub(crate) fn disarm(&mut self, who: Due, old: Option<u64>) {
        if let Some(old) = old {
            self.0.remove(&(old, who));
        }
    }

    /// Who is due.
    pub(crate) fn next(&mut self, now: u64) -> Option<Due> {
        let (at, who) = *self.0.first()?;
        (at <= now).then(|| {
            self.0.remove(&(at, who));
            who
        })
    }

    /// When somebody is due.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().map(|(at, _)| *at)
    }
}
