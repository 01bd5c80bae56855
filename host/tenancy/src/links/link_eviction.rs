//! Makes room for one more link when a quota is used up.
//!
//! A direct datagram link that its end did not ask for makes way (`uninvited_direct_link_quota.rs`
//! chooses it).

use super::direct_link::{Invitation, Link};
use super::uninvited_direct_link_quota::{ENDED_MAX, QuotaShortage};
use crate::accounts::{Account, Kind, Quotas, Receipt};
use crate::links::Linker;
use crate::row_keys::{LinkKey, SessionId};
use omniverb_fairness::Holder;
use omniverb_session::body::CLOSED_BY_PEER;
use omniverb_terms::{Errno, VnicId};

/// The places for a link, as [`make_way`](Tenancy::make_way) has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Free ones, if quotas allow it.
    Free,
    /// Those of links that have made way: quotas do, and others have no less than before.
    Returned,
}

/// Decisions about a new link that are not counted yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// Ends that take places of the session and of the vNIC.
    more: [usize; 2],
    /// Those of them that take places of the host.
    taken: usize,
    /// Links that have made way in the vNIC.
    returned: usize,
}

impl Linker<'_> {
    /// Makes room for a link between queue pairs; no other goes for one that cannot be made all the
    /// same. `uninvited` as for [`make_link`](Self::make_link).
    pub(crate) fn make_way(
        &mut self,
        key: LinkKey,
        uninvited: Option<Invitation>,
    ) -> Result<Places, Errno> {
        let first = self.queue_pairs.get(key.0).ok_or(Errno::ENOENT)?;
        let second = self.queue_pairs.get(key.1).ok_or(Errno::ENOENT)?;
        let ends = [first, second].map(|qp| (qp.session(), qp.vnic()));
        if !self.links.bells.has_room(ends[0].0, ends[1].0) {
            return Err(Errno::ENOMEM);
        }
        let holder = match uninvited {
            Some(Invitation { from, to }) => {
                let theirs = self.tenants.vnics.get(&to).and_then(|vnic| vnic.neighbour(from));
                if theirs.is_some_and(|account| account.full(&[Kind::Uninvited]).is_some()) {
                    return Err(Errno::ENOMEM);
                }
                let inviter = ends.iter().find(|(_, vnic)| *vnic == from).ok_or(Errno::ENOENT)?.0;
                let inviter = self.tenants.sessions.get(&inviter).ok_or(Errno::ENOENT)?;
                Some((to, inviter.client().holder.in_vnic(from.0)))
            }
            None => None,
        };
        // The second end may need another place of the same session or vNIC.
        let same = [ends[0].0 == ends[1].0, ends[0].1 == ends[1].1].map(usize::from);
        // The vNICs of those that have made way.
        let mut returned: Vec<[VnicId; 2]> = Vec::new();
        for _ in 0..ENDED_MAX {
            let mut found = Vec::new();
            for (this, (id, vnic)) in ends.into_iter().enumerate() {
                let newcomer = holder.as_ref().filter(|(to, _)| *to == vnic).map(|(_, from)| from);
                let more = same.map(|same| same * this);
                let returned = returned.iter().filter(|vnics| vnics.contains(&vnic)).count();
                let pending = Pending { more, taken: this, returned };
                found.extend(self.in_the_way(id, vnic, pending, newcomer)?);
            }
            if found.is_empty() {
                break;
            }
            found.dedup();
            for key in found {
                returned.extend(self.links.direct.get(key).map(|link| link.vnics));
                self.end_uninvited(key);
            }
        }
        Ok(if returned.is_empty() { Places::Free } else { Places::Returned })
    }

    /// The link that makes way for one more of a session in a vNIC.
    pub(super) fn in_the_way(
        &self,
        id: SessionId,
        key: VnicId,
        pending: Pending,
        newcomer: Option<&Holder>,
    ) -> Result<Option<LinkKey>, Errno> {
        let session = self.tenants.sessions.get(&id).ok_or(Errno::ENOENT)?;
        let vnic = self.tenants.vnics.get(&key).ok_or(Errno::ENOENT)?;
        let of_session = lack(session.account(), pending.more[0], pending);
        let found = self.links.direct.uninvited().in_session(id, of_session, newcomer)?;
        let of_vnic = lack(vnic.account(), pending.more[1], pending);
        let in_vnic = self.links.direct.uninvited().in_vnic(key, of_vnic, newcomer)?;
        // A link that the process loses makes room in its vNIC, too.
        Ok(found.or(in_vnic))
    }

    pub(super) fn end_uninvited(&mut self, LinkKey(one, other): LinkKey) {
        if self.links.has_direct(one, other) {
            self.unlinker().close_link(one, other, CLOSED_BY_PEER);
            self.unlinker().refuse_wish(one, other);
        }
    }

    /// The receipt of a link that its second vNIC did not ask for, from the first one's quota for
    /// such links.
    pub(crate) fn charge_uninvited(
        &mut self,
        Invitation { from, to }: Invitation,
    ) -> Result<Receipt, Errno> {
        let quotas = Quotas::of_neighbour(self.context.limits());
        let vnic = self.tenants.vnics.get_mut(&to).ok_or(Errno::ENOENT)?;
        vnic.neighbour_for(from, quotas).charge(&[Kind::Uninvited])
    }

    /// The holder that a link counts for, if one end did not ask for it.
    pub(crate) fn inviter_of(&self, link: &Link) -> Holder {
        let Some(end) = link.uninvited_end() else { return Holder::default() };
        let inviter = self.tenants.sessions.get(&end.inviter).zip(link.uninvited);
        let holder = inviter.map(|(inviter, way)| inviter.client().holder.in_vnic(way.from.0));
        holder.unwrap_or_default()
    }
}

/// The shortage of a session or vNIC for one more end of a link, where `more` take places already.
fn lack(of: &Account, more: usize, Pending { taken, returned, .. }: Pending) -> QuotaShortage {
    let (then, quota) = (of.count(Kind::Link) + more + 1, of.quota(Kind::Link));
    let left = of.left(Kind::Link);
    // Of each that ends both ends are left for others; what only replaces others needs nothing.
    let fits = |ends: usize| {
        then.saturating_sub(ends) <= left.saturating_add(2 * ends).saturating_sub(taken)
    };
    let mut ends = then.saturating_sub(quota);
    while ends + returned <= more && !fits(ends) {
        ends += 1;
    }
    QuotaShortage { ends, quota }
}
