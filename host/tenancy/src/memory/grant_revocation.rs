//! Takes grants back when the link ends that justifies them (`grants_by_link.rs` has the books).

use crate::accounts::Kind;
use crate::action::GrantOccasion;
use crate::memory::Grants;
use crate::memory::extent_file_allocator::PageHome;
use crate::memory::extent_table::{Extent, ExtentId};
use crate::memory::grants_by_link::other_end;
use crate::row_keys::{LinkKey, SessionId};
use crate::sessions::memory_region::Mr;
use crate::sessions::revocations_caused_by_peers::PeerKey;
use omniverb_session::body::{GrantEnded, TAKE_EXTENT, TakeBack};
use omniverb_session::page_rights;
use omniverb_terms::Errno;

/// Cost of taking back an extent at least: threads stand still for it, and peers ask anew.
const COST_MIN: u64 = 1 << 20;

impl Grants<'_> {
    /// Whether a peer may be granted pages of this region: those of a file that cannot be emptied
    /// only while not too much remains of others that were granted to it.
    pub(crate) fn may_keep(
        &self,
        peer: SessionId,
        owner: SessionId,
        mr: &Mr,
        home: PageHome,
    ) -> Result<(), Errno> {
        let Some(session) = self.tenants.sessions.get(&peer) else { return Ok(()) };
        let sealed = home == PageHome::File && !page_rights::is_writable(mr.access);
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
    ) -> GrantOccasion {
        let Some(sessions) = self.links.ends(link) else {
            return GrantOccasion::Again;
        };
        // Within a process there is nothing to take back.
        let grantee =
            other_end(sessions, owner).and_then(|grantee| self.tenants.sessions.get(&grantee));
        let Some(grantee) = grantee else { return GrantOccasion::Again };
        if let Some(Extent { home: PageHome::File, region: (_, rkey), .. }) =
            self.memory.extents.get(extent)
            && let Some(mr) =
                self.tenants.sessions.get(&owner).and_then(|owner| owner.regions.get(*rkey))
            && !page_rights::is_writable(mr.access)
        {
            self.memory.remains.granted(extent, grantee.client().vnic);
        }
        // There was room when it was asked for; the grant exists already.
        self.memory.grantees.add(extent, link, || grantee.account().note(&[Kind::Granted]))
    }

    /// Ends all grants of an extent. Processes that have it mapped are told to release it: its
    /// owner may pay for its pages until then.
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
                    self.tenants.event(self.context, grantee, ended);
                }
            }
        }
    }

    /// A link carries nothing any more. Its ends lose the pages granted by it, and by no other:
    /// every link's end passes here.
    pub(crate) fn end_granted(&mut self, key: LinkKey, ends: [SessionId; 2]) {
        for extent in self.memory.grantees.extents_of(key) {
            self.memory.grantees.remove(extent, key);
            let Some((owner, _)) = self.memory.extents.get(extent).map(|extent| extent.region)
            else {
                continue;
            };
            let Some(grantee) = other_end(ends, owner) else { continue };
            let joins =
                |other: LinkKey| self.links.ends(other).is_some_and(|ends| ends.contains(&grantee));
            if !self.memory.grantees.links_of(extent).any(joins) {
                self.take_extent_back(self.tenants.peer_key(grantee), extent);
            }
        }
    }

    /// Has an owner take an extent back, because of a peer that may not have it any more, if there
    /// is one.
    pub(super) fn take_extent_back(&mut self, peer: Option<PeerKey>, id: ExtentId) {
        let Some(Extent { region, start, place, .. }) = self.memory.extents.get(id).copied() else {
            return;
        };
        let (owner, rkey) = region;
        let now = self.context.now();
        let Some(session) = self.tenants.sessions.get_mut(&owner) else { return };
        let number = session.taken.add(peer, place.length.max(COST_MIN), now);
        self.remove_extent(id);
        self.tenants.event(
            self.context,
            owner,
            TakeBack { what: TAKE_EXTENT, rkey, start, number },
        );
    }
}
