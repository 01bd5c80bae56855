//! Keeps all direct links: by both queue pairs, by each, and by the uninvited end.

use super::direct_link::Link;
use super::uninvited_direct_link_quota::Uninvited;
use crate::row_keys::LinkKey;
use omniverb_fairness::Holder;
use omniverb_terms::Qpn;
use std::collections::{BTreeMap, BTreeSet};

/// All direct links.
#[derive(Debug, Default)]
pub(super) struct DirectLinks {
    rows: BTreeMap<LinkKey, Link>,
    /// A queue pair and its peer: of each link both ends, which are one if it is with itself.
    ends: BTreeSet<(Qpn, Qpn)>,
    uninvited: Uninvited,
}

impl DirectLinks {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ends.is_empty() && self.uninvited.is_empty()
    }

    pub(super) fn get(&self, key: LinkKey) -> Option<&Link> {
        self.rows.get(&key)
    }

    /// Like `get`, to change it.
    pub(super) fn get_mut(&mut self, key: LinkKey) -> Option<&mut Link> {
        self.rows.get_mut(&key)
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkKey, &Link)> {
        self.rows.iter().map(|(key, link)| (*key, link))
    }

    /// There is one between these two.
    pub(super) fn join(&self, qpn: Qpn, peer: Qpn) -> bool {
        self.ends.contains(&(qpn, peer))
    }

    /// The peers of a queue pair from this number on, in order.
    pub(super) fn peers_from(&self, qpn: Qpn, from: Qpn) -> impl Iterator<Item = Qpn> {
        self.ends.range((qpn, from)..=(qpn, Qpn(u32::MAX))).map(|(_, peer)| *peer)
    }

    /// Those that vNICs and processes did not ask for.
    pub(super) fn uninvited(&self) -> &Uninvited {
        &self.uninvited
    }

    /// Adds a link. `inviter`: the holder that it counts for, if one end did not ask for it.
    pub(super) fn insert(&mut self, key: LinkKey, link: Link, inviter: &Holder) {
        if let Some(end) = link.uninvited_end() {
            self.uninvited.add((end.session, end.vnic), inviter, key);
        }
        self.ends.extend([(key.0, key.1), (key.1, key.0)]);
        self.rows.insert(key, link);
    }

    /// A link ends; it is found by nothing any more.
    pub(super) fn remove(&mut self, key: LinkKey) -> Option<Link> {
        let link = self.rows.remove(&key)?;
        for end in [(key.0, key.1), (key.1, key.0)] {
            self.ends.remove(&end);
        }
        if let Some(end) = link.uninvited_end() {
            self.uninvited.remove((end.session, end.vnic), key);
        }
        Some(link)
    }

    /// Checks that indexes and rows agree.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self) {
        let ends = self.rows.keys().flat_map(|key| [(key.0, key.1), (key.1, key.0)]);
        assert_eq!(self.ends, ends.collect(), "ends of links, and links");
    }
}
