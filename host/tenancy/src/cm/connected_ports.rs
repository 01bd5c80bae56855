//! Remembers to which port of rdma_cm the peers of queue pairs have connected, for rules that name
//! a port.
//!
//! Each end knows it of its own id: the one that asked when it is answered, the other one when it
//! is asked. An entry goes with its id. Links keep the port that they were made with.

use crate::cm::cm_id::Key;
use omniverb_terms::{Gid, Qpn, VnicId};
use std::collections::BTreeMap;

/// A queue pair, seen from a vNIC: its GID and number.
type Peer = (VnicId, Gid, Qpn);

/// The ports, by the queue pairs at the other ends.
#[derive(Debug, Default)]
pub(crate) struct ConnectedPorts(BTreeMap<Peer, (Key, u16)>);

impl ConnectedPorts {
    /// The id of a vNIC is for a connection with this queue pair, at this port.
    pub(crate) fn learn(&mut self, peer: Peer, id: Key, port: u16) {
        self.0.insert(peer, (id, port));
    }

    /// The id is no more. A newer one for the same queue pair stays.
    pub(crate) fn forget(&mut self, peer: Peer, id: Key) {
        if self.0.get(&peer).is_some_and(|(known, _)| *known == id) {
            self.0.remove(&peer);
        }
    }

    /// The port of the connection of a vNIC with this queue pair, if rdma_cm has made one.
    pub(crate) fn port(&self, peer: Peer) -> Option<u16> {
        self.0.get(&peer).map(|(_, port)| *port)
    }

    /// Nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row_keys::SessionId;

    #[test]
    fn an_entry_goes_with_the_id_that_made_it() {
        let mut ports = ConnectedPorts::default();
        let peer = (VnicId(1), Gid::ZERO, Qpn(7));
        let [old, new] = [1, 2].map(|id| (SessionId(1), id));
        ports.learn(peer, old, 7471);
        ports.learn(peer, new, 7472);
        ports.forget(peer, old);
        assert_eq!(ports.port(peer), Some(7472));
        assert_eq!(ports.port((VnicId(2), Gid::ZERO, Qpn(7))), None);
        ports.forget(peer, new);
        assert!(ports.is_empty());
    }
}
