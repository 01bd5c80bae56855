//! Keeps a table that all tenants share: when it is full, the largest holder loses a row.
//!
//! Rows that count are counted for their holder, so that the one with the most yields when the
//! table is full; a row that goes is counted no more.

use crate::largest_holder::{Holder, Holders};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Index;

/// Rows by their keys, and whose they are.
#[derive(Debug)]
pub struct FairTable<K, R> {
    rows: BTreeMap<K, R>,
    holders: Holders<K>,
}

impl<K, R> Default for FairTable<K, R> {
    fn default() -> FairTable<K, R> {
        FairTable { rows: BTreeMap::new(), holders: Holders::default() }
    }
}

impl<K: Copy + Debug + Hash + Ord, R> FairTable<K, R> {
    /// No row, and nothing that is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.holders.is_empty()
    }

    /// The row of a key.
    pub fn get(&self, key: &K) -> Option<&R> {
        self.rows.get(key)
    }

    /// The row of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut R> {
        self.rows.get_mut(key)
    }

    /// Whether a key has a row.
    pub fn contains_key(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    /// All, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &R)> {
        self.rows.iter()
    }

    /// The same without the keys.
    pub fn values(&self) -> impl Iterator<Item = &R> {
        self.rows.values()
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.rows.values_mut()
    }

    /// The first key that is not less than this one.
    pub fn next_key(&self, from: K) -> Option<K> {
        self.rows.range(from..).next().map(|(key, _)| *key)
    }

    /// One more row; without a holder until it is counted.
    pub fn insert(&mut self, key: K, row: R) {
        self.rows.insert(key, row);
    }

    /// A row counts from now on, for this holder.
    pub fn count(&mut self, key: K, holder: &Holder) {
        if self.rows.contains_key(&key) {
            self.holders.add(holder, key);
        }
    }

    /// A row goes, and is not counted any more.
    pub fn remove(&mut self, key: &K) {
        self.rows.remove(key);
        self.holders.remove(key);
    }

    /// What makes way for one more of `newcomer`'s, if anything must: see [`Holders::yields_to`].
    pub fn yields_to(&self, newcomer: &Holder) -> Option<K> {
        self.holders.yields_to(newcomer).copied()
    }
}

impl<K: Ord, R> Index<&K> for FairTable<K, R> {
    type Output = R;

    fn index(&self, key: &K) -> &R {
        &self.rows[key]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Holder {
        Holder::new("", uid)
    }

    #[test]
    fn only_rows_that_are_there_and_count_make_way() {
        let mut rows = FairTable::<u64, &str>::default();
        for key in 1..4 {
            rows.insert(key, "one of many");
        }
        assert_eq!(rows.yields_to(&user(2)), None, "nothing is counted yet");
        for key in 1..5 {
            rows.count(key, &user(1));
        }
        assert_eq!(rows.yields_to(&user(2)), Some(1), "the oldest of who has the most");
        rows.remove(&1);
        assert_eq!(rows.yields_to(&user(2)), Some(2));
        rows.remove(&2);
        assert_eq!(rows.yields_to(&user(2)), None, "one against one");
        rows.remove(&3);
        assert!(rows.is_empty(), "and the fourth was never there");
    }
}
