//! Room for one more link: where a quota is used up, a direct datagram link that its end did not
//! ask for makes way (`uninvited.rs` says which).

use super::link::{Invitation, Link};
use crate::accounts::{Account, Kind, Quotas, Receipt};
use crate::fairness::holders::Holder;
use crate::ids::{LinkKey, SessionId};
use crate::tenancy::Tenancy;
use omniverb_session::body::CLOSED_BY_PEER;
use omniverb_terms::{Errno, VnicId};

impl Tenancy {
    /// Makes room for a link between queue pairs; nobody loses one for a link that cannot be made
    /// all the same. `uninvited` as for [`make_link`](Self::make_link).
    pub(crate) fn make_way(
        &mut self,
        key: LinkKey,
        uninvited: Option<Invitation>,
    ) -> Result<(), Errno> {
        let first = self.queue_pairs.get(key.0).ok_or(Errno::ENOENT)?;
        let second = self.queue_pairs.get(key.1).ok_or(Errno::ENOENT)?;
        let ends = [first, second].map(|qp| (qp.session(), qp.vnic()));
        if !self.links.bells.has_room(ends[0].0, ends[1].0) {
            return Err(Errno::ENOMEM);
        }
        let holder = match uninvited {
            Some(Invitation { from, to }) => {
                let theirs = self.vnics.get(&to).and_then(|vnic| vnic.neighbour(from));
                if theirs.is_some_and(|account| account.full(&[Kind::Uninvited]).is_some()) {
                    return Err(Errno::ENOMEM);
                }
                let inviter = ends.iter().find(|(_, vnic)| *vnic == from).ok_or(Errno::ENOENT)?.0;
                let inviter = self.sessions.get(&inviter).ok_or(Errno::ENOENT)?;
                Some((to, inviter.client().holder.in_vnic(from)))
            }
            None => None,
        };
        // The second end may need another place of the same session or vNIC.
        let same = [ends[0].0 == ends[1].0, ends[0].1 == ends[1].1].map(usize::from);
        for _ in 0..2 {
            let mut found = Vec::new();
            for (this, (id, vnic)) in ends.into_iter().enumerate() {
                let newcomer = holder.as_ref().filter(|(to, _)| *to == vnic).map(|(_, from)| from);
                let more = same.map(|same| if this == 1 { same } else { 0 });
                found.extend(self.in_the_way(id, vnic, more, newcomer)?);
            }
            if found.is_empty() {
                return Ok(());
            }
            for key in found {
                self.end_uninvited(key);
            }
        }
        Ok(())
    }

    /// Makes room for a link to the engine that its process asks for.
    pub(crate) fn make_way_to_engine(&mut self, id: SessionId, vnic: VnicId) {
        if let Ok(Some(key)) = self.in_the_way(id, vnic, [0, 0], None) {
            self.end_uninvited(key);
        }
    }

    /// The link that makes way for one more of a session in a vNIC, where `more` are taken already.
    fn in_the_way(
        &self,
        id: SessionId,
        key: VnicId,
        more: [usize; 2],
        newcomer: Option<&Holder>,
    ) -> Result<Option<LinkKey>, Errno> {
        let session = self.sessions.get(&id).ok_or(Errno::ENOENT)?;
        let vnic = self.vnics.get(&key).ok_or(Errno::ENOENT)?;
        let links = |of: &Account, more| (of.count(Kind::Link) + more, of.quota(Kind::Link));
        let of_session = links(session.account(), more[0]);
        let found = self.links.direct.uninvited().in_session(id, of_session, newcomer)?;
        let of_vnic = links(vnic.account(), more[1]);
        let in_vnic = self.links.direct.uninvited().in_vnic(key, of_vnic, newcomer)?;
        // What the process loses is room in its vNIC, too.
        Ok(found.or(in_vnic))
    }

    fn end_uninvited(&mut self, LinkKey(one, other): LinkKey) {
        if self.links.has_direct(one, other) {
            self.close_link(one, other, CLOSED_BY_PEER);
            self.refuse_wish(one, other);
        }
    }

    /// What a link that its second vNIC did not ask for pays, of what the first may have of that.
    pub(crate) fn charge_uninvited(
        &mut self,
        Invitation { from, to }: Invitation,
    ) -> Result<Receipt, Errno> {
        let quotas = Quotas::of_neighbour(self.limits());
        let vnic = self.vnics.get_mut(&to).ok_or(Errno::ENOENT)?;
        vnic.neighbour_for(from, quotas).charge(&[Kind::Uninvited])
    }

    /// Whom a link is counted for, if one end did not ask for it.
    pub(crate) fn inviter_of(&self, link: &Link) -> Holder {
        let Some(end) = link.uninvited_end() else { return Holder::default() };
        let inviter = self.sessions.get(&end.inviter).zip(link.uninvited);
        let holder = inviter.map(|(inviter, way)| inviter.client().holder.in_vnic(way.from));
        holder.unwrap_or_default()
    }
}
