//! Remembers which virtual QPN a process knows a peer by, for each of its queue pairs.

use omniverb_terms::Qpn;
use std::collections::BTreeMap;

/// Peers of one queue pair that are remembered at most: more than it may have links.
const PEERS_PER_QP_MAX: usize = 1 << 14;

/// The number by which a process knows a peer, and how many others it has named before.
#[derive(Clone, Copy, Debug)]
struct Known {
    shown: Qpn,
    turn: u64,
}

/// Virtual numbers of peers, by physical ones: of the queue pair, and of its peer.
#[derive(Debug, Default)]
pub(super) struct PeerNumbers {
    all: BTreeMap<Qpn, BTreeMap<Qpn, Known>>,
    turns: u64,
}

impl PeerNumbers {
    /// A process knows the peer of its queue pair by this number.
    pub(super) fn learn(&mut self, own: Qpn, peer: Qpn, shown: Qpn) {
        let peers = self.all.entry(own).or_default();
        if peers.len() >= PEERS_PER_QP_MAX {
            peers.clear();
        }
        self.turns += 1;
        peers.insert(peer, Known { shown, turn: self.turns });
    }

    /// The number by which the process knows a peer.
    pub(super) fn shown(&self, own: Qpn, peer: Qpn) -> Option<Qpn> {
        self.all.get(&own)?.get(&peer).map(|known| known.shown)
    }

    /// The peer that the process knows by this number; of several the last one.
    pub(super) fn physical(&self, own: Qpn, shown: Qpn) -> Option<Qpn> {
        let peers = self.all.get(&own)?.iter().filter(|(_, known)| known.shown == shown);
        peers.max_by_key(|(_, known)| known.turn).map(|(peer, _)| *peer)
    }

    /// Other peers that the process knows by the number that it knows this one by.
    pub(super) fn namesakes(&self, own: Qpn, peer: Qpn) -> Vec<Qpn> {
        let Some(shown) = self.shown(own, peer) else { return Vec::new() };
        let peers = self.all.get(&own).into_iter().flatten();
        let others = peers.filter(|(other, known)| known.shown == shown && **other != peer);
        others.map(|(other, _)| *other).collect()
    }

    /// A queue pair is no more.
    pub(super) fn forget(&mut self, own: Qpn) {
        self.all.remove(&own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_known_both_ways_until_their_queue_pair_is_gone() {
        let mut peers = PeerNumbers::default();
        peers.learn(Qpn(1), Qpn(600), Qpn(5));
        peers.learn(Qpn(1), Qpn(500), Qpn(5));
        assert_eq!(peers.shown(Qpn(1), Qpn(600)), Some(Qpn(5)));
        assert_eq!(peers.physical(Qpn(1), Qpn(5)), Some(Qpn(500)), "the last one");
        assert_eq!(peers.namesakes(Qpn(1), Qpn(600)), [Qpn(500)]);
        assert!(peers.namesakes(Qpn(1), Qpn(9)).is_empty());
        peers.forget(Qpn(1));
        assert_eq!(peers.physical(Qpn(1), Qpn(5)), None);
        (0..=PEERS_PER_QP_MAX as u32).for_each(|n| peers.learn(Qpn(2), Qpn(n), Qpn(n)));
        assert_eq!(peers.shown(Qpn(2), Qpn(0)), None, "they are not kept without end");
    }
}
