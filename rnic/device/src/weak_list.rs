//! Lists objects without keeping them alive. One is added without a look at the others: those that
//! are gone are swept out when as many have been added as were there.

use std::sync::{Arc, Weak};

/// Entries below which nothing is swept out.
const FEW: usize = 64;

/// Objects that are not kept alive, as they were added.
#[derive(Debug)]
pub(crate) struct WeakList<T: ?Sized> {
    list: Vec<Weak<T>>,
    /// The length at which what is gone is swept out.
    full: usize,
}

impl<T: ?Sized> Default for WeakList<T> {
    fn default() -> Self {
        Self { list: Vec::new(), full: FEW }
    }
}

impl<T: ?Sized> WeakList<T> {
    /// Adds an object, at the same cost however many there are.
    pub(crate) fn add(&mut self, one: &Arc<T>) {
        self.add_weak(Arc::downgrade(one));
    }

    /// Adds an object that may be gone.
    pub(crate) fn add_weak(&mut self, one: Weak<T>) {
        self.list.push(one);
        if self.list.len() >= self.full {
            self.list.retain(|one| one.strong_count() > 0);
            self.full = FEW.max(2 * self.list.len());
        }
    }

    /// All that there are still.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.iter().collect()
    }

    /// Entries, those that are gone included.
    #[cfg(test)]
    pub(crate) fn length(&self) -> usize {
        self.list.len()
    }

    /// All that there are still, one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> {
        self.list.iter().filter_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many entries were looked at while so many were made, and ended by the other argument.
    fn looks(count: usize, keep: impl Fn(usize) -> bool) -> (usize, usize) {
        let (mut list, mut kept, mut looks) = (WeakList::default(), Vec::new(), 0);
        for number in 0..count {
            let one = Arc::new(number);
            let before = list.full;
            if list.list.len() + 1 >= before {
                looks += list.list.len() + 1;
            }
            list.add(&one);
            if keep(number) {
                kept.push(one);
            }
        }
        assert_eq!(list.all().len(), kept.len());
        (looks, list.list.len())
    }

    #[test]
    fn adding_one_costs_the_same_at_every_length() {
        const MANY: usize = 100_000;
        for keep in [|_| true, |_| false, |number| number % 3 == 0] {
            let (looks, _) = looks(MANY, keep);
            assert!(looks <= 4 * MANY, "{looks} looks for {MANY} objects");
        }
    }

    #[test]
    fn what_is_gone_goes_from_the_list() {
        assert!(looks(10_000, |_| false).1 <= FEW);
        assert!(looks(10_000, |number| number < 100).1 <= 400);
    }
}
