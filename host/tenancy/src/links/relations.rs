//! Relations of sockets, by the numbers that were given; `relating.rs` makes and ends them.

use super::unrelated::RelationEnd;
use crate::directory::neighbours::Question;
use omniverb_terms::VnicId;
use std::collections::BTreeMap;

/// One of them.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) ends: [RelationEnd; 2],
    /// What its life rests on, once it has one.
    pub(super) rests_on: Option<[Question; 2]>,
}

/// All of them, by the numbers that were given.
#[derive(Debug, Default)]
pub(crate) struct Relations(pub(super) BTreeMap<u64, Relation>);

impl Relations {
    /// The vNICs of one.
    pub(super) fn vnics(&self, number: u64) -> Option<[VnicId; 2]> {
        self.0.get(&number).map(|relation| relation.ends.map(|(vnic, _)| vnic))
    }

    /// Those of a vNIC.
    pub(super) fn of(&self, key: VnicId) -> Vec<u64> {
        let has = |relation: &Relation| relation.ends.iter().any(|(vnic, _)| *vnic == key);
        self.0.iter().filter(|(_, relation)| has(relation)).map(|(number, _)| *number).collect()
    }
}
