//! Multicast groups: what is sent to one that a queue pair is attached to comes to it by a link to
//! the engine, whose far end is called by a number that no packet can have.
//!
//! So an attachment is a row like any other link: charged, shown, and gone with its queue pair. The
//! daemon is in the group at the vNIC's own sockets as long as there is one
//! (`Action::AttachEngine`, `Action::DetachEngine`); what the network does not deliver
//! there reaches nobody.

use super::engine_link::{Cause, Route, Way};
use crate::accounts::Kind;
use crate::ids::SessionId;
use crate::tenancy::Tenancy;
use omniverb_session::body::{AttachGroup, GroupAttached};
use omniverb_session::limits::GROUPS_MAX;
use omniverb_terms::{Errno, Gid, Qpn, Service, VnicId};

impl Tenancy {
    /// Attaches a queue pair to a group; anew, if it is attached.
    pub(crate) fn attach_group(
        &mut self,
        id: SessionId,
        m: &AttachGroup,
        now: u64,
    ) -> Result<GroupAttached, Errno> {
        let qp = self.queue_pairs.own(id, m.qpn)?;
        if qp.service() != Service::Ud || !m.gid.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let vnic = qp.vnic();
        let sgid = self.name_in(vnic, m.gid).ok_or(Errno::EHOSTUNREACH)?;
        let mut free = None;
        for peer in (0..GROUPS_MAX as u16).map(Qpn::of_group) {
            let link = self.links.engine.to(m.qpn, peer).next();
            match link.map(|link| link.way.dgid) {
                // The process has lost it, or could not use it.
                Some(gid) if gid == m.gid => {
                    self.end_engine_links(m.qpn, peer, None);
                    free = Some(peer);
                    break;
                }
                Some(_) => {}
                None => free = free.or(Some(peer)),
            }
        }
        let peer = free.ok_or(Errno::ENOMEM)?;
        if !self.links.engine.may_join(vnic, m.gid, GROUPS_MAX) {
            return Err(Errno::ENOMEM);
        }
        let way = Way { qpn: m.qpn, peer, sgid, dgid: m.gid };
        self.link_to_engine(way, Route { cause: Cause::Group, ..Route::group() }, now)?;
        Ok(GroupAttached { qpn: m.qpn, peer_qpn: peer })
    }

    /// A process, or all of its vNIC, are attached to groups as often as they may.
    pub(super) fn is_full_of_groups(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|of| of.account.full(&[Kind::Group]).is_some())
    }

    /// By which of its names a vNIC is in a group: the first of the same kind that leads to others.
    fn name_in(&self, vnic: VnicId, group: Gid) -> Option<Gid> {
        let four = |gid: Gid| gid.address().is_ipv4();
        let gids = &self.vnics.get(&vnic)?.gids;
        let mut fitting = gids.iter().filter(|entry| four(entry.gid) == four(group));
        let outward = fitting.clone().find(|entry| !entry.gid.is_loopback());
        outward.or_else(|| fitting.next()).map(|entry| entry.gid)
    }
}
