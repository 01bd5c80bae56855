//! The links of a packet thread: where each is, who it is for, and which are to be served.

use super::link::{Kind, Link};
use crate::identity::VnicId;
use crate::pacing::agenda::Agenda;
use crate::queue_pair::connected::Connected;
use omniverb_terms::{Qpn, Service};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Why a link is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Something has happened.
    News,
    /// Time has passed; nothing is known to have happened.
    Look,
}

/// All of them, by an index that stays while a link lives.
#[derive(Default)]
pub(super) struct Links {
    /// A link that is being served is not in its place.
    places: Vec<Option<Box<Link>>>,
    free: Vec<usize>,
    /// RC and UC, by QP number.
    by_number: HashMap<Qpn, usize>,
    /// What was last found in it.
    latest: Option<(Qpn, usize)>,
    /// UD, by QP number, peer's address and peer's QP number.
    by_source: BTreeMap<(Qpn, IpAddr, Qpn), usize>,
    /// Those whose `queued` is set.
    agenda: Agenda,
}

impl Links {
    /// A new one.
    pub(super) fn insert(&mut self, link: Link) -> usize {
        let index = self.free.pop().unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        if link.service == Service::Ud {
            self.by_source.insert((link.qpn, link.flow.destination, link.peer_qpn), index);
        } else {
            self.by_number.insert(link.qpn, index);
            self.latest = None;
        }
        self.places[index] = Some(Box::new(link));
        index
    }

    /// It is gone.
    pub(super) fn remove(&mut self, index: usize) -> Option<Box<Link>> {
        let link = self.places.get_mut(index)?.take()?;
        if link.service == Service::Ud {
            self.by_source.remove(&(link.qpn, link.flow.destination, link.peer_qpn));
        } else if self.by_number.get(&link.qpn) == Some(&index) {
            self.by_number.remove(&link.qpn);
            self.latest = None;
        }
        self.agenda.remove(link.vnic, index);
        self.free.push(index);
        Some(link)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Link> {
        self.places.get(index)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Link> {
        self.places.get_mut(index)?.as_deref_mut()
    }

    /// Takes one from its place, to serve it.
    pub(super) fn take(&mut self, index: usize) -> Option<Box<Link>> {
        let mut link = self.places.get_mut(index)?.take()?;
        link.queued = false;
        Some(link)
    }

    /// It was served.
    pub(super) fn put_back(&mut self, index: usize, link: Box<Link>) {
        if let Some(place) = self.places.get_mut(index) {
            *place = Some(link);
        }
    }

    /// Those that are in their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.places.iter().flatten().map(Box::as_ref)
    }

    /// The indices of those for which this holds.
    pub(super) fn those(&self, which: impl Fn(&Link) -> bool) -> Vec<usize> {
        let those = |index: &usize| self.get(*index).is_some_and(&which);
        (0..self.places.len()).filter(those).collect()
    }

    /// The RC or UC link of this queue pair; mostly that of the packet before.
    pub(super) fn connected(&mut self, qpn: Qpn) -> Option<usize> {
        if let Some((latest, index)) = self.latest
            && latest == qpn
        {
            return Some(index);
        }
        let index = *self.by_number.get(&qpn)?;
        self.latest = Some((qpn, index));
        Some(index)
    }

    /// The queue pair of the RC or UC link of these two, and its vNIC.
    pub(super) fn between(&mut self, qpn: Qpn, peer_qpn: Qpn) -> Option<(VnicId, &mut Connected)> {
        let index = *self.by_number.get(&qpn)?;
        let link = self.get_mut(index).filter(|link| link.peer_qpn == peer_qpn)?;
        match &mut link.kind {
            Kind::Connected(connected) => Some((link.vnic, connected)),
            Kind::Datagrams(_) => None,
        }
    }

    /// The UD link of this queue pair with that source.
    pub(super) fn datagrams(&self, qpn: Qpn, from: IpAddr, source: Qpn) -> Option<usize> {
        self.by_source.get(&(qpn, from, source)).copied()
    }

    /// All links of this queue pair that queue pairs of these numbers there may be meant by.
    pub(super) fn all_of(
        &self,
        qpn: Qpn,
        from: IpAddr,
        sources: RangeInclusive<Qpn>,
    ) -> Vec<usize> {
        let (first, last) = sources.into_inner();
        let datagrams = self.by_source.range((qpn, from, first)..=(qpn, from, last));
        let connected = self.by_number.get(&qpn).copied();
        connected.into_iter().chain(datagrams.map(|(_, index)| *index)).collect()
    }

    /// Where the link of the peer is, if that is a queue pair of this engine.
    pub(super) fn opposite(&self, link: &Link) -> Option<usize> {
        if link.service == Service::Ud {
            self.datagrams(link.peer_qpn, link.flow.source, link.qpn)
        } else {
            self.by_number.get(&link.peer_qpn).copied()
        }
    }

    /// This one is to be served.
    pub(super) fn touch(&mut self, index: usize, reason: Reason) {
        let Some(Some(link)) = self.places.get_mut(index) else { return };
        let looks = reason == Reason::Look;
        if std::mem::replace(&mut link.queued, true) {
            link.looked_again &= looks;
        } else {
            link.looked_again = looks;
            self.agenda.add(link.vnic, index);
        }
    }

    /// How many are to be served.
    pub(super) fn waiting(&self) -> usize {
        self.agenda.len()
    }

    /// The next one to serve.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.agenda.next()
    }

    /// These may send again.
    pub(super) fn unpark(&mut self, parked: Vec<usize>) {
        for index in parked {
            if let Some(link) = self.get_mut(index) {
                link.parked = false;
            }
            self.touch(index, Reason::News);
        }
    }
}
