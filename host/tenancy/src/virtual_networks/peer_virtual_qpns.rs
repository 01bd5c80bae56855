//! Remembers which virtual QPN a process knows a peer by, for each of its queue pairs.
//!
//! A process may name any number of peers, and pays only for links. So peers that it has no link
//! with are forgotten whenever there are twice as many as there were links.

use omniverb_terms::Qpn;
use std::collections::BTreeMap;

/// Budget: peers of one queue pair that are remembered, whether or not it has links with them.
const PEERS_KEPT: usize = 64;

/// The number by which a process knows a peer, and how many others it has named before.
#[derive(Clone, Copy, Debug)]
struct Known {
    shown: Qpn,
    turn: u64,
}

/// Peers of one queue pair, by their physical numbers.
#[derive(Debug, Default)]
struct Peers {
    known: BTreeMap<Qpn, Known>,
    /// Those that were in use when others were forgotten.
    in_use: usize,
}

/// Virtual numbers of peers, by physical ones: of the queue pair, and of its peer.
#[derive(Debug, Default)]
pub(super) struct PeerNumbers {
    all: BTreeMap<Qpn, Peers>,
    turns: u64,
}

impl PeerNumbers {
    /// A process knows the peer of its queue pair by this number. `in_use` says which peers the
    /// queue pair has links with, or wishes to have.
    pub(super) fn learn(&mut self, own: Qpn, peer: Qpn, shown: Qpn, in_use: impl Fn(Qpn) -> bool) {
        let peers = self.all.entry(own).or_default();
        if peers.known.len() >= PEERS_KEPT + 2 * peers.in_use {
            peers.known.retain(|peer, _| in_use(*peer));
            peers.in_use = peers.known.len();
        }
        self.turns += 1;
        peers.known.insert(peer, Known { shown, turn: self.turns });
    }

    /// The number by which the process knows a peer.
    pub(super) fn shown(&self, own: Qpn, peer: Qpn) -> Option<Qpn> {
        self.all.get(&own)?.known.get(&peer).map(|known| known.shown)
    }

    /// The peer that the process knows by this number; of several the last one.
    pub(super) fn physical(&self, own: Qpn, shown: Qpn) -> Option<Qpn> {
        let peers = self.all.get(&own)?.known.iter().filter(|(_, known)| known.shown == shown);
        peers.max_by_key(|(_, known)| known.turn).map(|(peer, _)| *peer)
    }

    /// Other peers that the process knows by the number that it knows this one by.
    pub(super) fn namesakes(&self, own: Qpn, peer: Qpn) -> Vec<Qpn> {
        let Some(shown) = self.shown(own, peer) else { return Vec::new() };
        let peers = self.all.get(&own).into_iter().flat_map(|peers| &peers.known);
        let others = peers.filter(|(other, known)| known.shown == shown && **other != peer);
        others.map(|(other, _)| *other).collect()
    }

    /// Queue pairs of which peers are remembered, and of how many.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Qpn, usize)> {
        self.all.iter().map(|(own, peers)| (*own, peers.known.len()))
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
        peers.learn(Qpn(1), Qpn(600), Qpn(5), |_| true);
        peers.learn(Qpn(1), Qpn(500), Qpn(5), |_| true);
        assert_eq!(peers.shown(Qpn(1), Qpn(600)), Some(Qpn(5)));
        assert_eq!(peers.physical(Qpn(1), Qpn(5)), Some(Qpn(500)), "the last one");
        assert_eq!(peers.namesakes(Qpn(1), Qpn(600)), [Qpn(500)]);
        assert!(peers.namesakes(Qpn(1), Qpn(9)).is_empty());
        peers.forget(Qpn(1));
        assert_eq!(peers.physical(Qpn(1), Qpn(5)), None);
    }

    #[test]
    fn peers_without_a_link_are_not_kept_without_end_and_others_are() {
        let mut peers = PeerNumbers::default();
        let in_use = |peer: Qpn| peer.0.is_multiple_of(100);
        for n in 0..100_000 {
            peers.learn(Qpn(2), Qpn(n), Qpn(n % 7), in_use);
            let linked = n as usize / 100 + 1;
            let [(_, count)] = peers.counts().collect::<Vec<_>>()[..] else { panic!() };
            assert!(count <= PEERS_KEPT + 2 * linked, "{count} at {n}");
        }
        assert!((0..1000).all(|n| peers.shown(Qpn(2), Qpn(100 * n)).is_some()));
        assert_eq!(peers.shown(Qpn(2), Qpn(1)), None);
    }
}
