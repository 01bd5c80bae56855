//! Keeps the exchanges of ports of links to the engine, and counts those that processes carry.

use super::port_exchange::{Carrier, PortExchange};
use crate::row_keys::RemotePeer;
use omniverb_terms::{Qpn, VnicId};
use std::collections::BTreeMap;

/// Exchanges of ports, one for each link whose peer's daemon knows them.
#[derive(Debug, Default)]
pub(crate) struct CarriedLinks {
    /// Processes may carry links, and peers are told ports.
    is_on: bool,
    exchanges: BTreeMap<(Qpn, RemotePeer), (VnicId, PortExchange)>,
    /// Links that processes carry and whose memory the daemon keeps, by their vNICs.
    kept: BTreeMap<VnicId, usize>,
}

impl CarriedLinks {
    /// From now on processes may carry links.
    pub(crate) fn turn_on(&mut self) {
        self.is_on = true;
    }

    /// Whether processes may carry links.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exchanges.is_empty() && self.kept.is_empty()
    }

    pub(super) fn get(&self, key: (Qpn, RemotePeer)) -> Option<&PortExchange> {
        self.exchanges.get(&key).map(|(_, exchange)| exchange)
    }

    pub(super) fn get_mut(&mut self, key: (Qpn, RemotePeer)) -> Option<&mut PortExchange> {
        self.exchanges.get_mut(&key).map(|(_, exchange)| exchange)
    }

    pub(super) fn insert(&mut self, key: (Qpn, RemotePeer), vnic: VnicId, exchange: PortExchange) {
        if exchange.carrier() == Carrier::Process {
            *self.kept.entry(vnic).or_default() += 1;
        }
        self.exchanges.insert(key, (vnic, exchange));
    }

    pub(super) fn remove(&mut self, key: (Qpn, RemotePeer)) -> Option<PortExchange> {
        let (vnic, exchange) = self.exchanges.remove(&key)?;
        if exchange.carrier() == Carrier::Process {
            self.forget_kept(vnic);
        }
        Some(exchange)
    }

    pub(super) fn forget_kept(&mut self, vnic: VnicId) {
        if let Some(count) = self.kept.get_mut(&vnic) {
            *count -= 1;
            if *count == 0 {
                self.kept.remove(&vnic);
            }
        }
    }

    /// There is room for one more that is kept.
    pub(super) fn has_room(&self, vnic: VnicId, (of_host, of_vnic): (usize, usize)) -> bool {
        let own = self.kept.get(&vnic).copied().unwrap_or_default();
        own < of_vnic && self.kept.values().sum::<usize>() < of_host
    }

    /// Checks that each exchange is of a link, and that those that are kept are counted.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check(&self, is_link: impl Fn(Qpn, RemotePeer) -> bool) {
        assert!(self.exchanges.keys().all(|(qpn, peer)| is_link(*qpn, *peer)), "ports of no link");
        let mut kept = BTreeMap::new();
        for (vnic, exchange) in self.exchanges.values() {
            if exchange.carrier() == Carrier::Process {
                *kept.entry(*vnic).or_insert(0) += 1;
            }
        }
        assert_eq!(kept, self.kept, "links whose memory is kept");
    }

    /// The links of a vNIC that processes carry.
    pub(super) fn of_vnic(&self, vnic: VnicId) -> Vec<(Qpn, RemotePeer)> {
        let own = self
            .exchanges
            .iter()
            .filter(|(_, (of, exchange))| *of == vnic && exchange.carrier().is_process());
        own.map(|(key, _)| *key).collect()
    }
}
