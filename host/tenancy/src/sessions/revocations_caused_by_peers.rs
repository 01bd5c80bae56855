//! Accounts for extents that an owner was told to take back, by the peer that caused it.
//!
//! Taking back means copying, and a peer that connects, asks and goes, over and over, could have an
//! owner copy all the time. So there is an account of that for each peer, by user and vNIC, and one
//! for all of an owner's: a peer that has overdrawn it is granted no pages for a while.

use omniverb_terms::VnicId;
use std::collections::BTreeMap;

/// Bytes taken back because of one peer, or of all peers of an owner, before they have to wait.
const PEER_BURST: u64 = 256 << 20;
const OWNER_BURST: u64 = 1 << 30;
/// Bytes of that which are forgotten in a second.
const PEER_RATE: u64 = 32 << 20;
const OWNER_RATE: u64 = 128 << 20;
/// Peers that an owner has an account of; all others are counted together.
const ACCOUNTS_MAX: usize = 64;

/// A user in a vNIC.
pub(crate) type PeerKey = (u32, VnicId);

/// Bytes that were taken back, those that are long ago left out.
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    bytes: u64,
    at: u64,
}

impl Debt {
    fn settle(&mut self, rate: u64, now: u64) {
        let passed = u128::from(now.saturating_sub(self.at));
        let forgotten = passed * u128::from(rate) / 1_000_000_000;
        self.bytes = self.bytes.saturating_sub(u64::try_from(forgotten).unwrap_or(u64::MAX));
        self.at = now;
    }

    fn add(&mut self, bytes: u64, rate: u64, now: u64) {
        self.settle(rate, now);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The debts for extents of an owner that were taken back.
#[derive(Debug, Default)]
pub(crate) struct TakenBack {
    /// How often it was told to take one back.
    count: u64,
    peers: BTreeMap<PeerKey, Debt>,
    others: Debt,
    all: Debt,
}

impl TakenBack {
    /// How often the owner was told to take an extent back.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// An owner is told once more, for so many bytes and because of this peer, if known. Returns
    /// the ordinal number of that, from 1.
    pub(crate) fn add(&mut self, peer: Option<PeerKey>, bytes: u64, now: u64) -> u64 {
        if let Some(peer) = peer {
            self.charge(peer, bytes, now);
        }
        self.count += 1;
        self.count
    }

    fn charge(&mut self, peer: PeerKey, bytes: u64, now: u64) {
        self.all.add(bytes, OWNER_RATE, now);
        for debt in self.peers.values_mut() {
            debt.settle(PEER_RATE, now);
        }
        self.peers.retain(|_, debt| debt.bytes > 0);
        let full = self.peers.len() >= ACCOUNTS_MAX && !self.peers.contains_key(&peer);
        let debt = if full { &mut self.others } else { self.peers.entry(peer).or_default() };
        debt.add(bytes, PEER_RATE, now);
    }

    /// This peer, or all together, have had too much taken back lately.
    pub(crate) fn is_overdrawn(&mut self, peer: PeerKey, now: u64) -> bool {
        self.all.settle(OWNER_RATE, now);
        let known = self.peers.get_mut(&peer);
        let debt = known.unwrap_or(&mut self.others);
        debt.settle(PEER_RATE, now);
        debt.bytes > PEER_BURST || self.all.bytes > OWNER_BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_peer_that_has_too_much_taken_back_waits_and_no_other_does() {
        let mut taken = TakenBack::default();
        let [one, other] = [(0, VnicId(1)), (0, VnicId(2))];
        assert_eq!(taken.add(Some(one), PEER_BURST, 0), 1);
        assert!(!taken.is_overdrawn(one, 0));
        assert_eq!(taken.add(Some(one), PEER_RATE, 0), 2);
        assert!(taken.is_overdrawn(one, 0) && !taken.is_overdrawn(other, 0));
        assert!(!taken.is_overdrawn(one, SECOND), "so much is forgotten");
        assert_eq!(taken.add(None, u64::MAX, 0), 3, "no peer's fault");
        assert_eq!(taken.count(), 3);
    }

    #[test]
    fn all_together_have_an_account_as_well() {
        let mut taken = TakenBack::default();
        for number in 0..=(OWNER_BURST / PEER_BURST) {
            taken.add(Some((0, VnicId(number))), PEER_BURST, 0);
        }
        assert!(taken.is_overdrawn((7, VnicId(7)), 0));
    }
}
