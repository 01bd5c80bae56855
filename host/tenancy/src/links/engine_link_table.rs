//! Keeps all links to the engine: by their queue pairs, and as they make way for others.
//!
//! Peers on other hosts draw their own numbers: one may be that of a queue pair here, and two
//! datagram peers may have the same.

use super::engine_link::{Cause, EngineLink, EngineLinkAge};
use super::engine_link_ages::LinkAges;
use crate::accounts::{Paid, Receipt};
use crate::row_keys::{RemotePeer, SessionId};
use omniverb_fairness::Holder;
use omniverb_terms::{Gid, Qpn, Service, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

/// All links to the engine.
#[derive(Debug, Default)]
pub(super) struct EngineLinks {
    rows: BTreeMap<(Qpn, RemotePeer), Paid<EngineLink>>,
    seniority: LinkAges,
    /// Those of groups, by their vNICs.
    groups: BTreeSet<Attachment>,
}

/// A vNIC, a group, and a queue pair that is attached to it there by its link to this peer.
type Attachment = (VnicId, Gid, Qpn, Qpn);

/// The attachment that a link is, if it is one.
fn attachment(link: &EngineLink) -> Option<Attachment> {
    let of_group = link.cause == Cause::Group;
    of_group.then_some((link.vnic, link.flow.dgid, link.flow.qpn, link.flow.peer))
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

    /// Like `get`, to change its refused operations.
    pub(super) fn get_mut(&mut self, qpn: Qpn, peer: RemotePeer) -> Option<&mut EngineLink> {
        self.rows.get_mut(&(qpn, peer)).map(|link| &mut **link)
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
        // Nothing would make it anew.
        if link.cause != Cause::Group {
            self.seniority.add(age, holder);
            match link.service {
                Service::Ud => self.seniority.add_datagrams(age, link.session),
                _ => self.seniority.add_connected(age, holder),
            }
        }
        self.groups.extend(attachment(&link));
        if link.cause == Cause::Stranger {
            self.seniority.add_stranger(age, link.vnic);
        }
        self.rows.insert((link.flow.qpn, link.flow.remote_peer()), link);
    }

    /// Those for peers of this number are no more.
    pub(super) fn remove(&mut self, qpn: Qpn, peer: Qpn) -> Vec<EngineLink> {
        let links: Vec<EngineLink> = self.to(qpn, peer).copied().collect();
        for link in &links {
            self.rows.remove(&(qpn, link.flow.remote_peer()));
            self.seniority.remove(&link.age(), link.session, link.vnic);
            if let Some(group) = attachment(link) {
                self.groups.remove(&group);
            }
        }
        links
    }

    /// Whether a vNIC may be in this group: it is already, or in fewer than `most`.
    pub(super) fn may_join(&self, vnic: VnicId, group: Gid, most: usize) -> bool {
        self.is_in(vnic, group) || self.groups_of(vnic).count() < most
    }

    /// Whether some queue pair of the vNIC is attached to a group.
    pub(super) fn is_in_groups(&self, vnic: VnicId) -> bool {
        self.groups_of(vnic).next().is_some()
    }

    /// The vNICs with queue pairs that are attached to groups.
    pub(super) fn in_groups(&self) -> impl Iterator<Item = VnicId> {
        let mut last = None;
        let all = self.groups.iter().map(|(vnic, ..)| *vnic);
        all.filter(move |vnic| last.replace(*vnic) != Some(*vnic))
    }

    /// The links by which queue pairs of a vNIC are attached to groups.
    pub(super) fn attached(&self, vnic: VnicId) -> impl Iterator<Item = &EngineLink> {
        let (least, most) = (Qpn(0), Qpn(u32::MAX));
        let all = (vnic, Gid::ZERO, least, least)..=(vnic, Gid::MAX, most, most);
        self.groups.range(all).filter_map(|(_, group, qpn, peer)| self.get(*qpn, (*peer, *group)))
    }

    /// Whether some queue pair of the vNIC is attached to this group.
    fn is_in(&self, vnic: VnicId, group: Gid) -> bool {
        let least = Qpn(0);
        self.next_group((vnic, group, least, least)) == Some(group)
    }

    /// The groups of a vNIC, in order, each once.
    fn groups_of(&self, vnic: VnicId) -> impl Iterator<Item = Gid> {
        let (least, most) = (Qpn(0), Qpn(u32::MAX));
        let first = self.next_group((vnic, Gid::ZERO, least, least));
        // None of a queue pair is of that number.
        successors(first, move |group| self.next_group((vnic, *group, most, most)))
    }

    /// The first group of a vNIC from there on.
    fn next_group(&self, from: Attachment) -> Option<Gid> {
        let next = self.groups.range(from..).next();
        next.filter(|(vnic, ..)| *vnic == from.0).map(|(_, group, ..)| *group)
    }

    /// Checks that indexes and rows agree.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self) {
        let groups = self.rows.values().filter_map(|link| attachment(link));
        assert_eq!(self.groups, groups.collect(), "attachments to groups, and links");
    }

    /// The receipts of a queue pair's links to peers of this number.
    pub(super) fn receipts(&self, qpn: Qpn, peer: Qpn) -> impl Iterator<Item = &Receipt> {
        let all = self.rows.range((qpn, (peer, Gid::ZERO))..=(qpn, (peer, Gid::MAX)));
        all.map(|(_, link)| link.receipt())
    }

    /// The links that make way among a session's, the first to go first: see
    /// [`LinkAges::oldest`].
    pub(super) fn oldest(&self, session: SessionId) -> impl Iterator<Item = EngineLinkAge> {
        self.seniority.oldest(session)
    }

    /// See [`LinkAges::strangers`].
    pub(super) fn strangers(&self, vnic: VnicId, newcomer: Gid, rested: u64) -> Vec<EngineLinkAge> {
        self.seniority.strangers(vnic, newcomer, rested)
    }

    /// See [`LinkAges::connected_yields_to`].
    pub(super) fn connected_yields_to(&self, newcomer: &Holder) -> Option<EngineLinkAge> {
        self.seniority.connected_yields_to(newcomer)
    }

    /// See [`LinkAges::yields_to`].
    pub(super) fn yields_to(&self, newcomer: &Holder) -> Option<EngineLinkAge> {
        self.seniority.yields_to(newcomer)
    }
}
