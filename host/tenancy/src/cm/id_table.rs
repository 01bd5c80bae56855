//! Keeps all ids, and the keys that find them. Removing an id removes all of its keys.

use super::cm_id::{Exchange, Id, Key, Listening, LookupKeys, Peer, PendingAccept, RequestSource};
use super::dreq_retransmission::DreqRetransmissions;
use super::early_requests::EarlyRequests;
use super::message_ends::Origin;
use super::port_binding::{Binding, Port, PortSharing, Ports, Wildcard};
use crate::accounts::{Account, Receipt};
use crate::row_keys::SessionId;
use omniverb_cm::Mad;
use omniverb_terms::{Errno, Gid, VnicId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// A message from one id of this host to another: of one vNIC, or of a tenant with a key.
#[derive(Debug)]
pub(super) struct LocalMessage {
    pub(super) at: VnicId,
    pub(super) from: Gid,
    pub(super) to: Gid,
    pub(super) origin: Origin,
    pub(super) mad: Mad,
}

/// The rows of the connection manager.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ids: BTreeMap<Key, Id>,
    /// By the name that peers answer to.
    names: HashMap<(VnicId, u32), Key>,
    askers: HashMap<RequestSource, Key>,
    peers: HashMap<Peer, Key>,
    ports: Ports,
    /// On its way; nothing is between two calls of the tables.
    carried: VecDeque<LocalMessage>,
    pub(super) early: EarlyRequests,
    pub(super) farewells: DreqRetransmissions,
}

impl Connections {
    /// No row of any client is left.
    pub(crate) fn is_empty(&self) -> bool {
        let finds = self.names.is_empty() && self.askers.is_empty() && self.peers.is_empty();
        let said = self.carried.is_empty() && self.early.is_empty() && self.farewells.is_empty();
        self.ids.is_empty() && finds && self.ports.is_empty() && said
    }

