//! Queues work of many holders and takes it in turn, along the tree of [`Holders`](crate::Holders).
//!
//! A holder with much waiting waits longer; no other one does.

use crate::largest_holder::{Holder, HolderStep};
use std::collections::{HashMap, VecDeque};

/// What waits, by holder.
#[derive(Debug)]
pub struct FairQueue<T> {
    root: Branch<T>,
}

#[derive(Debug)]
struct Branch<T> {
    own: VecDeque<T>,
    branches: HashMap<HolderStep, Branch<T>>,
    /// Whose turn it is, the next first. `None`: what waits right here.
    order: VecDeque<Option<HolderStep>>,
}

impl<T> Default for Branch<T> {
    fn default() -> Branch<T> {
        Branch { own: VecDeque::new(), branches: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { root: Branch::default() }
    }
}

impl<T> FairQueue<T> {
    /// What waits, of all: counted where it waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.root.len()
    }

    /// No holder has anything waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.order.is_empty()
    }

    /// One more, behind what its holder has waiting.
    pub fn push(&mut self, holder: &Holder, item: T) {
        let mut at = &mut self.root;
        for part in holder.parts() {
            if !at.branches.contains_key(part) {
                at.order.push_back(Some(part.clone()));
            }
            at = at.branches.entry(part.clone()).or_default();
        }
        if at.own.is_empty() {
            at.order.push_back(None);
        }
        at.own.push_back(item);
    }

    /// Takes back what `holder` has waiting and is meant, if that has not been taken.
    pub fn remove(&mut self, holder: &Holder, meant: impl Fn(&T) -> bool) -> Option<T> {
        self.root.remove(holder.parts(), &meant)
    }

    /// The next one that `may` be taken; what may not keeps its place.
    pub fn take(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<T> {
        self.root.take(&mut may)
    }
}

impl<T> Branch<T> {
    fn len(&self) -> usize {
        self.own.len() + self.branches.values().map(Branch::len).sum::<usize>()
    }

    fn remove(&mut self, way: &[HolderStep], meant: &dyn Fn(&T) -> bool) -> Option<T> {
        let (part, taken, empty) = match way.split_first() {
            Some((part, rest)) => {
                let branch = self.branches.get_mut(part)?;
                let taken = branch.remove(rest, meant)?;
                (Some(part.clone()), taken, branch.order.is_empty())
            }
            None => {
                let at = self.own.iter().position(meant)?;
                (None, self.own.remove(at)?, self.own.is_empty())
            }
        };
        if empty {
            self.order.retain(|other| *other != part);
            if let Some(part) = part {
                self.branches.remove(&part);
            }
        }
        Some(taken)
    }

    fn take(&mut self, may: &mut dyn FnMut(&T) -> bool) -> Option<T> {
        for at in 0..self.order.len() {
            let part = self.order.get(at)?.clone();
            let (taken, empty) = match &part {
                None if self.own.front().is_some_and(&mut *may) => {
                    (self.own.pop_front(), self.own.is_empty())
                }
                None => (None, false),
                Some(part) => match self.branches.get_mut(part) {
                    Some(branch) => (branch.take(may), branch.order.is_empty()),
                    None => (None, true),
                },
            };
            if taken.is_none() {
                continue;
            }
            self.order.remove(at);
            match part {
                Some(part) if empty => drop(self.branches.remove(&part)),
                part if !empty => self.order.push_back(part),
                _ => {}
            }
            return taken;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_a_turn() {
        let mut turns = FairQueue::default();
        let holder = |group: &str, user| Holder::new(group, user);
        for number in 0..100 {
            // One tenant, whatever it splits into.
            turns.push(&holder(&format!("/nasty/{}", number % 10), number), ("nasty", number));
        }
        turns.push(&holder("/good", 1), ("good", 0));
        turns.push(&holder("/good", 1), ("good", 1));
        turns.push(&holder("/other", 1), ("other", 0));
        assert_eq!(turns.len(), 103);
        turns.push(&holder("/third/x", 1), ("third", 0));
        turns.push(&holder("/third/x", 2), ("third", 2));
        let third = |user| holder("/third/x", user);
        assert_eq!(turns.remove(&third(1), |item| item.1 == 5), None);
        assert_eq!(turns.remove(&third(1), |item| item.1 == 0), Some(("third", 0)));
        assert_eq!(turns.remove(&third(1), |item| item.1 == 0), None);
        assert_eq!(turns.remove(&third(2), |_| true), Some(("third", 2)));
        assert_eq!((turns.len(), turns.root.branches.len()), (103, 3));
        let first: Vec<_> = (0..6).map(|_| turns.take(|_| true).unwrap().0).collect();
        assert_eq!(first, ["nasty", "good", "other", "nasty", "good", "nasty"]);
        let mut left = 97;
        while turns.take(|_| true).is_some() {
            left -= 1;
        }
        assert!(left == 0 && turns.is_empty() && turns.root.branches.is_empty());
        assert!(turns.root.order.is_empty());
    }

    #[test]
    fn an_untakable_descriptor_holds_up_no_other() {
        let mut turns = FairQueue::default();
        let (one, other) = (Holder::new("/one", 1), Holder::new("/other", 1));
        for number in 0..3 {
            turns.push(&one, number);
        }
        turns.push(&other, 10);
        turns.push(&other, 11);
        assert_eq!(turns.take(|item| *item >= 10), Some(10));
        assert_eq!(turns.take(|item| *item >= 10), Some(11));
        assert_eq!(turns.take(|item| *item >= 10), None);
        assert_eq!(
            (0..4).map(|_| turns.take(|_| true)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), None]
        );
    }
}
