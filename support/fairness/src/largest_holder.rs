//! Finds the largest holder of what all tenants share.
//!
//! Counted by namespace alone, quotas are quotas of `unshare`: a user that makes many namespaces
//! has many. So holdings are counted in a tree, along the path cgroup, user, vNIC (or process), and
//! the *largest holder* is found from its root, by going into the heaviest branch at each level.
//! What a holder has counts in every branch above, so spreading it over cgroups, users, namespaces
//! or processes below its own gains nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// Levels of cgroups that are told apart: deeper ones count as the one above them. A user that may
/// make cgroups may nest them, and each level is work.
const GROUPS_MAX: usize = 16;

/// One step of the way to a holder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HolderStep {
    Group(Box<str>),
    User(u32),
    Vnic(u64),
    Process(i32),
}

/// A holder of something.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(Arc<[HolderStep]>);

impl Holder {
    /// A user in a cgroup, both as the daemon sees them.
    #[must_use]
    pub fn new(cgroup: &str, user: u32) -> Holder {
        let groups = cgroup.split('/').filter(|name| !name.is_empty()).take(GROUPS_MAX);
        let groups = groups.map(|name| HolderStep::Group(name.into()));
        Holder(groups.chain([HolderStep::User(user)]).collect())
    }

    /// What this one does in one of its vNICs.
    #[must_use]
    pub fn in_vnic(&self, vnic: u64) -> Holder {
        Holder(self.0.iter().cloned().chain([HolderStep::Vnic(vnic)]).collect())
    }

    /// What this one does by one of its processes.
    #[must_use]
    pub fn in_process(&self, pid: i32) -> Holder {
        Holder(self.0.iter().cloned().chain([HolderStep::Process(pid)]).collect())
    }

    /// The way to it as words: cgroups from the root, then user, vNIC or process.
    #[must_use]
    pub fn path(&self) -> Vec<Box<str>> {
        let word = |part: &HolderStep| match part {
            HolderStep::Group(name) => name.clone(),
            HolderStep::User(user) => format!("/user {user}").into(),
            HolderStep::Vnic(vnic) => format!("/vnic {vnic}").into(),
            HolderStep::Process(pid) => format!("/process {pid}").into(),
        };
        self.0.iter().map(word).collect()
    }

    /// How many steps from the root this one shares with another.
    #[must_use]
    pub fn shared_steps(&self, other: &Holder) -> usize {
        self.0.iter().zip(&*other.0).take_while(|(one, other)| one == other).count()
    }

    /// How many steps the way to it has.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn parts(&self) -> &[HolderStep] {
        &self.0
    }
}

const ROOT: u64 = 0;

/// A branch: what is held right here, and the branches beyond.
#[derive(Debug)]
struct Node<K> {
    parent: u64,
    part: Option<HolderStep>,
    /// Holdings here and beyond.
    count: usize,
    /// The heaviest last; of equals, the one that has been there for longest.
    branches: BTreeSet<(usize, Reverse<u64>)>,
    /// In the order of their coming.
    holdings: BTreeMap<u64, K>,
}

impl<K> Node<K> {
    fn new(parent: u64, part: Option<HolderStep>) -> Node<K> {
        Node { parent, part, count: 0, branches: BTreeSet::new(), holdings: BTreeMap::new() }
    }

    /// The heaviest branch, unless what is held here weighs more.
    fn heaviest(&self) -> Option<(usize, u64)> {
        let (count, Reverse(branch)) = *self.branches.last()?;
        (count >= self.holdings.len()).then_some((count, branch))
    }
}

/// Holdings, each with its holder.
#[derive(Debug)]
pub struct Holders<K> {
    nodes: HashMap<u64, Node<K>>,
    by_name: HashMap<(u64, HolderStep), u64>,
    rows: HashMap<K, (u64, u64)>,
    last: u64,
}

