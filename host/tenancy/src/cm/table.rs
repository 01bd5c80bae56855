//! All ids, and what they are found by. Who takes one out takes it out everywhere.

use super::farewells::Farewells;
use super::held::HeldRequests;
use super::id::{Asker, Exchange, Id, Key, Listening, Peer, Waits};
use super::ports::Ports;
use crate::accounts::{Account, Receipt};
use crate::ids::SessionId;
use omniverb_cm::Mad;
use omniverb_terms::{Errno, Gid, VnicId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A message from one id of a vNIC to another.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) at: VnicId,
    pub(super) from: Gid,
    pub(super) to: Gid,
    pub(super) mad: Mad,
}

/// The rows of the connection manager.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ids: BTreeMap<Key, Id>,
    /// By the name that peers answer to.
    names: HashMap<(VnicId, u32), Key>,
    askers: HashMap<Asker, Key>,
    peers: HashMap<Peer, Key>,
    pub(super) ports: Ports,
    pub(super) held: HeldRequests,
    pub(super) farewells: Farewells,
    /// On its way; nothing is between two calls of the tables.
    pub(super) carried: VecDeque<Carried>,
}

impl Connections {
    /// Nothing of anybody is left.
    pub(crate) fn is_empty(&self) -> bool {
        let finds = self.names.is_empty() && self.askers.is_empty() && self.peers.is_empty();
        let said = self.carried.is_empty() && self.held.is_empty() && self.farewells.is_empty();
        self.ids.is_empty() && finds && self.ports.is_empty() && said
    }

    /// All ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Id)> {
        self.ids.iter()
    }

    /// Those of a session.
    pub(crate) fn of(&self, session: SessionId) -> Vec<Key> {
        let all = (session, u32::MIN)..=(session, u32::MAX);
        self.ids.range(all).map(|(key, _)| *key).collect()
    }

    pub(super) fn get(&self, key: Key) -> Result<&Id, Errno> {
        self.ids.get(&key).ok_or(Errno::ENOENT)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Result<&mut Id, Errno> {
        self.ids.get_mut(&key).ok_or(Errno::ENOENT)
    }

    /// Those that wait for this listener's user, from one on.
    pub(super) fn waiting_for(&self, listener: Key, after: u32) -> Vec<Key> {
        // Most ids have nobody wait for them, and a session may have thousands.
        let listening = self.ids.get(&listener).and_then(|id| id.listening.as_ref());
        if listening.is_none_or(Listening::is_idle) {
            return Vec::new();
        }
        let all = (listener.0, u32::MIN)..=(listener.0, u32::MAX);
        let meant = |waits: &Waits| waits.listener == listener && waits.number > after;
        let waits = |id: &Id| id.waits.as_ref().is_some_and(meant);
        self.ids.range(all).filter(|(_, id)| waits(id)).map(|(key, _)| *key).collect()
    }

    pub(super) fn insert(&mut self, key: Key, id: Id) {
        if let Some(name) = id.name {
            self.names.insert((id.vnic, name), key);
        }
        if let Some(asker) = id.asker {
            self.askers.insert(asker, key);
        }
        if let Some(peer) = id.peer {
            self.peers.insert(peer, key);
        }
        self.ids.insert(key, id);
    }

    /// It has a name that its peer answers to.
    pub(super) fn give_name(&mut self, key: Key, name: u32) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.name = Some(name);
            self.names.insert((id.vnic, name), key);
        }
    }

    /// Takes one out, and all that it is found by.
    pub(super) fn remove(&mut self, key: Key) -> Option<Id> {
        let id = self.ids.remove(&key)?;
        if let Some(name) = id.name {
            self.names.remove(&(id.vnic, name));
        }
        if let Some(asker) = &id.asker {
            self.askers.remove(asker);
        }
        if let Some(peer) = &id.peer
            && self.peers.get(peer) == Some(&key)
        {
            self.peers.remove(peer);
        }
        if let Some((_, port)) = id.bound {
            self.ports.release(port, key);
        }
        Some(id)
    }

    /// What waited for its user does so no more.
    pub(super) fn answer(&mut self, key: Key) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.waits = None;
        }
    }

    /// All that listen, and what those that wait for them are charged to.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&Key, &Account)> {
        self.ids.iter().filter_map(|(key, id)| Some((key, id.listening.as_ref()?.account())))
    }

    /// What an id that waits for a user pays, and to whom it should, if who listened still does.
    pub(crate) fn waits<'a>(&'a self, id: &'a Id) -> Option<(&'a Receipt, Option<&'a Account>)> {
        let waits = id.waits.as_ref()?;
        let listener = self.ids.get(&waits.listener).and_then(|id| id.listening.as_ref());
        Some((waits.receipt(), listener.map(Listening::account)))
    }

    /// Whose name this is.
    pub(super) fn named(&self, at: VnicId, name: u32) -> Option<Key> {
        self.names.get(&(at, name)).copied()
    }

    /// The id that this request was for already.
    pub(super) fn asked_by(&self, asker: &Asker) -> Option<Key> {
        self.askers.get(asker).copied()
    }

    /// The id that is connected with this queue pair.
    pub(super) fn with(&self, peer: &Peer) -> Option<Key> {
        self.peers.get(peer).copied()
    }

    /// Compares rows with what they are found by.
    pub(crate) fn check(&self) {
        assert!(self.carried.is_empty(), "something is on its way");
        self.farewells.check();
        let named = self.ids.values().filter(|id| id.name.is_some()).count();
        let asked = self.ids.values().filter(|id| id.asker.is_some()).count();
        assert_eq!((self.names.len(), self.askers.len()), (named, asked));
        for (key, id) in &self.ids {
            let found = id.name.is_none_or(|name| self.named(id.vnic, name) == Some(*key));
            assert!(found, "{key:?} answers to its name");
            assert!(id.listening.is_none() || matches!(id.exchange, Exchange::None));
        }
        for key in self.peers.values() {
            assert!(self.ids.contains_key(key));
        }
    }
}

#[cfg(test)]
impl Connections {
    /// What must never happen: one waits no more, and its place in the backlog is not returned.
    pub(crate) fn lose_waiting(&mut self, key: Key) {
        std::mem::forget(self.get_mut(key).unwrap().waits.take().unwrap());
    }
}
