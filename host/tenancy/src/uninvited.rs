//! Direct datagram links that one end did not ask for: a share of their own of what a process and
//! a vNIC may have, and who loses one when that is used up.
//!
//! They need no consent, so whoever has many vNICs could fill somebody's quota with them. So they
//! get half of it; in that half the largest holder (`holders.rs`) makes way for whoever has less;
//! and where a link that was asked for finds no place, one of them goes.

use crate::accounts::{Account, Kind, Quotas, Receipt};
use crate::holders::{Holder, Holders};
use crate::ids::{LinkKey, SessionId, VnicId};
use crate::tables::Link;
use crate::tenancy::Tenancy;
use omniverb_session::body::CLOSED_BY_PEER;
use omniverb_terms::Errno;
use std::collections::HashMap;

/// Who opened them, by the end that did not ask. Rows without any are not kept.
#[derive(Debug, Default)]
pub(crate) struct Uninvited {
    sessions: HashMap<SessionId, Holders<LinkKey>>,
    vnics: HashMap<VnicId, Holders<LinkKey>>,
}

impl Uninvited {
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.vnics.is_empty()
    }

    fn add(&mut self, (session, vnic): (SessionId, VnicId), holder: &Holder, key: LinkKey) {
        self.sessions.entry(session).or_default().add(holder, key);
        self.vnics.entry(vnic).or_default().add(holder, key);
    }

    fn remove(&mut self, (session, vnic): (SessionId, VnicId), key: LinkKey) {
        let without = |held: &mut Holders<LinkKey>| {
            held.remove(&key);
            held.is_empty()
        };
        if self.sessions.get_mut(&session).is_some_and(without) {
            self.sessions.remove(&session);
        }
        if self.vnics.get_mut(&vnic).is_some_and(without) {
            self.vnics.remove(&vnic);
        }
    }
}

/// What of a quota they may use.
fn share(quota: usize) -> usize {
    quota.div_ceil(2)
}

/// The link that makes way in one table, if one must.
fn makes_way(
    held: Option<&Holders<LinkKey>>,
    (used, quota): (usize, usize),
    newcomer: Option<&Holder>,
) -> Result<Option<LinkKey>, Errno> {
    let shared = newcomer.is_some() && held.map_or(0, Holders::len) >= share(quota);
    if used < quota && !shared {
        return Ok(None);
    }
    let found = held.and_then(|held| match newcomer {
        Some(holder) => held.yields_to(holder),
        None => held.yields(),
    });
    found.copied().map(Some).ok_or(Errno::ENOMEM)
}

impl Tenancy {
    /// Makes room for a link between queue pairs; nobody loses one for a link that cannot be made
    /// all the same. `uninvited` as for [`make_link`](Self::make_link).
    pub(crate) fn make_way(
        &mut self,
        key: LinkKey,
        uninvited: Option<(VnicId, VnicId)>,
    ) -> Result<(), Errno> {
        let first = self.qps.get(&key.0).ok_or(Errno::ENOENT)?;
        let second = self.qps.get(&key.1).ok_or(Errno::ENOENT)?;
        let ends = [(first.session, first.vnic), (second.session, second.vnic)];
        if !self.bells.has_room(ends[0].0, ends[1].0) {
            return Err(Errno::ENOMEM);
        }
        let holder = match uninvited {
            Some((from, to)) => {
                let held = self.vnics.get(&to).and_then(|vnic| vnic.uninvited.get(&from));
                if held.is_some_and(|held| held.full(&[Kind::Uninvited]).is_some()) {
                    return Err(Errno::ENOMEM);
                }
                let inviter = ends.iter().find(|(_, vnic)| *vnic == from).ok_or(Errno::ENOENT)?.0;
                let inviter = self.sessions.get(&inviter).ok_or(Errno::ENOENT)?;
                Some((to, inviter.client.holder.in_vnic(from)))
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
        let of_session = links(&session.account, more[0]);
        let found = makes_way(self.uninvited.sessions.get(&id), of_session, newcomer)?;
        let of_vnic = links(&vnic.account, more[1]);
        let in_vnic = makes_way(self.uninvited.vnics.get(&key), of_vnic, newcomer)?;
        // What the process loses is room in its vNIC, too.
        Ok(found.or(in_vnic))
    }

    fn end_uninvited(&mut self, LinkKey(one, other): LinkKey) {
        if self.links.contains_key(&LinkKey(one, other)) {
            self.close_link(one, other, CLOSED_BY_PEER);
            self.refuse_wish(one, other);
        }
    }

    /// What a link that its second vNIC did not ask for pays, of what the first may have of that.
    pub(crate) fn charge_uninvited(
        &mut self,
        (from, to): (VnicId, VnicId),
    ) -> Result<Receipt, Errno> {
        let vnic = self.vnics.get_mut(&to).ok_or(Errno::ENOENT)?;
        let open = || vnic.account.below(Quotas::of_neighbour(&self.limits));
        vnic.uninvited.entry(from).or_insert_with(open).charge(&[Kind::Uninvited])
    }

    /// Notes whose a link is, if one end did not ask for it.
    pub(crate) fn add_uninvited(&mut self, key: LinkKey, link: &Link) {
        let Some((from, to)) = link.uninvited else { return };
        let end = usize::from(link.vnics[1] == to);
        let inviter = self.sessions.get(&link.sessions[1 - end]);
        let holder = inviter.map(|inviter| inviter.client.holder.in_vnic(from));
        let holder = holder.unwrap_or_default();
        self.uninvited.add((link.sessions[end], to), &holder, key);
    }

    /// The same when it is no more.
    pub(crate) fn remove_uninvited(&mut self, key: LinkKey, link: &Link) {
        let Some((_, to)) = link.uninvited else { return };
        let session = link.sessions[usize::from(link.vnics[1] == to)];
        self.uninvited.remove((session, to), key);
    }
}
