//! Seals what is sent to other addresses, or keeps it until there is a key for it.

use super::datagrams::seal_train;
use super::{Addresses, HELD_BYTES_MAX, OVERHEAD_BYTES, SealOutcome, TUNNEL_PEERS_MAX, Tunnel};

/// Budget: bytes of all that waits for keys up to which copies for groups wait, too: the rest is
/// for packets to one address.
const COPIES_HELD_MAX: usize = 256 << 10;
/// Budget: bytes that wait for the answer of one address up to which copies for groups do.
const COPIES_HELD_OF_ONE: usize = 16 << 10;

impl Tunnel {
    /// Seals a train of packets of `segment` bytes, but for the last, that leave from
    /// `source_port`: adds the datagrams to `sealed`.
    pub fn seal(
        &mut self,
        (addresses, interface): (Addresses, u32),
        source_port: u16,
        (train, segment): (&[u8], usize),
        sealed: &mut Vec<u8>,
        now: u64,
    ) -> SealOutcome {
        // Without a key of the tenant nothing leaves.
        if addresses.remote.is_multicast() || self.keys.is_empty() {
            return SealOutcome::Dropped;
        }
        self.peer(addresses, interface, now).note_packet();
        if let Some(outcome) =
            self.seal_with_key((addresses, interface), source_port, (train, segment), sealed, now)
        {
            return outcome;
        }
        let has_room = self.held_bytes + train.len() <= HELD_BYTES_MAX;
        let Some(peer) = self.peers.get_mut(&addresses) else { return SealOutcome::Dropped };
        let is_held = has_room && peer.hold(source_port, train, segment);
        if is_held {
            self.held_bytes += train.len();
        }
        self.ask(addresses, now);
        if is_held { SealOutcome::Held } else { SealOutcome::Dropped }
    }

    /// Seals a copy of a packet to a group, as [`Tunnel::seal`] does a packet. A copy goes to each
    /// host, also to those that have nobody to answer. So few of them wait for a key, and none if
    /// the first request was not answered; nobody is told that there is no answer, and no address
    /// with which something else is exchanged makes way.
    pub fn seal_copy(
        &mut self,
        (addresses, interface): (Addresses, u32),
        source_port: u16,
        copy: &[u8],
        sealed: &mut Vec<u8>,
        now: u64,
    ) -> SealOutcome {
        if addresses.remote.is_multicast() || self.keys.is_empty() {
            return SealOutcome::Dropped;
        }
        if !self.has_place_for_copies((addresses, interface), now) {
            return SealOutcome::Dropped;
        }
        let to = (addresses, interface);
        let train = (copy, copy.len());
        if let Some(outcome) = self.seal_with_key(to, source_port, train, sealed, now) {
            return outcome;
        }
        let is_held = self.held_bytes + copy.len() <= COPIES_HELD_MAX
            && self.peers.get_mut(&addresses).is_some_and(|peer| {
                let has_room = peer.held_bytes + copy.len() <= COPIES_HELD_OF_ONE;
                peer.asked_again_at == 0 && has_room && peer.hold(source_port, copy, copy.len())
            });
        if is_held {
            self.held_bytes += copy.len();
        }
        self.ask(addresses, now);
        if is_held { SealOutcome::Held } else { SealOutcome::Dropped }
    }

    /// Says to an address that this end is there, by asking it for a key: it may have found this
    /// one silent before. What has a key there is known.
    pub fn introduce(&mut self, (addresses, interface): (Addresses, u32), now: u64) {
        if self.has_place_for_copies((addresses, interface), now)
            && self.peers.get(&addresses).is_some_and(|peer| peer.key.is_none())
        {
            self.ask(addresses, now);
        }
    }

    /// Whether there is a peer at these addresses, at the cost of none but a silent one.
    fn has_place_for_copies(&mut self, (addresses, interface): (Addresses, u32), now: u64) -> bool {
        if self.peers.contains_key(&addresses) {
            return true;
        }
        if self.peers.len() >= TUNNEL_PEERS_MAX {
            let silent = self.peers.iter().filter(|(_, peer)| peer.is_silent_to_copies());
            let Some((idle, _)) = silent.min_by_key(|(_, peer)| peer.used_at) else {
                return false;
            };
            let idle = *idle;
            self.forget(idle);
        }
        self.peer(addresses, interface, now).is_for_copies = true;
        true
    }

    /// Seals a train to a peer if there is a key. `None`: a key is to be asked for.
    fn seal_with_key(
        &mut self,
        (addresses, interface): (Addresses, u32),
        source_port: u16,
        (train, segment): (&[u8], usize),
        sealed: &mut Vec<u8>,
        now: u64,
    ) -> Option<SealOutcome> {
        let peer = self.peers.get_mut(&addresses)?;
        peer.used_at = now;
        peer.interface = interface;
        if let Some(key) = peer.key.as_mut().filter(|key| now < key.ends_at) {
            let due = now >= key.renewed_at || key.sealer.used_percent() > 50;
            if seal_train(key, source_port, train, segment, sealed) {
                self.counters.sealed += train.len().div_ceil(segment.max(1)) as u64;
                if due {
                    self.ask(addresses, now);
                }
                return Some(SealOutcome::Now(segment + OVERHEAD_BYTES));
            }
        }
        peer.key = None;
        let is_silent = peer.asking.is_none() && now < peer.asked_again_at;
        is_silent.then_some(SealOutcome::Dropped)
    }
}
