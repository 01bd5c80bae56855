//! Orders links to the engine by age, and chooses the one that goes when a quota is used up.
//!
//! The quota may be a session's, a vNIC's, or the host's. The links themselves are rows of their
//! queue pairs.

use super::engine_link::EngineLinkAge;
use super::unsolicited_engine_link_eviction::UnsolicitedLinks;
use crate::row_keys::SessionId;
use omniverb_fairness::{Holder, Holders};
use omniverb_terms::{Gid, VnicId};
use std::collections::{BTreeMap, BTreeSet};

/// All links to the engine. Sessions and vNICs without any are not kept.
#[derive(Debug, Default)]
pub(crate) struct LinkAges {
    all: Holders<EngineLinkAge>,
    /// Those of connected queue pairs.
    connected: Holders<EngineLinkAge>,
    /// Those for datagrams, the oldest first.
    datagrams: BTreeMap<SessionId, BTreeSet<EngineLinkAge>>,
    /// Those of them that strangers caused.
    strangers: BTreeMap<VnicId, UnsolicitedLinks>,
}

impl LinkAges {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
            && self.connected.is_empty()
            && self.datagrams.is_empty()
            && self.strangers.is_empty()
    }

    /// One more, of this holder.
    pub(crate) fn add(&mut self, key: EngineLinkAge, holder: &Holder) {
        self.all.add(holder, key);
    }

    /// It is of a connected queue pair of this holder's.
    pub(crate) fn add_connected(&mut self, key: EngineLinkAge, holder: &Holder) {
        self.connected.add(holder, key);
    }

    /// It is for datagrams, of this session.
    pub(crate) fn add_datagrams(&mut self, key: EngineLinkAge, session: SessionId) {
        self.datagrams.entry(session).or_default().insert(key);
    }

    /// A stranger to this vNIC caused it.
    pub(crate) fn add_stranger(&mut self, key: EngineLinkAge, vnic: VnicId) {
        self.strangers.entry(vnic).or_default().add(key);
    }

    /// A link has ended, or makes way for no other.
    pub(crate) fn remove(&mut self, key: &EngineLinkAge, session: SessionId, vnic: VnicId) {
        self.all.remove(key);
        self.connected.remove(key);
        remove(&mut self.datagrams, session, key);
        if let Some(strangers) = self.strangers.get_mut(&vnic) {
            strangers.remove(key);
            if strangers.is_empty() {
                self.strangers.remove(&vnic);
            }
        }
    }

    /// Those of a session's for datagrams, the oldest first.
    pub(crate) fn oldest(&self, session: SessionId) -> impl Iterator<Item = EngineLinkAge> {
        self.datagrams.get(&session).into_iter().flatten().copied()
    }

    /// Those that strangers to a vNIC caused and that may make way for one of a newcomer's, the
    /// first to go first: see [`UnsolicitedLinks::yielding`].
    pub(crate) fn strangers(&self, vnic: VnicId, newcomer: Gid, rested: u64) -> Vec<EngineLinkAge> {
        let strangers = self.strangers.get(&vnic);
        strangers.map(|all| all.yielding(newcomer, rested)).unwrap_or_default()
    }

    /// The link, of all, that makes way for one more of `newcomer`'s: see [`Holders::yields_to`].
    pub(crate) fn yields_to(&self, newcomer: &Holder) -> Option<EngineLinkAge> {
        self.all.yields_to(newcomer).copied()
    }

    /// The link, of those of connected queue pairs, that makes way for one more of `newcomer`'s.
    pub(crate) fn connected_yields_to(&self, newcomer: &Holder) -> Option<EngineLinkAge> {
        self.connected.yields_to(newcomer).copied()
    }
}

fn remove<K: Ord>(from: &mut BTreeMap<K, BTreeSet<EngineLinkAge>>, holder: K, key: &EngineLinkAge) {
    if let Some(keys) = from.get_mut(&holder) {
        keys.remove(key);
        if keys.is_empty() {
            from.remove(&holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Qpn;

    fn key(born: u64) -> EngineLinkAge {
        (born, Qpn(2), (Qpn(3), Gid::ZERO))
    }

    #[test]
    fn the_oldest_goes_and_nothing_is_left() {
        let (session, vnic) = (SessionId(1), VnicId(1));
        let mut links = LinkAges::default();
        for born in [3, 1, 2] {
            links.add(key(born), &Holder::new("", 1));
            links.add_datagrams(key(born), session);
        }
        links.add_stranger(key(2), vnic);
        assert_eq!(links.oldest(session).next(), Some(key(1)));
        assert_eq!(links.oldest(SessionId(2)).next(), None);
        assert_eq!(links.strangers(vnic, Gid::ZERO, 2), [key(2)]);
        for born in 1..4 {
            links.remove(&key(born), session, vnic);
        }
        assert!(links.is_empty());
    }
}
