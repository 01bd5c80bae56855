//! A link is served: what its application did is taken, what is to be sent is sent.

use super::link::{Kind, Link};
use super::links::Reason;
use super::state::State;
use super::timers::Due;
use super::vnic::{Vnic, framing};
use crate::command::Event;
use crate::identity::VnicId;
use crate::network::train::Train;
use omniverb_sys::clock;
use omniverb_wire::{Identification, Pattern};

/// Packets of one link between two looks at others.
const PACKETS_PER_TURN: usize = 128;

impl State {
    /// Serves a link. True: there is more than fits into one turn.
    pub(super) fn serve(&mut self, index: usize) -> bool {
        let Some(mut link) = self.links.take(index) else { return false };
        let now = clock::now();
        let mut came_up = false;
        let mut more = match &mut link.kind {
            Kind::Connected(connected) => {
                let was_ready = connected.is_ready();
                let more = connected.serve(now);
                came_up = !was_ready && connected.is_ready();
                more
            }
            Kind::Datagrams(datagrams) => {
                datagrams.serve();
                false
            }
        };
        self.ask_for_grants(&mut link, now);
        if link.hold(now) {
            self.acknowledge_later.push(index);
        } else {
            more |= self.transmit(index, &mut link, now);
        }
        if let Kind::Connected(connected) = &mut link.kind {
            connected.after();
            if let Some(status) = connected.take_failure() {
                let (qpn, peer_qpn) = (link.qpn, link.peer_qpn);
                let _ = self.outbox.post(Event::Failed { qpn, peer_qpn, status });
            }
        }
        if link.nap_is_over() {
            self.naps.push(index);
        }
        let next = link.next_timeout(now);
        link.armed = self.timers.arm(Due::Link(index), link.armed, next);
        self.links.put_back(index, link);
        if more {
            self.links.touch(index, Reason::News);
        }
        if came_up {
            self.take_early(index);
        }
        more
    }

    /// Sends what there is. True: more than fits into one turn.
    fn transmit(&mut self, index: usize, link: &mut Link, now: u64) -> bool {
        let Some(mut train) = self.train.take() else { return false };
        let more = self.fill(index, link, &mut train, now);
        if !train.is_empty() {
            self.depart(link, &mut train);
            train.clear();
        }
        self.train = Some(train);
        more
    }

    fn fill(&mut self, index: usize, link: &mut Link, train: &mut Train, now: u64) -> bool {
        let six = link.flow.destination.is_ipv6();
        let vnic = self.vnics.get(&link.vnic);
        let count_max = vnic.map_or(1, |vnic| vnic.sockets.train_max(link.flow.destination)).max(1);
        let limited = vnic.is_some_and(Vnic::is_limited);
        let mut left = PACKETS_PER_TURN;
        loop {
            if limited
                && let Some(vnic) = self.vnics.get_mut(&link.vnic)
                && let Err(at) = vnic.may_send(now)
            {
                if !std::mem::replace(&mut link.parked, true) {
                    vnic.parked.push(index);
                }
                vnic.armed = self.timers.arm(Due::Vnic(link.vnic), vnic.armed, Some(at));
                self.tell_delay(link, train, now, at);
                return false;
            }
            let length = match &mut link.kind {
                Kind::Connected(connected) => connected.transmit(now, train.tail()),
                Kind::Datagrams(datagrams) => {
                    datagrams.transmit(now, train.tail(), &mut self.message)
                }
            };
            let Some(length) = length else { return false };
            link.counted.sent_packets += 1;
            link.counted.sent_bytes += length as u64;
            if limited && let Some(vnic) = self.vnics.get_mut(&link.vnic) {
                vnic.sent(length as u64 + framing(six));
            }
            left = left.saturating_sub(1);
            if train.accepts(length, count_max) {
                train.append(length);
            } else {
                self.depart(link, train);
                train.restart(length);
            }
            if !limited
                && Pattern::may_begin(train.latest(length))
                && let Kind::Connected(connected) = &mut link.kind
            {
                let (datagrams, room) = train.behind(count_max);
                let alike = connected.transmit_alike(now, datagrams, length, room.min(left));
                train.extend(alike);
                left -= alike;
                link.counted.sent_packets += alike as u64;
                link.counted.sent_bytes += (alike * length) as u64;
            }
            if !link.within {
                train.seal(&link.flow);
            }
            // A turn ends with a train, not in the middle of one.
            if train.is_full(count_max) {
                let count = train.count();
                self.depart(link, train);
                train.clear();
                if left < count {
                    return true;
                }
            } else if left == 0 {
                return true;
            }
        }
    }

    /// Nothing may be sent until `at`; the peer may have to know.
    fn tell_delay(&mut self, link: &mut Link, train: &mut Train, now: u64, at: u64) {
        let Kind::Connected(connected) = &mut link.kind else { return };
        let Some(vnic) = self.vnics.get_mut(&link.vnic) else { return };
        if !vnic.may_notice(now) {
            return;
        }
        // All that wait take turns.
        let wait = at.saturating_sub(now).saturating_mul(vnic.parked.len() as u64);
        let Some(length) = connected.delay(now, wait, train.tail()) else { return };
        vnic.noticed(length as u64 + framing(link.flow.destination.is_ipv6()));
        link.counted.sent_packets += 1;
        link.counted.sent_bytes += length as u64;
        // By itself: it is not like others.
        if !train.is_empty() {
            self.depart(link, train);
        }
        train.restart(length);
    }

    /// The train leaves: through the network, or straight to a link of ours.
    fn depart(&mut self, link: &Link, train: &mut Train) {
        if !self.vnics.contains_key(&link.vnic) {
            return;
        }
        let near = link.within.then(|| self.links.opposite(link));
        self.copy(link.vnic, link, train);
        match near.flatten() {
            Some(to) if self.near_detour(to, link, train) => {}
            Some(to) => {
                // What comes from the network is copied where it arrives.
                let vnic = self.links.get(to).map(|near| near.vnic);
                if let Some(vnic) = vnic.filter(|vnic| *vnic != link.vnic) {
                    self.copy(vnic, link, train);
                }
                for packet in train.packets() {
                    self.passages.add(to, link.flow.source, packet);
                }
            }
            None => {
                let segment = train.segment();
                let bytes = train.seal(&link.flow);
                let Some(vnic) = self.vnics.get_mut(&link.vnic) else { return };
                if link.within {
                    // It may come back to this vNIC.
                    vnic.tap.has_sent(link.flow.source);
                }
                vnic.sockets.send(&link.flow, link.interface, bytes, segment);
            }
        }
    }

    /// For whoever captures the packets of this vNIC.
    fn copy(&mut self, vnic: VnicId, link: &Link, train: &mut Train) {
        let Some(vnic) = self.vnics.get_mut(&vnic).filter(|vnic| vnic.tap.is_on()) else { return };
        train.seal(&link.flow);
        for (id, packet) in (0..).zip(train.packets()) {
            let identification = Identification { id, dont_fragment: true };
            vnic.tap.add(&link.flow, identification, 2, packet);
        }
    }
}
