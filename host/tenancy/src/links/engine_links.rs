//! All links to the engine: by their queue pairs, and as they make way for others.
//!
//! The numbers of peers are the peers' own: one may be that of somebody here, and datagram peers on
//! different hosts may have the same.

use super::engine_link::{Cause, EngineLink, EngineLinkAge};
use super::seniority::Seniority;
use crate::accounts::Paid;
use crate::fairness::holders::Holder;
use crate::ids::{RemotePeer, SessionId};
use omniverb_terms::{Gid, Qpn, Service, VnicId};
use std::collections::BTreeMap;

/// All links to the engine.
#[derive(Debug, Default)]
pub(super) struct EngineLinks {
    rows: BTreeMap<(Qpn, RemotePeer), Paid<EngineLink>>,
    seniority: Seniority,
    /// How often a vNIC's queue pairs are attached to a group.
    groups: BTreeMap<(VnicId, Gid), usize>,
}

impl EngineLinks {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.seniority.is_empty() && self.groups.is_empty()
    }

    /// All, with what they pay, in the order of their queue pairs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Paid<EngineLink>> {
        self.rows.values()
    }

    pub(super) fn get(&self, qpn: Qpn, peer: RemotePeer) -> Option<&EngineLink> {
        self.rows.get(&(qpn, peer)).map(|link| &**link)
    }

    /// Those of a queue pair from this peer on, in order.
    pub(super) fn of(&self, qpn: Qpn, from: RemotePeer) -> impl Iterator<Item = &EngineLink> {
        let to = (Qpn(u32::MAX), Gid::MAX);
        self.rows.range((qpn, from)..=(qpn, to)).map(|(_, link)| &**link)
    }

    /// Those of a queue pair for peers of this number.
    pub(super) fn to(&self, qpn: Qpn, peer: Qpn) -> impl Iterator<Item = &EngineLink> {
        let all = self.rows.range((qpn, (peer, Gid::ZERO))..=(qpn, (peer, Gid::MAX)));
        all.map(|(_, link)| &**link)
    }

    /// All of them for peers of this number, if there are any, have this cause.
    pub(super) fn all_by(&self, cause: Cause, qpn: Qpn, peer: Qpn) -> bool {
        self.to(qpn, peer).all(|link| link.cause == cause)
    }

    /// One more, counted for this holder.
    pub(super) fn insert(&mut self, link: Paid<EngineLink>, holder: &Holder) {
        let age = link.age();
        // Nobody would make it anew.
        if link.cause != Cause::Group {
            self.seniority.add(age, holder);
            if link.service == Service::Ud {
                self.seniority.add_datagrams(age, link.session);
            }
        }
        if link.cause == Cause::Group {
            *self.groups.entry((link.vnic, link.way.dgid)).or_default() += 1;
        }
        if link.cause == Cause::Stranger {
            self.seniority.add_stranger(age, link.vnic);
        }
        self.rows.insert((link.way.qpn, link.way.remote_peer()), link);
    }

    /// Those for peers of this number are no more.
    pub(super) fn remove(&mut self, qpn: Qpn, peer: Qpn) -> Vec<EngineLink> {
        let links: Vec<EngineLink> = self.to(qpn, peer).copied().collect();
        for link in &links {
            self.rows.remove(&(qpn, link.way.remote_peer()));
            self.seniority.remove(&link.age(), link.session, link.vnic);
            let group = (link.vnic, link.way.dgid);
            if link.cause == Cause::Group
                && let Some(count) = self.groups.get_mut(&group)
            {
                *count -= 1;
                if *count == 0 {
                    self.groups.remove(&group);
                }
            }
        }
        links
    }

    /// Whether a vNIC may be in this group: it is already, or in fewer than `most`.
    pub(super) fn may_join(&self, vnic: VnicId, group: Gid, most: usize) -> bool {
        let all = self.groups.range((vnic, Gid::ZERO)..=(vnic, Gid::MAX));
        self.groups.contains_key(&(vnic, group)) || all.count() < most
    }

    /// Whether some queue pair of the vNIC is attached to a group.
    pub(super) fn is_in_groups(&self, vnic: VnicId) -> bool {
        self.groups.range((vnic, Gid::ZERO)..=(vnic, Gid::MAX)).next().is_some()
    }

    /// The link that makes way first among a session's: see [`Seniority::oldest`].
    pub(super) fn oldest(&self, session: SessionId) -> Option<EngineLinkAge> {
        self.seniority.oldest(session)
    }

    /// See [`Seniority::strangers`].
    pub(super) fn strangers(&self, vnic: VnicId) -> impl Iterator<Item = EngineLinkAge> {
        self.seniority.strangers(vnic)
    }

    /// See [`Seniority::yields_to`].
    pub(super) fn yields_to(&self, newcomer: &Holder) -> Option<EngineLinkAge> {
        self.seniority.yields_to(newcomer)
    }
}
