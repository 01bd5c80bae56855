//! The pair windows of all machines, as the tables know them (`pairs.rs` gives them away).

use omniverb_terms::VnicId;
use std::collections::BTreeMap;

/// Who can be given a pair window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// Its vNIC: what no other one has ([`Identity::proof`](crate::Identity)).
    pub proof: [u64; 4],
    /// Its user, as the daemon sees it.
    pub uid: u32,
}

/// A machine's pair windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairWindows {
    /// Those that nobody has, and somebody can be given.
    pub free: usize,
    /// How many links there is room for in each of these, at least.
    pub room: usize,
    /// Who has one, and how many more links there is room for in it.
    pub given: BTreeMap<Neighbour, usize>,
}

impl PairWindows {
    /// Whether somebody of this vNIC can be given another one. A vNIC has as many users as it
    /// likes, and windows never come back: its second one must not be the last that is free.
    pub(crate) fn has_one_for(&self, proof: [u64; 4]) -> bool {
        let has_some = self.given.keys().any(|whose| whose.proof == proof);
        self.free > usize::from(has_some)
    }
}

/// Those of all machines.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pub(super) windows: BTreeMap<VnicId, PairWindows>,
    /// Links in them.
    pub(super) links: BTreeMap<VnicId, usize>,
}
