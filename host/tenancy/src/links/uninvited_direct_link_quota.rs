//! Counts direct datagram links that one end did not ask for, and chooses those that make way.
//!
//! They need no consent, so an attacker with many vNICs could fill another's quota with them. So
//! they get half of a process's and a vNIC's quota; in that half the largest holder
//! (`support/fairness`) makes way for a smaller one; and where a link that was asked for finds no
//! place, one of them goes.

use crate::row_keys::{LinkKey, SessionId};
use omniverb_fairness::{Holder, Holders};
use omniverb_terms::{Errno, VnicId};
use std::collections::HashMap;

/// Their openers, by the end that did not ask. Rows without any are not kept.
#[derive(Debug, Default)]
pub(crate) struct Uninvited {
    sessions: HashMap<SessionId, Holders<LinkKey>>,
    vnics: HashMap<VnicId, Holders<LinkKey>>,
}

impl Uninvited {
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.vnics.is_empty()
    }

    /// A link to this end, opened by that holder.
    pub(crate) fn add(
        &mut self,
        (session, vnic): (SessionId, VnicId),
        holder: &Holder,
        key: LinkKey,
    ) {
        self.sessions.entry(session).or_default().add(holder, key);
        self.vnics.entry(vnic).or_default().add(holder, key);
    }

    /// The link of a session's that makes way for one more, if one must. `newcomer`: the opener, if
    /// it was not asked for.
    pub(crate) fn in_session(
        &self,
        session: SessionId,
        lack: QuotaShortage,
        newcomer: Option<&Holder>,
    ) -> Result<Option<LinkKey>, Errno> {
        makes_way(self.sessions.get(&session), lack, newcomer)
    }

    /// The link of a vNIC's that makes way for one more, if one must.
    pub(crate) fn in_vnic(
        &self,
        vnic: VnicId,
        lack: QuotaShortage,
        newcomer: Option<&Holder>,
    ) -> Result<Option<LinkKey>, Errno> {
        makes_way(self.vnics.get(&vnic), lack, newcomer)
    }

    /// A link that its end did not ask for has ended.
    pub(crate) fn remove(&mut self, (session, vnic): (SessionId, VnicId), key: LinkKey) {
        let without = |links: &mut Holders<LinkKey>| {
            links.remove(&key);
            links.is_empty()
        };
        if self.sessions.get_mut(&session).is_some_and(without) {
            self.sessions.remove(&session);
        }
        if self.vnics.get_mut(&vnic).is_some_and(without) {
            self.vnics.remove(&vnic);
        }
    }
}

/// The shortage of a party for one more link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaShortage {
    /// Links of its own that must end first.
    pub(crate) ends: usize,
    /// How many it may have.
    pub(crate) quota: usize,
}

/// How many may end for one that its party asks for: each of its ends may need a place of the same
/// party.
pub(crate) const ENDED_MAX: usize = 2;

/// Their share of a quota.
fn share(quota: usize) -> usize {
    quota.div_ceil(2)
}

/// The link that makes way in one table, if one must; none where more must than may.
fn makes_way(
    links: Option<&Holders<LinkKey>>,
    QuotaShortage { ends, quota }: QuotaShortage,
    newcomer: Option<&Holder>,
) -> Result<Option<LinkKey>, Errno> {
    let count = links.map_or(0, Holders::len);
    let shared = newcomer.is_some() && count >= share(quota);
    let needed = ends.max(usize::from(shared));
    let most = if newcomer.is_some() { 1 } else { ENDED_MAX };
    if needed == 0 {
        return Ok(None);
    }
    if needed > most.min(count) {
        return Err(Errno::ENOMEM);
    }
    let found = links.and_then(|links| match newcomer {
        Some(holder) => links.yields_to(holder),
        None => links.yields(),
    });
    found.copied().map(Some).ok_or(Errno::ENOMEM)
}
