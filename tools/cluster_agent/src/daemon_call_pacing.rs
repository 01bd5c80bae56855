//! Says when the daemon is given what, so that others do not decide how often it is called.
//!
//! Objects are applied when an operator changes them. Addresses of virtual networks are changed by
//! other hosts: they are applied once a second at most, and one that the daemon has refused is
//! tried again by the timer only, as long as it stays the same.

use omniverb_cluster::object_name::{Fields, ObjectId, Wanted, WantedObjects};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after which refused changes are tried again, at first and at last.
const RETRY: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];
/// The least time between two times that addresses of other hosts are applied.
const ADDRESSES: Duration = Duration::from_secs(1);

/// The objects that are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// Addresses of other hosts that have changed.
    Addresses,
    /// All, also what was refused.
    All,
}

/// What the daemon did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// It took all.
    Whole,
    /// It refused some.
    Partial,
}

/// The objects that are due, and the time from which on.
#[derive(Debug)]
pub(crate) struct Pace {
    due: Option<Extent>,
    /// The time until refused changes are tried again, and when that is over.
    pause: Duration,
    retry: Option<Instant>,
    /// When addresses were applied last.
    applied: Option<Instant>,
}

impl Pace {
    /// All is due.
    pub(crate) fn new() -> Pace {
        Pace { due: Some(Extent::All), pause: RETRY[0], retry: None, applied: None }
    }

    /// Something has changed here that may let pass what was refused; or, for
    /// [`Extent::Addresses`], at other hosts only.
    pub(crate) fn changed(&mut self, extent: Extent) {
        self.due = self.due.max(Some(extent));
        if extent == Extent::All {
            self.pause = RETRY[0];
        }
    }

    /// All is to be looked at again, as the daemon is another one maybe.
    pub(crate) fn again(&mut self) {
        self.due = Some(Extent::All);
    }

    /// The objects that are to be applied now.
    pub(crate) fn due(&self, now: Instant) -> Option<Extent> {
        if self.retry.is_some_and(|at| now >= at) {
            return Some(Extent::All);
        }
        self.due.filter(|extent| match extent {
            Extent::All => true,
            Extent::Addresses => self.rest(now).is_zero(),
        })
    }

    /// The time to wait for other input, `most` at most.
    pub(crate) fn wait(&self, now: Instant, most: Duration) -> Duration {
        match self.due {
            Some(Extent::Addresses) => self.rest(now).min(most),
            _ => most,
        }
    }

    /// The time until addresses may be applied again.
    fn rest(&self, now: Instant) -> Duration {
        let until = self.applied.map(|at| at + ADDRESSES);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// This was applied.
    pub(crate) fn applied(&mut self, extent: Extent, acceptance: Acceptance, now: Instant) {
        (self.due, self.applied) = (None, Some(now));
        self.retry = match (extent, self.retry) {
            _ if acceptance == Acceptance::Whole => None,
            (Extent::Addresses, Some(at)) => Some(at),
            _ => {
                let at = now + self.pause;
                self.pause = (2 * self.pause).min(RETRY[1]);
                Some(at)
            }
        };
    }
}

/// Addresses that the daemon has refused: what they were, and why.
#[derive(Debug, Default)]
pub(crate) struct RefusedAddresses(BTreeMap<ObjectId, (Fields, String)>);

impl RefusedAddresses {
    /// Takes those out of `wanted` that have not changed since: they stay as they are. Others are
    /// forgotten.
    pub(crate) fn hold(&mut self, wanted: &mut WantedObjects) {
        self.0.retain(|id, (fields, _)| match wanted.get_mut(id) {
            Some(object) if *object == Wanted::Fields(fields.clone()) => {
                *object = Wanted::Held;
                true
            }
            _ => false,
        });
    }

    /// The daemon has refused these just now.
    pub(crate) fn add(&mut self, refused: BTreeMap<ObjectId, String>, wanted: &WantedObjects) {
        for (id, why) in refused {
            // A refused deletion is tried again each time.
            let fields = match wanted.get(&id) {
                Some(Wanted::Fields(fields)) => fields.clone(),
                _ => Fields::new(),
            };
            self.0.insert(id, (fields, why));
        }
    }

    /// All of them, and why.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(id, (_, why))| (id.to_string(), why.clone()))
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All are tried again.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_cluster::object_name::Kind;
    use serde_json::json;

    const MOST: Duration = Duration::from_millis(500);

    #[test]
    fn addresses_are_applied_once_a_second_whatever_comes() {
        let (start, mut pace, mut count) = (Instant::now(), Pace::new(), 0);
        assert_eq!(pace.due(start), Some(Extent::All));
        pace.applied(Extent::All, Acceptance::Whole, start);
        for n in 0..1000 {
            let now = start + Duration::from_millis(10) * n;
            pace.changed(Extent::Addresses);
            assert!(pace.wait(now, MOST) <= MOST);
            if let Some(extent) = pace.due(now) {
                assert_eq!(extent, Extent::Addresses);
                pace.applied(extent, Acceptance::Whole, now);
                count += 1;
            }
        }
        assert_eq!(count, 9);
        let now = start + Duration::from_secs(10);
        // An operator does not wait.
        pace.changed(Extent::All);
        assert_eq!(pace.due(now), Some(Extent::All));
        pace.changed(Extent::Addresses);
        assert_eq!(pace.due(now), Some(Extent::All));
    }

    #[test]
    fn others_do_not_decide_when_what_was_refused_is_tried_again() {
        let (start, mut pace) = (Instant::now(), Pace::new());
        let mut now = start;
        let mut tried = Vec::new();
        pace.applied(Extent::All, Acceptance::Partial, start);
        for _ in 0..100 {
            now += Duration::from_secs(1);
            pace.changed(Extent::Addresses);
            let extent = pace.due(now).unwrap();
            if extent == Extent::All {
                tried.push((now - start).as_secs());
            }
            pace.applied(extent, Acceptance::Partial, now);
        }
        assert_eq!(tried, [5, 15, 35, 75]);
        pace.changed(Extent::All);
        pace.applied(Extent::All, Acceptance::Partial, now);
        assert_eq!(pace.due(now + RETRY[0]), Some(Extent::All), "the first pause again");
        pace.applied(Extent::Addresses, Acceptance::Whole, now);
        assert_eq!(pace.due(now + RETRY[1]), None);
    }

    #[test]
    fn a_refused_address_is_held_until_it_changes() {
        let [one, two] = [1, 2].map(|n| ObjectId::new(Kind::Address, &format!("blue/10.0.0.{n}")));
        let fields = |n: u32| json!({ "qpns": n }).as_object().unwrap().clone();
        let wanted = |first: u32| -> WantedObjects {
            [(one.clone(), Wanted::Fields(fields(first))), (two.clone(), Wanted::Fields(fields(7)))]
                .into()
        };
        let mut refused = RefusedAddresses::default();
        refused.add([(one.clone(), "no".to_owned())].into(), &wanted(1));
        let mut same = wanted(1);
        refused.hold(&mut same);
        assert_eq!((&same[&one], &same[&two]), (&Wanted::Held, &Wanted::Fields(fields(7))));
        assert_eq!(refused.problems().collect::<Vec<_>>(), [(one.to_string(), "no".to_owned())]);
        let mut other = wanted(2);
        refused.hold(&mut other);
        assert_eq!(other, wanted(2));
        assert!(refused.is_empty());
        refused.add([(one.clone(), "no".to_owned())].into(), &wanted(1));
        refused.hold(&mut WantedObjects::new());
        assert!(refused.is_empty(), "it is gone");
    }
}