impl<K> Default for Holders<K> {
    fn default() -> Holders<K> {
        let nodes = HashMap::from([(ROOT, Node::new(ROOT, None))]);
        Holders { nodes, by_name: HashMap::new(), rows: HashMap::new(), last: ROOT }
    }
}

impl<K: Clone + Debug + Eq + Hash> Holders<K> {
    /// Holdings of all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// `holder` holds one more.
    pub fn add(&mut self, holder: &Holder, key: K) {
        self.remove(&key);
        self.last += 1;
        let born = self.last;
        let mut at = ROOT;
        for part in holder.parts() {
            at = match self.by_name.get(&(at, part.clone())) {
                Some(known) => *known,
                None => self.branch(at, part),
            };
        }
        if let Some(leaf) = self.nodes.get_mut(&at) {
            leaf.holdings.insert(born, key.clone());
            self.rows.insert(key, (at, born));
            self.weigh(at, 1);
        }
    }

    fn branch(&mut self, parent: u64, part: &HolderStep) -> u64 {
        self.last += 1;
        self.by_name.insert((parent, part.clone()), self.last);
        self.nodes.insert(self.last, Node::new(parent, Some(part.clone())));
        self.last
    }

    /// This is held no more.
    pub fn remove(&mut self, key: &K) {
        let Some((leaf, born)) = self.rows.remove(key) else { return };
        if let Some(node) = self.nodes.get_mut(&leaf) {
            node.holdings.remove(&born);
        }
        self.weigh(leaf, -1);
    }

    /// One more or one less at a branch and all above it; those without any go.
    fn weigh(&mut self, leaf: u64, by: isize) {
        let mut at = leaf;
        loop {
            let Some(node) = self.nodes.get_mut(&at) else { return };
            let before = node.count;
            node.count = before.saturating_add_signed(by);
            let (after, parent) = (node.count, node.parent);
            if at == ROOT {
                return;
            }
            let gone = if after == 0 { self.nodes.remove(&at) } else { None };
            if let Some(part) = gone.and_then(|node| node.part) {
                self.by_name.remove(&(parent, part));
            }
            if let Some(above) = self.nodes.get_mut(&parent) {
                above.branches.remove(&(before, Reverse(at)));
                if after > 0 {
                    above.branches.insert((after, Reverse(at)));
                }
            }
            at = parent;
        }
    }

    /// The oldest holding of the largest holder.
    #[must_use]
    pub fn yields(&self) -> Option<&K> {
        self.oldest(ROOT)
    }

    /// The oldest holding of the largest holder in a branch.
    fn oldest(&self, from: u64) -> Option<&K> {
        let mut node = self.nodes.get(&from)?;
        while let Some((_, branch)) = node.heaviest() {
            node = self.nodes.get(&branch)?;
        }
        node.holdings.first_key_value().map(|(_, key)| key)
    }

    /// The oldest holding of the largest holder, if `newcomer` with one more would still hold less:
    /// for what hurts when it is taken. Only the larger one loses anything by that, and two that
    /// want the same do not take it from each other for ever.
    #[must_use]
    pub fn yields_to(&self, newcomer: &Holder) -> Option<&K> {
        let mut at = ROOT;
        let mut own = newcomer.parts().iter();
        loop {
            let node = self.nodes.get(&at)?;
            let (own_branch, own_count) = match own.next() {
                Some(part) => {
                    let branch = self.by_name.get(&(at, part.clone())).copied();
                    let found = branch.and_then(|branch| self.nodes.get(&branch));
                    (branch, found.map_or(0, |found| found.count))
                }
                None => (None, node.holdings.len()),
            };
            let most = node.heaviest().map_or(node.holdings.len(), |(count, _)| count);
            if own_count + 1 < most {
                return match node.heaviest() {
                    Some((_, branch)) => self.oldest(branch),
                    None => node.holdings.first_key_value().map(|(_, key)| key),
                };
            }
            // No holder here is larger by enough: what is to go is its own, or its neighbours'
            // there.
            at = own_branch?;
        }
    }
}
