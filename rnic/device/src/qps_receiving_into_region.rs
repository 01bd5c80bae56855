//! Finds the queue pairs that have receives for a region which becomes another one.
//!
//! A sender trusts what the receives of its peer promise. When the memory behind a local key
//! changes (`ibv_rereg_mr`) they promise nothing any more, and all queue pairs with such receives
//! have to say so. There may be thousands with others. So queue pairs enter a list of each region
//! that they look up for receives: from the first such change on, which looks at all of them, since
//! most programs never make one.

use crate::region_removal_wait::UsesRegions;
use crate::spin_lock::lock;
use omniverb_terms::Lkey;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Entries below which nothing is swept out.
const FEW: usize = 64;

/// The queue pairs of one region, by their addresses.
#[derive(Default)]
struct RegionQueuePairs {
    users: HashMap<usize, Weak<dyn UsesRegions>>,
    /// The length at which those that are gone are swept out.
    full: usize,
}

impl RegionQueuePairs {
    fn add(&mut self, user: &Weak<dyn UsesRegions>) {
        self.users.entry(user.as_ptr().addr()).or_insert_with(|| user.clone());
        if self.users.len() >= self.full.max(FEW) {
            self.users.retain(|_, user| user.strong_count() > 0);
            self.full = 2 * self.users.len();
        }
    }
}

/// Queue pairs by the regions that they look up for receives.
#[derive(Default)]
pub(crate) struct RegionReceivers {
    /// Look-ups enter the lists.
    is_enabled: AtomicBool,
    /// All receives that were posted before are in them.
    is_complete: AtomicBool,
    lists: Mutex<HashMap<Lkey, RegionQueuePairs>>,
}

impl RegionReceivers {
    /// From now on look-ups enter the lists; those of caches that are filled already do not.
    pub(crate) fn enable(&self) {
        self.is_enabled.store(true, Ordering::SeqCst);
    }

    /// Whether look-ups enter the lists.
    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::SeqCst)
    }

    /// Whether the lists are complete, or are to be completed by a look at all queue pairs.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// All queue pairs have been looked at.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }

    /// A queue pair has looked a region up for a receive, with its lock held.
    pub(crate) fn add(&self, lkey: Lkey, user: &Weak<dyn UsesRegions>) {
        lock(&self.lists).entry(lkey).or_default().add(user);
    }

    /// The queue pairs of a region, which is there no longer: those that use its key from now on
    /// enter anew.
    pub(crate) fn take(&self, lkey: Lkey) -> Vec<Arc<dyn UsesRegions>> {
        let list = lock(&self.lists).remove(&lkey).unwrap_or_default();
        list.users.values().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct User;

    impl UsesRegions for User {
        fn finish_access(&self) {}
        fn doubt_receives(&self, _: Lkey) {}
    }

    fn with_weak() -> (Arc<User>, Weak<dyn UsesRegions>) {
        let user = Arc::new(User);
        let weak: Weak<User> = Arc::downgrade(&user);
        (user, weak)
    }

    #[test]
    fn a_region_has_each_of_its_queue_pairs_once() {
        let receivers = RegionReceivers::default();
        let all: Vec<_> = (0..1000).map(|_| with_weak()).collect();
        for (lkey, count) in [(Lkey(1), 3), (Lkey(2), 1000)] {
            for _ in 0..3 {
                all[..count].iter().for_each(|(_, weak)| receivers.add(lkey, weak));
            }
        }
        assert_eq!(receivers.take(Lkey(1)).len(), 3);
        assert!(receivers.take(Lkey(1)).is_empty() && receivers.take(Lkey(3)).is_empty());
        assert_eq!(receivers.take(Lkey(2)).len(), 1000);
    }

    #[test]
    fn those_that_are_gone_leave_the_list() {
        let receivers = RegionReceivers::default();
        for _ in 0..10_000 {
            let (_user, weak) = with_weak();
            receivers.add(Lkey(1), &weak);
        }
        assert!(lock(&receivers.lists)[&Lkey(1)].users.len() < 1000);
        assert!(receivers.take(Lkey(1)).is_empty());
    }
}
