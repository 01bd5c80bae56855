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

use crate::accounts::{Kind, Receipt};
use crate::extents::{Extent, ExtentId, Extents};
use crate::ids::{LinkKey, SessionId, VnicId};
use crate::tables::Link;
use crate::tenancy::Tenancy;
use omniverb_session::body::{Done, QpFailed, TAKE_EXTENT, TakeBack};
use omniverb_terms::{Errno, Qpn};
use std::collections::{BTreeMap, BTreeSet};

/// What an extent costs at least that is taken back: threads stand still for it, others ask anew.
const COST_MIN: u64 = 1 << 20;
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

    fn links_of(&self, extent: ExtentId) -> impl Iterator<Item = LinkKey> {
        let from = (extent, LinkKey(Qpn(0), Qpn(0)));
        let to = (extent, LinkKey(Qpn(u32::MAX), Qpn(u32::MAX)));
        self.by_extent.range(from..=to).map(|((_, link), _)| *link)
    }

    fn extents_of(&self, link: LinkKey) -> Vec<ExtentId> {
        let all = self.by_link.range((link, 0)..=(link, ExtentId::MAX));
        all.map(|(_, extent)| *extent).collect()
    }

    fn remove(&mut self, extent: ExtentId, link: LinkKey) {
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
    fn add(&mut self, peer: (u32, VnicId), bytes: u64, now: u64) {
        self.all.add(bytes, OWNER_RATE, now);
        for debt in self.peers.values_mut() {
            debt.settle(PEER_RATE, now);
        }
        self.peers.retain(|_, debt| debt.bytes > 0);
        let full = self.peers.len() >= ACCOUNTS_MAX && !self.peers.contains_key(&peer);
        let debt = if full { &mut self.others } else { self.peers.entry(peer).or_default() };
        debt.add(bytes, PEER_RATE, now);
    }

    fn is_overdrawn(&mut self, peer: (u32, VnicId), now: u64) -> bool {
        self.all.settle(OWNER_RATE, now);
        let known = self.peers.get_mut(&peer);
        let debt = known.unwrap_or(&mut self.others);
        debt.settle(PEER_RATE, now);
        debt.bytes > PEER_BURST || self.all.bytes > OWNER_BURST
    }
}

impl Tenancy {
    /// Whether a peer may be granted anything of this owner's: it must not have caused too much to
    /// be taken back lately, nor hold too much.
    pub(crate) fn may_hold_more(
        &mut self,
        peer: SessionId,
        owner: SessionId,
        now: u64,
    ) -> Result<(), Errno> {
        let Some(session) = self.sessions.get(&peer) else { return Ok(()) };
        if session.account.full(&[Kind::Held]).is_some() {
            return Err(Errno::ENOMEM);
        }
        let peer = (session.client.uid, session.client.vnic);
        let owner = self.sessions.get_mut(&owner);
        let overdrawn = owner.is_some_and(|owner| owner.strain.is_overdrawn(peer, now));
        if overdrawn { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// An extent is granted by way of a link.
    pub(crate) fn hold(&mut self, extent: ExtentId, owner: SessionId, link: LinkKey) {
        let Some(sessions) = self.links.get(&link).map(|link| link.sessions) else { return };
        // Within a process there is nothing to take back.
        let Some(grantee) = other_end(sessions, owner) else { return };
        self.grantees.by_link.insert((link, extent));
        // There was room when it was asked for; what is granted is a fact.
        let held = self.grantees.by_extent.entry((extent, link));
        if let Some(grantee) = self.sessions.get(&grantee) {
            held.or_insert_with(|| grantee.account.note(&[Kind::Held]));
        }
    }

    /// An extent is nobody's any more.
    pub(crate) fn release_holders(&mut self, extent: ExtentId) {
        for link in self.grantees.links_of(extent).collect::<Vec<_>>() {
            self.grantees.remove(extent, link);
        }
    }

    /// A link carries nothing any more. What its ends were granted by it, and by no other, is taken
    /// back from them: every link's end passes here.
    pub(crate) fn end_holding(&mut self, key: LinkKey, link: &Link) {
        for extent in self.grantees.extents_of(key) {
            self.grantees.remove(extent, key);
            let Some((owner, _)) = self.extents.get(extent).map(|extent| extent.region) else {
                continue;
            };
            let Some(grantee) = other_end(link.sessions, owner) else { continue };
            let joins = |other: LinkKey| {
                self.links.get(&other).is_some_and(|other| other.sessions.contains(&grantee))
            };
            if !self.grantees.links_of(extent).any(joins) {
                self.take_extent_back(grantee, extent);
            }
        }
    }

    fn take_extent_back(&mut self, from: SessionId, id: ExtentId) {
        let Some(Extent { region, start, place, .. }) = self.extents.get(id).copied() else {
            return;
        };
        let (owner, rkey) = region;
        let peer = self.sessions.get(&from).map(|peer| (peer.client.uid, peer.client.vnic));
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&owner) else { return };
        if let Some(peer) = peer {
            session.strain.add(peer, place.length.max(COST_MIN), now);
        }
        session.taken += 1;
        let number = session.taken;
        self.remove_extent(id);
        self.event(owner, TakeBack { what: TAKE_EXTENT, rkey, start, number });
    }

    /// How often a session was told to take an extent back.
    pub(crate) fn taken(&self, id: SessionId) -> u64 {
        self.sessions.get(&id).map_or(0, |session| session.taken)
    }

    /// The answer to a call that may have ended links.
    pub(crate) fn done_since(&self, id: SessionId, before: u64) -> Done {
        let now = self.taken(id);
        Done { take_back: if now > before { now } else { 0 } }
    }

    /// A queue pair is in ERR: its peer is not served any more.
    pub(crate) fn qp_failed(&mut self, id: SessionId, m: &QpFailed) -> Result<Done, Errno> {
        let before = self.taken(id);
        let peers: Vec<Qpn> = self.own_qp(id, m.qpn)?.links.iter().copied().collect();
        if let Some(qp) = self.qps.get_mut(&m.qpn) {
            qp.failed = true;
        }
        for peer in peers {
            let key = LinkKey::new(m.qpn, peer);
            // Out of the table for the moment: it does not justify anything.
            if let Some(link) = self.links.remove(&key) {
                self.end_holding(key, &link);
                self.links.insert(key, link);
            }
        }
        Ok(self.done_since(id, before))
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
