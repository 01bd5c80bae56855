//! Links justify what is granted by them: who may hold more, and what is taken back when a link
//! ends (`grantees.rs` has the books).

use crate::accounts::Kind;
use crate::action::Occasion;
use crate::ids::{LinkKey, SessionId};
use crate::memory::extents::{Extent, ExtentId};
use crate::memory::grantees::other_end;
use crate::memory::layout::Home;
use crate::sessions::mr::Mr;
use crate::sessions::taken::PeerKey;
use crate::tenancy::Tenancy;
use omniverb_session::body::{Done, GrantEnded, QpFailed, TAKE_EXTENT, TakeBack};
use omniverb_session::page_rights;
use omniverb_terms::Errno;

/// What an extent costs at least that is taken back: threads stand still for it, others ask anew.
const COST_MIN: u64 = 1 << 20;

impl Tenancy {
    /// Whether a peer may be granted anything of this owner's: it must not have caused too much to
    /// be taken back lately, nor hold too much.
    pub(crate) fn may_be_granted_more(
        &mut self,
        peer: SessionId,
        owner: SessionId,
        now: u64,
    ) -> Result<(), Errno> {
        let Some(session) = self.sessions.get(&peer) else { return Ok(()) };
        if session.account().full(&[Kind::Granted]).is_some() {
            return Err(Errno::ENOMEM);
        }
        let peer = (session.client().uid, session.client().vnic);
        let owner = self.sessions.get_mut(&owner);
        let overdrawn = owner.is_some_and(|owner| owner.taken.is_overdrawn(peer, now));
        if overdrawn { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Whether a peer may be granted pages of this region: those of a file that nobody can empty
    /// only while not too much remains of others that were granted to it.
    pub(crate) fn may_keep(
        &self,
        peer: SessionId,
        owner: SessionId,
        mr: &Mr,
        home: Home,
    ) -> Result<(), Errno> {
        let Some(session) = self.sessions.get(&peer) else { return Ok(()) };
        let sealed = home == Home::File && !page_rights::is_writable(mr.access);
        let full =
            sealed && peer != owner && self.memory.remains.is_full(owner, session.client().vnic);
        if full { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// An extent is granted by way of a link.
    pub(crate) fn note_granted(
        &mut self,
        extent: ExtentId,
        owner: SessionId,
        link: LinkKey,
    ) -> Occasion {
        let Some(sessions) = self.links.direct(link).map(|link| link.sessions) else {
            return Occasion::Again;
        };
        // Within a process there is nothing to take back.
        let grantee = other_end(sessions, owner).and_then(|grantee| self.sessions.get(&grantee));
        let Some(grantee) = grantee else { return Occasion::Again };
        if let Some(Extent { home: Home::File, region: (_, rkey), .. }) =
            self.memory.extents.get(extent)
            && let Some(mr) = self.sessions.get(&owner).and_then(|owner| owner.regions.get(*rkey))
            && !page_rights::is_writable(mr.access)
        {
            self.memory.remains.granted(extent, grantee.client().vnic);
        }
        // There was room when it was asked for; what is granted is a fact.
        self.memory.grantees.add(extent, link, || grantee.account().note(&[Kind::Granted]))
    }

    /// An extent is nobody's any more. Whoever has it mapped is told to let go of it: its owner may
    /// pay for what is in it until then.
    pub(crate) fn end_grants_of(&mut self, id: ExtentId) {
        let Some(Extent { region: (owner, rkey), start, .. }) =
            self.memory.extents.get(id).copied()
        else {
            return;
        };
        for link in self.memory.grantees.links_of(id).collect::<Vec<_>>() {
            self.memory.grantees.remove(id, link);
            let ends = [(link.0, link.1), (link.1, link.0)];
            for (qpn, peer_qpn) in ends {
                let grantee = self.queue_pairs.session_of(qpn).filter(|grantee| *grantee != owner);
                if let Some(grantee) = grantee {
                    let ended = GrantEnded { qpn, peer_qpn, rkey, reserved: 0, page_start: start };
                    self.event(grantee, ended);
                }
            }
        }
    }

    /// A link carries nothing any more. What its ends were granted by it, and by no other, is taken
    /// back from them: every link's end passes here.
    pub(crate) fn end_granted(&mut self, key: LinkKey, ends: [SessionId; 2]) {
        for extent in self.memory.grantees.extents_of(key) {
            self.memory.grantees.remove(extent, key);
            let Some((owner, _)) = self.memory.extents.get(extent).map(|extent| extent.region)
            else {
                continue;
            };
            let Some(grantee) = other_end(ends, owner) else { continue };
            let joins = |other: LinkKey| {
                self.links.direct(other).is_some_and(|other| other.sessions.contains(&grantee))
            };
            if !self.memory.grantees.links_of(extent).any(joins) {
                self.take_extent_back(self.peer_key(grantee), extent);
            }
        }
    }

    /// Whom it is laid to what a process causes.
    pub(super) fn peer_key(&self, id: SessionId) -> Option<PeerKey> {
        let client = self.sessions.get(&id)?.client();
        Some((client.uid, client.vnic))
    }

    /// Has an owner take an extent back, because of somebody who may not have it any more, if it is
    /// because of somebody.
    pub(super) fn take_extent_back(&mut self, peer: Option<PeerKey>, id: ExtentId) {
        let Some(Extent { region, start, place, .. }) = self.memory.extents.get(id).copied() else {
            return;
        };
        let (owner, rkey) = region;
        let now = self.now();
        let Some(session) = self.sessions.get_mut(&owner) else { return };
        let number = session.taken.add(peer, place.length.max(COST_MIN), now);
        self.remove_extent(id);
        self.event(owner, TakeBack { what: TAKE_EXTENT, rkey, start, number });
    }

    /// How often a session was told to take an extent back.
    pub(crate) fn taken(&self, id: SessionId) -> u64 {
        self.sessions.get(&id).map_or(0, |session| session.taken.count())
    }

    /// The answer to a call that may have ended links.
    pub(crate) fn done_since(&self, id: SessionId, before: u64) -> Done {
        let now = self.taken(id);
        Done { take_back: if now > before { now } else { 0 } }
    }

    /// A queue pair is in ERR: its peer is not served any more.
    pub(crate) fn qp_failed(&mut self, id: SessionId, m: &QpFailed) -> Result<Done, Errno> {
        let before = self.taken(id);
        self.queue_pairs.own(id, m.qpn)?;
        self.queue_pairs.fail(m.qpn);
        for peer in self.links.peers_of(m.qpn) {
            let key = LinkKey::new(m.qpn, peer);
            if let Some(ends) = self.links.direct(key).map(|link| link.sessions) {
                self.end_granted(key, ends);
            }
        }
        Ok(self.done_since(id, before))
    }
}
