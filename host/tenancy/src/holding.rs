//! Links justify what is granted by them: who may hold more, and what is taken back when a link
//! ends (`grantees.rs` has the books).

use crate::accounts::Kind;
use crate::extents::{Extent, ExtentId};
use crate::grantees::other_end;
use crate::ids::{LinkKey, SessionId};
use crate::tables::Link;
use crate::tenancy::Tenancy;
use omniverb_session::body::{Done, QpFailed, TAKE_EXTENT, TakeBack};
use omniverb_terms::{Errno, Qpn};

/// What an extent costs at least that is taken back: threads stand still for it, others ask anew.
const COST_MIN: u64 = 1 << 20;

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
        // There was room when it was asked for; what is granted is a fact.
        if let Some(grantee) = self.sessions.get(&grantee) {
            self.grantees.add(extent, link, || grantee.account.note(&[Kind::Held]));
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