    /// All ids, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Id)> {
        self.ids.iter()
    }

    /// The keys of a session's ids, in order.
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
        // Most ids have no waiting connections, and a session may have thousands.
        let listening = self.ids.get(&listener).and_then(Id::listening);
        if listening.is_none_or(Listening::is_idle) {
            return Vec::new();
        }
        let all = (listener.0, u32::MIN)..=(listener.0, u32::MAX);
        let meant = |waits: &PendingAccept| waits.listener == listener && waits.number > after;
        let waits = |id: &Id| id.waits().is_some_and(meant);
        self.ids.range(all).filter(|(_, id)| waits(id)).map(|(key, _)| *key).collect()
    }

    pub(super) fn insert(&mut self, key: Key, id: Id) {
        let LookupKeys { name, asker, peer } = *id.found_by();
        self.names.extend(name.map(|name| ((id.vnic(), name), key)));
        self.askers.extend(asker.map(|asker| (asker, key)));
        self.peers.extend(peer.map(|peer| (peer, key)));
        self.ids.insert(key, id);
    }

    /// It has a name that its peer answers to.
    pub(super) fn give_name(&mut self, key: Key, name: u32) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.give_name(name);
            self.names.insert((id.vnic(), name), key);
        }
    }

    /// It has an address and a port of its own: that of the address or, if that is zero, any. They
    /// are tried from a random one on.
    ///
    /// # Errors
    /// As [`Ports::bind`].
    pub(super) fn bind(
        &mut self,
        key: Key,
        address: SocketAddr,
        (hold, wildcard): (PortSharing, Wildcard),
        random: impl FnOnce() -> u64,
    ) -> Result<(), Errno> {
        let id = self.ids.get_mut(&key).ok_or(Errno::ENOENT)?;
        let (vnic, (space, _)) = (id.vnic(), id.kind());
        let binding = Binding { owner: key, ip: address.ip(), hold, wildcard };
        let port = match address.port() {
            0 => self.ports.bind_any((vnic, space), binding, random())?,
            port => self.ports.bind((vnic, space, port), binding).map(|()| port)?,
        };
        id.bind(SocketAddr::new(address.ip(), port), (vnic, space, port));
        Ok(())
    }

    /// One that has a port waits for connections from now on.
    ///
    /// # Errors
    /// As [`Ports::listen`]; `EINVAL` if it has none.
    pub(super) fn listen(&mut self, key: Key, listening: Listening) -> Result<Port, Errno> {
        let id = self.ids.get_mut(&key).ok_or(Errno::ENOENT)?;
        let port = id.port().ok_or(Errno::EINVAL)?;
        self.ports.listen(port, key)?;
        id.listen(listening);
        Ok(port)
    }

    /// The listener of this address.
    pub(super) fn listener(&self, port: Port, ip: IpAddr) -> Option<Key> {
        self.ports.listener(port, ip)
    }

    /// A connection waits for its listener's user, which is told of it now: its ordinal number.
    pub(super) fn announce(&mut self, listener: Key, room: Receipt, key: Key) -> Option<u32> {
        let waits = self.ids.get_mut(&listener)?.announce(listener, room)?;
        let number = waits.number;
        self.ids.get_mut(&key)?.wait(waits);
        Some(number)
    }

    /// Something is on its way from one id to another.
    pub(super) fn carry(&mut self, carried: LocalMessage) {
        self.carried.push_back(carried);
    }

    /// The next message to deliver.
    pub(super) fn next_carried(&mut self) -> Option<LocalMessage> {
        self.carried.pop_front()
    }

    /// Takes one out, and all that it is found by.
    pub(super) fn remove(&mut self, key: Key) -> Option<Id> {
        let id = self.ids.remove(&key)?;
        let LookupKeys { name, asker, peer } = id.found_by();
        if let Some(name) = name {
            self.names.remove(&(id.vnic(), *name));
        }
        if let Some(asker) = asker {
            self.askers.remove(asker);
        }
        if let Some(peer) = peer
            && self.peers.get(peer) == Some(&key)
        {
            self.peers.remove(peer);
        }
        if let Some(port) = id.port() {
            self.ports.release(port, key);
        }
        Some(id)
    }

    /// A connection that waited for its user waits no more.
    pub(super) fn answer(&mut self, key: Key) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.take_waits();
        }
    }

    /// All that listen, and what those that wait for them are charged to.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&Key, &Account)> {
        self.ids.iter().filter_map(|(key, id)| Some((key, id.listening()?.account())))
    }

    /// The receipt of an id that waits for a user, and the account that should pay it, if the
    /// listener still exists.
    pub(crate) fn waits<'a>(&'a self, id: &'a Id) -> Option<(&'a Receipt, Option<&'a Account>)> {
        let waits = id.waits()?;
        let listener = self.ids.get(&waits.listener).and_then(Id::listening);
        Some((waits.receipt(), listener.map(Listening::account)))
    }

    /// The id with this name.
    pub(super) fn named(&self, at: VnicId, name: u32) -> Option<Key> {
        self.names.get(&(at, name)).copied()
    }

    /// The id that this request was for already.
    pub(super) fn asked_by(&self, asker: &RequestSource) -> Option<Key> {
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
        let named = self.ids.values().filter(|id| id.found_by().name.is_some()).count();
        let asked = self.ids.values().filter(|id| id.found_by().asker.is_some()).count();
        assert_eq!((self.names.len(), self.askers.len()), (named, asked));
        for (key, id) in &self.ids {
            let found = id.found_by().name;
            let found = found.is_none_or(|name| self.named(id.vnic(), name) == Some(*key));
            assert!(found, "{key:?} answers to its name");
            assert!(id.listening().is_none() || matches!(id.exchange, Exchange::None));
        }
        for key in self.peers.values() {
            assert!(self.ids.contains_key(key));
        }
    }
}

#[cfg(test)]
impl Connections {
    /// Simulates a bug: one waits no more, and its place in the backlog is not returned.
    pub(crate) fn lose_waiting(&mut self, key: Key) {
        let id = self.get_mut(key).unwrap();
        std::mem::forget(id.take_waits());
    }
}
