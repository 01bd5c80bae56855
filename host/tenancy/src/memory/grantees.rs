//! Who was granted what, and by which link: a grant ends with the last link that justifies it.
//!
//! A grant is a right of a pair of processes, given by way of a link of theirs: the key is of the
//! owner's queue pair's domain, and that queue pair's access flags cover it. When the last link by
//! which a process was granted an extent ends, for whatever reason, the extent ends as well: what
//! it has mapped it keeps, so its owner is told to take the pages off that file. Others who were
//! granted the same extent, and still may, are served by the owner meanwhile, and then from
//! another.
//!
//! Taking back means copying, and who connects, asks and goes, over and over, could have an owner
//! copy all the time. So there is an account of that for each peer, by user and vNIC, and one for
//! all of an owner's: who has overdrawn it is not granted anything for a while.

use crate::accounts::Receipt;
use crate::ids::{LinkKey, SessionId};
use crate::memory::extents::{ExtentId, Extents};
use omniverb_terms::{Qpn, VnicId};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes taken back because of one peer, or of all peers of an owner, before they have to wait.
const PEER_BURST: u64 = 256 << 20;
const OWNER_BURST: u64 = 1 << 30;
/// Bytes of that which are forgotten in a second.
const PEER_RATE: u64 = 32 << 20;
const OWNER_RATE: u64 = 128 << 20;
/// Peers that an owner has an account of; all others are counted together.
const ACCOUNTS_MAX: usize = 64;

/// Extents that somebody was granted, and the links by which.
#[derive(Debug, Default)]
pub(crate) struct Grantees {
    /// With what whoever was granted it pays.
    by_extent: BTreeMap<(ExtentId, LinkKey), Receipt>,
    by_link: BTreeSet<(LinkKey, ExtentId)>,
}

impl Grantees {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_extent.is_empty() && self.by_link.is_empty()
    }

    /// The links by which an extent was granted.
    pub(crate) fn links_of(&self, extent: ExtentId) -> impl Iterator<Item = LinkKey> {
        let from = (extent, LinkKey(Qpn(0), Qpn(0)));
        let to = (extent, LinkKey(Qpn(u32::MAX), Qpn(u32::MAX)));
        self.by_extent.range(from..=to).map(|((_, link), _)| *link)
    }

    /// What was granted by a link.
    pub(crate) fn extents_of(&self, link: LinkKey) -> Vec<ExtentId> {
        let all = self.by_link.range((link, 0)..=(link, ExtentId::MAX));
        all.map(|(_, extent)| *extent).collect()
    }

    /// An extent is granted by a link from now on, if it was not before: then this is paid.
    pub(crate) fn add(&mut self, extent: ExtentId, link: LinkKey, pay: impl FnOnce() -> Receipt) {
        self.by_link.insert((link, extent));
        self.by_extent.entry((extent, link)).or_insert_with(pay);
    }

    /// It no longer is.
    pub(crate) fn remove(&mut self, extent: ExtentId, link: LinkKey) {
        self.by_link.remove(&(link, extent));
        self.by_extent.remove(&(extent, link));
    }

    /// Every grant by a link: whose what is granted is, and what is paid for it.
    pub(crate) fn iter(
        &self,
        extents: &Extents,
    ) -> impl Iterator<Item = (LinkKey, SessionId, &Receipt)> {
        let owner = |extent| extents.get(extent).map(|extent| extent.region.0);
        let all = self.by_extent.iter();
        all.filter_map(move |((extent, link), paid)| Some((*link, owner(*extent)?, paid)))
    }
}

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

/// What was taken back of an owner's extents.
#[derive(Debug, Default)]
pub(crate) struct Strain {
    peers: BTreeMap<(u32, VnicId), Debt>,
    others: Debt,
    all: Debt,
}

impl Strain {
    /// Because of this peer so much was taken back.
    pub(crate) fn add(&mut self, peer: (u32, VnicId), bytes: u64, now: u64) {
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
    pub(crate) fn is_overdrawn(&mut self, peer: (u32, VnicId), now: u64) -> bool {
        self.all.settle(OWNER_RATE, now);
        let known = self.peers.get_mut(&peer);
        let debt = known.unwrap_or(&mut self.others);
        debt.settle(PEER_RATE, now);
        debt.bytes > PEER_BURST || self.all.bytes > OWNER_BURST
    }
}

/// The one who is not the owner; `None`: the link is within a process.
pub(crate) fn other_end(sessions: [SessionId; 2], owner: SessionId) -> Option<SessionId> {
    let [first, second] = sessions;
    match (first == owner, second == owner) {
        (true, false) => Some(second),
        (false, true) => Some(first),
        _ => None,
    }
}
