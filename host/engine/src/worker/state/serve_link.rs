//! Serves a link: reads the application's requests and sends its packets.

use super::{LINKS_PER_TURN, State};
use crate::command::{Event, LimitUnit};
use crate::network::local_forwarding::LinkLocation;
use crate::network::roce_port::Sent;
use crate::worker::link::{Ends, Link, Reason, Served};
use crate::worker::links_held_by_rate_limit::{Gate, framing};
use crate::worker::pending_work::WorkLeft;
use crate::worker::rate_limit_tree::RateLimits;
use omniverb_datapath::link_clock::Now;
use omniverb_datapath::pacing::unreliable_message_window::PacketRoute;
use omniverb_datapath::packet_train::Train;
use omniverb_pacer::OPERATION;
use omniverb_terms::{Qpn, VnicId};
use omniverb_wire::{Fragments, Identification, WritePattern};

/// Budget: packets of one link between two looks at others.
const PACKETS_PER_TURN: usize = 128;

/// A link that waits for it may begin an operation, which is taken from its vNIC's limit.
fn begin_operation(gate: &mut Gate, link: &mut Link, limits: &mut RateLimits, now: u64) -> bool {
    let Some(operations) = link.operations().filter(|operations| operations.is_awaited()) else {
        return false;
    };
    operations.give();
    gate.passed(OPERATION, limits, now);
    true
}

impl State {
    /// Serves a link.
    pub(super) fn serve(&mut self, index: usize) -> WorkLeft {
        let Some(mut link) = self.links.take(index) else { return WorkLeft::Nothing };
        let now = self.now();
        let Served { mut left, is_new } = link.serve(now.links);
        self.ask_for_grants(&mut link, now.clock);
        if link.waits_for_company(now.links) {
            self.links.acknowledge_later(index);
        } else {
            left = left.or(self.transmit(index, &mut link, now));
        }
        if let Some(status) = link.settle() {
            let Ends { vnic, qpn, peer_qpn, .. } = *link.ends();
            let _ = self.outbox.post(vnic, Event::Failed { qpn, peer_qpn, status });
        }
        if link.nap_is_over() {
            self.links.wake_later(index);
        }
        link.set_alarm(index, &mut self.timers, now.links);
        self.links.put_back(index, link);
        if left == WorkLeft::Something {
            self.links.touch(index, Reason::News);
        }
        if is_new {
            self.take_unclaimed(index);
        }
        left
    }

    /// Sends what there is.
    fn transmit(&mut self, index: usize, link: &mut Link, now: Now) -> WorkLeft {
        let Some(mut train) = self.train.take() else { return WorkLeft::Nothing };
        link.take_way(self.way_of(link.ends()));
        let left = self.fill(index, link, &mut train, now);
        if !train.is_empty() {
            self.depart(link, &mut train);
            train.clear();
        }
        self.train = Some(train);
        left
    }

    /// How packets get to a link's peer.
    fn way_of(&self, ends: &Ends) -> PacketRoute {
        match ends.within.map(|_| self.links.opposite(ends)) {
            None => PacketRoute::Only,
            Some(None) => PacketRoute::Long,
            Some(Some(_)) => PacketRoute::Short,
        }
    }

    fn fill(&mut self, index: usize, link: &mut Link, train: &mut Train, now: Now) -> WorkLeft {
        let Ends { vnic: id, flow, within, .. } = *link.ends();
        let framing = framing(flow.destination);
        let vnic = self.vnics.get(id);
        let count_max = vnic.map_or(1, |vnic| vnic.sockets.train_max(flow.destination)).max(1);
        let limited = vnic.is_some_and(|vnic| vnic.gates.bytes.is_limited());
        let counted = vnic.is_some_and(|vnic| vnic.gates.operations.is_limited());
        match link.operations() {
            Some(operations) if counted => operations.require(),
            Some(operations) => operations.lift(),
            None => {}
        }
        let mut room = PACKETS_PER_TURN;
        loop {
            if limited
                && let Some(vnic) = self.vnics.get_mut(id)
                && let Err(at) =
                    vnic.gates.bytes.pass((index, link), &mut self.limits.bytes, now.clock)
            {
                self.tell_delay(link, train, now, at);
                return WorkLeft::Nothing;
            }
            let Some(length) = link.transmit(now.links, train, &mut self.message) else {
                if counted && self.admit_operation(index, link, now.clock) {
                    continue;
                }
                return WorkLeft::Nothing;
            };
            if limited && let Some(vnic) = self.vnics.get_mut(id) {
                let bytes = length as u64 + framing;
                vnic.gates.bytes.passed(bytes, &mut self.limits.bytes, now.clock);
            }
            room = room.saturating_sub(1);
            if train.accepts(length, count_max) {
                train.append(length);
            } else {
                self.depart(link, train);
                train.restart(length);
            }
            if !limited && WritePattern::may_begin(train.latest(length)) {
                room -= link.transmit_alike(now.links, train, length, (room, count_max));
            }
            if within.is_none() {
                train.seal(&flow);
            }
            // A turn ends with a train, not in the middle of one.
            if train.is_full(count_max) {
                let count = train.count();
                self.depart(link, train);
                train.clear();
                if room < count {
                    return WorkLeft::Something;
                }
            } else if room == 0 {
                return WorkLeft::Something;
            }
        }
    }

