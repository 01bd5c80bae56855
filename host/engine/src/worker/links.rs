//! Finds the links of a packet thread: by place, by receiver, and by what is to be served.

use super::link::{Ends, Link, Reason};
use crate::command::LimitUnit;
use crate::pacing::fair_schedule::Agenda;
use crate::pages::link_grants::Connected;
use omniverb_datapath::pacing::sender_throttle::Throttle;
use omniverb_terms::{Qpn, Service, VnicId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// All of them, by an index that stays while a link lives.
#[derive(Default)]
pub(super) struct Links {
    /// A link that is being served is not in its place.
    places: Vec<Option<Box<Link>>>,
    free: Vec<usize>,
    /// RC and UC, by QP number.
    by_number: HashMap<Qpn, usize>,
    /// The last result.
    latest: Option<(Qpn, usize)>,
    /// UD, by QP number, peer's address and peer's QP number.
    by_source: BTreeMap<(Qpn, IpAddr, Qpn), usize>,
    /// All, by both QP numbers.
    by_numbers: BTreeSet<(Qpn, Qpn, usize)>,
    /// All, by their vNIC.
    by_vnic: BTreeSet<(VnicId, usize)>,
    /// Throttles UD queue pairs' datagrams to an address, while one of their links has it.
    throttles: HashMap<(VnicId, Qpn, IpAddr), Weak<Throttle>>,
    /// UD, by the group that their queue pairs are attached to by them.
    by_group: BTreeMap<(VnicId, IpAddr), BTreeSet<usize>>,
    /// Those that are to be served.
    agenda: Agenda,
    /// Those whose acknowledgement waits for their application's next turn.
    acknowledge_later: Vec<usize>,
    /// Those whose application naps and is to be woken.
    naps: Vec<usize>,
    /// Those that were served since their counters were shown, each once.
    served: Vec<usize>,
    /// Whether an index is among them.
    is_served: Vec<bool>,
}

impl Links {
    /// A new one.
    pub(super) fn insert(&mut self, link: Link) -> usize {
        let index = self.free.pop().unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
            self.is_served.push(false);
        }
        self.was_served(index);
        let Ends { vnic, qpn, peer_qpn, service, flow, .. } = *link.ends();
        if peer_qpn.is_group() {
            self.by_group.entry((vnic, flow.destination)).or_default().insert(index);
        }
        if service == Service::Ud {
            self.by_source.insert((qpn, flow.destination, peer_qpn), index);
        } else {
            self.by_number.insert(qpn, index);
            self.latest = None;
        }
        self.by_numbers.insert((qpn, peer_qpn, index));
        self.by_vnic.insert((vnic, index));
        self.places[index] = Some(Box::new(link));
        index
    }

    /// It is gone.
    pub(super) fn remove(&mut self, index: usize) -> Option<Box<Link>> {
        let link = self.places.get_mut(index)?.take()?;
        let Ends { vnic, qpn, peer_qpn, service, flow, .. } = *link.ends();
        if peer_qpn.is_group()
            && let Some(all) = self.by_group.get_mut(&(vnic, flow.destination))
        {
            all.remove(&index);
            if all.is_empty() {
                self.by_group.remove(&(vnic, flow.destination));
            }
        }
        self.by_numbers.remove(&(qpn, peer_qpn, index));
        self.by_vnic.remove(&(vnic, index));
        if service == Service::Ud {
            let source = (qpn, flow.destination, peer_qpn);
            if self.by_source.get(&source) == Some(&index) {
                self.by_source.remove(&source);
            }
            // The link that goes has it still.
            let throttle = (vnic, qpn, flow.destination);
            if self.throttles.get(&throttle).is_some_and(|shared| shared.strong_count() <= 1) {
                self.throttles.remove(&throttle);
            }
        } else if self.by_number.get(&qpn) == Some(&index) {
            self.by_number.remove(&qpn);
            self.latest = None;
        }
        if link.is_queued() {
            self.agenda.remove(vnic, index);
        }
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
        self.places.get_mut(index)?.take()
    }

    /// It was served.
    pub(super) fn put_back(&mut self, index: usize, link: Box<Link>) {
        if let Some(place) = self.places.get_mut(index) {
            *place = Some(link);
        }
        self.was_served(index);
    }

    /// There is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_numbers.is_empty() && self.places.iter().all(Option::is_none)
    }

    /// Its counters are to be shown.
    fn was_served(&mut self, index: usize) {
        let noted = self.is_served.get_mut(index);
        if noted.is_some_and(|noted| !std::mem::replace(noted, true)) {
            self.served.push(index);
        }
    }

    /// Those that were served, or are new, since this was asked last.
    pub(super) fn take_served(&mut self) -> impl Iterator<Item = &Link> {
        for index in &self.served {
            self.is_served[*index] = false;
        }
        let served = std::mem::take(&mut self.served);
        served.into_iter().filter_map(|index| self.places.get(index)?.as_deref())
    }

    /// The indices of those of two queue pairs with these numbers: datagram peers on different
    /// hosts may have the same.
    pub(super) fn of(&self, qpn: Qpn, peer_qpn: Qpn) -> Vec<usize> {
        let all = (qpn, peer_qpn, 0)..=(qpn, peer_qpn, usize::MAX);
        self.by_numbers.range(all).map(|(_, _, index)| *index).collect()
    }

    /// The indices of those of a vNIC.
    pub(super) fn of_vnic(&self, vnic: VnicId) -> Vec<usize> {
        let all = (vnic, 0)..=(vnic, usize::MAX);
        self.by_vnic.range(all).map(|(_, index)| *index).collect()
    }

    /// The throttle of a UD queue pair's datagrams to an address; a link to there shares it.
    pub(super) fn throttle(&mut self, vnic: VnicId, qpn: Qpn, to: IpAddr) -> Arc<Throttle> {
        let shared = self.throttles.entry((vnic, qpn, to)).or_default();
        shared.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *shared = Arc::downgrade(&new);
            new
        })
    }

    /// Like `throttle`, if a link has it.
    pub(super) fn throttled(&self, vnic: VnicId, qpn: Qpn, to: IpAddr) -> Option<Arc<Throttle>> {
        self.throttles.get(&(vnic, qpn, to))?.upgrade()
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
        let link = self.get_mut(index).filter(|link| link.ends().peer_qpn == peer_qpn)?;
        let vnic = link.ends().vnic;
        Some((vnic, link.connected_mut()?))
    }

    /// Those by which queue pairs of a vNIC are attached to this group.
    pub(super) fn attached(&self, vnic: VnicId, group: IpAddr) -> Vec<usize> {
        self.by_group.get(&(vnic, group)).into_iter().flatten().copied().collect()
    }

    /// The UD link of this queue pair with that source.
    pub(super) fn datagrams(&self, qpn: Qpn, from: IpAddr, source: Qpn) -> Option<usize> {
        self.by_source.get(&(qpn, from, source)).copied()
    }

    /// Where the link of the peer is, if that is a queue pair of this engine. A number is no right:
    /// the link must be of the vNIC that the network led to, and lead back here.
    pub(super) fn opposite(&self, ends: &Ends) -> Option<usize> {
        let index = if ends.service == Service::Ud {
            self.datagrams(ends.peer_qpn, ends.flow.source, ends.qpn)?
        } else {
            *self.by_number.get(&ends.peer_qpn)?
        };
        // A link that is being served is not in its place: its own peer asks.
        let there = self.get(index).map_or(ends, Link::ends);
        let back = Some(there.vnic) == ends.within && there.peer_qpn == ends.qpn;
        back.then_some(index)
    }

    /// This one is to be served.
    pub(super) fn touch(&mut self, index: usize, reason: Reason) {
        let Some(Some(link)) = self.places.get_mut(index) else { return };
        if link.is_wanted(reason) {
            self.agenda.add(link.ends().vnic, index);
        }
    }

    /// How many are to be served.
    pub(super) fn waiting(&self) -> usize {
        self.agenda.len()
    }

    /// The next one to serve.
    pub(super) fn next(&mut self) -> Option<usize> {
        let index = self.agenda.next()?;
        if let Some(link) = self.get_mut(index) {
            link.begin();
        }
        Some(index)
    }

    /// These may send again.
    pub(super) fn unpark(&mut self, unit: LimitUnit, parked: impl IntoIterator<Item = usize>) {
        for index in parked {
            if let Some(link) = self.get_mut(index) {
                link.unpark(unit);
            }
            self.touch(index, Reason::News);
        }
    }

    /// This one's acknowledgement leaves after its application's next turn.
    pub(super) fn acknowledge_later(&mut self, index: usize) {
        self.acknowledge_later.push(index);
    }

    /// That turn is over.
    pub(super) fn acknowledge_now(&mut self) {
        for index in std::mem::take(&mut self.acknowledge_later) {
            self.touch(index, Reason::Look);
        }
    }

    /// Whether some acknowledgement waits for that.
    pub(super) fn some_acknowledge_later(&self) -> bool {
        !self.acknowledge_later.is_empty()
    }

    /// This one's application naps and waits for what has happened.
    pub(super) fn wake_later(&mut self, index: usize) {
        self.naps.push(index);
    }

    /// Wakes all that [`Links::wake_later`] has noted.
    pub(super) fn wake(&mut self) {
        let mut naps = std::mem::take(&mut self.naps);
        for index in naps.drain(..) {
            if let Some(link) = self.get_mut(index) {
                link.wake_napping();
            }
        }
        // Its memory is used again.
        self.naps = naps;
    }
}
