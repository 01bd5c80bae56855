//! Keeps relations of sockets, by the numbers that were given; `socket_relation_rules.rs` makes and
//! ends them.

use super::socket_relation_refusal::RelationEnd;
use crate::network::route_destination_cache::Question;
use omniverb_terms::VnicId;
use std::collections::{BTreeMap, BTreeSet};

/// One of them.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) ends: [RelationEnd; 2],
    /// The questions that its life rests on, once it has begun: none in a virtual network.
    pub(super) rests_on: Option<Vec<Question>>,
}

/// All of them, by the numbers that were given.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    rows: BTreeMap<u64, Relation>,
    by_vnic: BTreeSet<(VnicId, u64)>,
}

impl Relations {
    pub(super) fn get(&self, number: u64) -> Option<&Relation> {
        self.rows.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Relation> {
        self.rows.get_mut(&number)
    }

    /// Adds a relation; its ends do not change.
    pub(super) fn insert(&mut self, number: u64, relation: Relation) {
        self.by_vnic.extend(relation.ends.map(|(vnic, _)| (vnic, number)));
        self.rows.insert(number, relation);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Relation> {
        let relation = self.rows.remove(&number)?;
        for (vnic, _) in relation.ends {
            self.by_vnic.remove(&(vnic, number));
        }
        Some(relation)
    }

    /// The vNICs of one.
    pub(super) fn vnics(&self, number: u64) -> Option<[VnicId; 2]> {
        self.get(number).map(|relation| relation.ends.map(|(vnic, _)| vnic))
    }

    /// Those of a vNIC.
    pub(super) fn of(&self, key: VnicId) -> Vec<u64> {
        let all = (key, 0)..=(key, u64::MAX);
        self.by_vnic.range(all).map(|(_, number)| *number).collect()
    }
}