    /// A link has sent all that it may. Whether it may begin another operation now; if not, and
    /// that is what it lacks, it waits for it.
    fn admit_operation(&mut self, index: usize, link: &mut Link, now: u64) -> bool {
        let (vnic, limits) = (link.ends().vnic, &mut self.limits.operations);
        let Some(vnic) = self.vnics.get_mut(vnic) else { return false };
        let gate = &mut vnic.gates.operations;
        link.operations().is_some_and(|operations| operations.is_awaited())
            && gate.pass((index, link), limits, now).is_ok()
            && begin_operation(gate, link, limits, now)
    }

    /// Serves links of vNICs whose limits let them send, as many as a turn allows.
    pub(super) fn serve_limited(&mut self, now: u64) -> bool {
        let units = [LimitUnit::Operations, LimitUnit::Bytes];
        units.map(|unit| self.serve_limited_by(unit, now)).contains(&true)
    }

    fn serve_limited_by(&mut self, unit: LimitUnit, now: u64) -> bool {
        let mut any = false;
        for _ in 0..LINKS_PER_TURN {
            let limits = self.limits.of(unit);
            let Some(id) = limits.next(now) else { break };
            any = true;
            let Some(gate) = self.vnics.get_mut(id).map(|vnic| vnic.gates.of(unit)) else {
                continue;
            };
            let Some(index) = gate.begin_turn() else { continue };
            if let Some(link) = self.links.get_mut(index) {
                link.unpark(unit);
                // It takes its operation along, also where it then waits for its bytes.
                if unit == LimitUnit::Operations {
                    begin_operation(gate, link, limits, now);
                }
            }
            self.serve(index);
            self.deliver_passages();
            if let Some(vnic) = self.vnics.get_mut(id) {
                vnic.gates.of(unit).end_turn(self.limits.of(unit), now);
            }
        }
        any
    }

    /// Nothing may be sent until `at`; the peer may have to know.
    fn tell_delay(&mut self, link: &mut Link, train: &mut Train, now: Now, at: u64) {
        let Ends { vnic, flow, .. } = *link.ends();
        if link.connected_mut().is_none() {
            return;
        }
        let Some(vnic) = self.vnics.get_mut(vnic) else { return };
        let Some(wait) = vnic.gates.bytes.notice(at, now.clock) else { return };
        let Some(length) = link.delay(now.links, wait, train) else { return };
        let bytes = length as u64 + framing(flow.destination);
        vnic.gates.bytes.noticed(bytes, &mut self.limits.bytes, now.clock);
        // By itself: it is not like others.
        if !train.is_empty() {
            self.depart(link, train);
        }
        train.restart(length);
    }

    /// The train leaves: through the network, or straight to a link of ours.
    fn depart(&mut self, link: &mut Link, train: &mut Train) {
        let ends = &link.ends().clone();
        if !self.vnics.is_open(ends.vnic) {
            return;
        }
        self.copy(ends.vnic, ends, train);
        match self.near(ends) {
            Some(there) if self.near_detour(there, ends, train) => {}
            Some(there) => {
                // Packets from the network are copied where they arrive.
                if there.vnic != ends.vnic {
                    self.copy(there.vnic, ends, train);
                }
                for packet in train.packets() {
                    self.passages.add(there, ends.flow.source, packet);
                }
            }
            None => {
                let segment = train.segment();
                let bytes = train.seal(&ends.flow);
                let Some(vnic) = self.vnics.get_mut(ends.vnic) else { return };
                // It may come back to this vNIC. In a virtual network others have the address, too.
                if ends.within.is_some() && vnic.services == Qpn::GENERAL_SERVICES {
                    vnic.capture.has_sent(ends.flow.source);
                }
                let sent = match &mut vnic.tunnel {
                    None => {
                        let to = (link.peer_port(), ends.interface);
                        vnic.sockets.send_to_port(&ends.flow, to, bytes, segment)
                    }
                    Some(tunnel) => {
                        let sent = tunnel.send(&ends.flow, ends.interface, (bytes, segment));
                        self.settle_tunnel(ends.vnic);
                        sent
                    }
                };
                if sent == Sent::Lost {
                    link.count_unsent(train.count());
                }
            }
        }
    }

    /// Where packets arrive that do not pass the network: at the link that is theirs; a vNIC's to
    /// itself even while there is none, for its network may not know the way (a GID that is made up
    /// is no address).
    pub(super) fn near(&self, ends: &Ends) -> Option<LinkLocation> {
        let peer = ends.within?;
        match self.links.opposite(ends) {
            Some(to) => {
                // A link that is being served is not in its place.
                let Ends { vnic, flow, interface, .. } =
                    *self.links.get(to).map_or(ends, Link::ends);
                Some(LinkLocation { vnic, local: flow.source, interface })
            }
            None if peer == ends.vnic => {
                let (local, interface) = (ends.flow.destination, ends.interface);
                Some(LinkLocation { vnic: peer, local, interface })
            }
            None => None,
        }
    }

    /// For a capture of this vNIC's packets.
    fn copy(&mut self, vnic: VnicId, ends: &Ends, train: &mut Train) {
        let Some(vnic) = self.vnics.get_mut(vnic).filter(|vnic| vnic.capture.is_on()) else {
            return;
        };
        train.seal(&ends.flow);
        for (id, packet) in (0..).zip(train.packets()) {
            let identification = Identification { id, fragments: Fragments::Forbidden };
            vnic.capture.add(&ends.flow, identification, 2, packet);
        }
    }
}
