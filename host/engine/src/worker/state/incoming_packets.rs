//! Dispatches packets that come from the network or from another link of ours.

use super::State;
use crate::command::Event;
use crate::network::early_packets::{Early, Redelivery};
use crate::network::handshake_datagram::{self, Handshake};
use crate::network::local_forwarding::LinkLocation;
use crate::network::pending_probes::Number;
use crate::network::roce_port::Arrival;
use crate::worker::checked_packet::CheckedPacket;
use crate::worker::link::{Ends, Reason};
use omniverb_datapath::train_numbering::Numbering;
use omniverb_datapath::way_trial::{self, TrialDatagram, TrialNames};
use omniverb_sys::clock;
use omniverb_terms::{Qpn, Service, UnderlayRoute, VnicId, group_of_programs};
use omniverb_transport::Ecn;
use omniverb_wire::{IcrcVerdict, Identification, PORT, Packet, PortNotice};
use std::net::IpAddr;

impl State {
    /// A datagram arrives by itself, not in a train.
    pub(super) fn arrived_alone(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        let now = self.now().links;
        self.arrived(vnic, arrival, datagram, &mut Numbering::new(None), now);
    }

    /// A datagram came out of a socket.
    pub(super) fn arrived(
        &mut self,
        vnic: VnicId,
        arrival: &Arrival,
        datagram: &[u8],
        ids: &mut Numbering,
        now: u64,
    ) {
        let flow = &arrival.flow;
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(_) => return self.not_a_packet(vnic, arrival, datagram),
        };
        let verdict = match arrival.identification {
            None => ids.check(flow, datagram),
            known => flow.check(datagram, known),
        };
        let identification = match verdict {
            IcrcVerdict::Exact => arrival.identification.unwrap_or(Identification::ZERO),
            IcrcVerdict::Solved(identification) => identification,
            IcrcVerdict::Damaged => return,
        };
        ids.found(identification);
        if let Some(home) = self.vnics.get_mut(vnic)
            && home.capture.is_on()
            && !arrival.is_captured
            && !home.capture.has_from(flow.source)
        {
            home.capture.add(flow, identification, codepoint(arrival.ecn), datagram);
        }
        self.dispatch(vnic, &CheckedPacket::new(packet, datagram, arrival, now));
    }

    pub(super) fn not_a_packet(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        // A handshake asks the owner of one address. One that went to a group would have all of its
        // members answer, to an address that may be forged.
        if arrival.flow.destination.is_multicast() {
            return;
        }
        if let Some(handshake) = handshake_datagram::read(datagram) {
            return self.handshake(vnic, arrival, handshake);
        }
        if let Some(TrialDatagram::Question(names)) = way_trial::read(datagram) {
            return self.answer_trial(vnic, arrival, &names);
        }
        // No process of a tenant sends from this port.
        if arrival.flow.source_port == PORT
            && let Some(notice) = PortNotice::read(datagram)
        {
            self.notice_of_ports(vnic, arrival.flow.source, notice);
        }
    }

    /// A process that carries a link of its own asks whether packets get here. Only the peer of a
    /// link of ours is answered, from the port that its daemon named.
    fn answer_trial(&mut self, at: VnicId, arrival: &Arrival, names: &TrialNames) {
        let Some(index) = self.links.connected(names.to) else { return };
        let Some(link) = self.links.get(index) else { return };
        let Ends { vnic, qpn, peer_qpn, flow, .. } = *link.ends();
        let from = (arrival.flow.source, arrival.flow.source_port);
        if vnic != at || from != (flow.destination, link.peer_port()) {
            return;
        }
        let answer = names.answers(qpn, peer_qpn);
        let (Some(answer), Some(home)) = (answer, self.vnics.get_mut(at)) else { return };
        if home.reports.may_answer_trial(from.0, clock::now()) {
            home.sockets.answer_port(&answer, from, arrival.interface);
        }
    }

    /// Passes on what another Omniverb says of its ports, within its limit, if some are expected.
    fn notice_of_ports(&mut self, vnic: VnicId, from: IpAddr, notice: PortNotice) {
        if self.features & PortNotice::FEATURE == 0 {
            return;
        }
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        if home.reports.may_notice(from, clock::now()) {
            let _ = self.outbox.post(vnic, Event::PortNotice { vnic, from, notice });
        }
    }

    /// An answer to a question of ours is always reported. A probe of another Omniverb gets replies
    /// within its limit. Other datagrams cost no more than this look.
    fn handshake(&mut self, at: VnicId, arrival: &Arrival, handshake: Handshake) {
        let from = arrival.flow.source;
        let (number, known, features) = match handshake {
            Handshake::Probe(number) => (number, self.questions.probe(number, from, at), None),
            Handshake::Reply(number, features) => {
                (number, self.questions.reply(number, from, at), Some(features))
            }
        };
        match known {
            Number::Ours(asker) => {
                let _ = self.outbox.post(asker, Event::Answered { number, at, from, features });
            }
            Number::Strange if features.is_none() => {
                let Some(home) = self.vnics.get_mut(at) else { return };
                if home.reports.may_reply(from, clock::now()) {
                    let reply = handshake_datagram::reply(number, self.features);
                    home.sockets.answer(&reply, from, arrival.interface);
                }
            }
            Number::Strange | Number::Spent => {}
        }
    }

    /// Finds the receiver of a packet.
    pub(super) fn dispatch(&mut self, vnic: VnicId, checked: &CheckedPacket<'_>) {
        let destination = checked.packet.bth().destination();
        if destination == Qpn::MULTICAST || checked.local.is_multicast() {
            return self.copy_to_group(vnic, checked);
        }
        // Ranges of QPNs begin at multiples of 256.
        let is_first = destination.0 % 256 == Qpn::GENERAL_SERVICES.0;
        if is_first && self.vnics.get(vnic).is_some_and(|home| home.services == destination) {
            return self.management(vnic, checked);
        }
        if checked.packet.opcode().is_notification() {
            return self.slow_down(vnic, destination, checked);
        }
        let index = match checked.packet.deth() {
            Some(deth) => self.links.datagrams(destination, checked.from, deth.source()),
            None => self.links.connected(destination),
        };
        let Some(index) = index else { return self.no_link(vnic, destination, checked) };
        let Some(link) = self.links.get_mut(index) else { return };
        // Only its own peer reaches a queue pair, and only through the queue pair's own vNIC.
        if link.ends().vnic != vnic || link.ends().flow.destination != checked.from {
            return;
        }
        if link.is_ready() {
            link.take(checked);
        } else {
            self.keep(vnic, destination, checked);
        }
        self.links.touch(index, Reason::News);
    }

    /// A copy for each queue pair that is attached to the group. A packet to a group, but to one
    /// queue pair, and the other way round, has no receiver; nor has one over the turn's bound.
    fn copy_to_group(&mut self, vnic: VnicId, checked: &CheckedPacket<'_>) {
        let CheckedPacket { packet, local, .. } = checked;
        let fits = packet.bth().destination() == Qpn::MULTICAST && local.is_multicast();
        let (true, Some(deth)) = (fits, packet.deth()) else { return };
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        // In a virtual network a sender is known by its vGID, and no other sender is heard.
        let sender = match &home.places {
            Some(places) => match places.sender(checked.from, deth.source()) {
                Some((gid, source)) => (IpAddr::from(gid.bytes()), source),
                None => return,
            },
            None => match &home.group_senders {
                Some((tenant, all)) if !all.hears(*tenant, checked.from) => return,
                _ => (checked.from, deth.source()),
            },
        };
        let members = self.links.attached(vnic, *local);
        let group = if home.places.is_some() { group_of_programs(*local) } else { *local };
        if !home.copies.may_make(self.turns, members.len()) {
            return;
        }
        for index in members {
            if let Some(link) = self.links.get_mut(index) {
                link.take_copy(checked, sender, group);
                self.links.touch(index, Reason::News);
            }
        }
    }

    /// A congestion notification, or a report: for an RC or UC QP, or for what a UD QP sends there.
    fn slow_down(&mut self, vnic: VnicId, qpn: Qpn, checked: &CheckedPacket<'_>) {
        let connected = self.links.connected(qpn);
        let datagrams = match checked.packet.report() {
            // A report names the QP it comes from.
            Some((source, _)) => self.links.datagrams(qpn, checked.from, source),
            // However many links there are to that address, this is work for one.
            None => {
                if let Some(throttle) = self.links.throttled(vnic, qpn, checked.from) {
                    throttle.on_notification(checked.now);
                }
                None
            }
        };
        for index in connected.into_iter().chain(datagrams) {
            if let Some(link) = self.links.get_mut(index)
                && link.ends().vnic == vnic
                && link.ends().flow.destination == checked.from
            {
                link.notify(checked);
                self.links.touch(index, Reason::News);
            }
        }
    }

    /// There is no such link, so far.
    fn no_link(&mut self, vnic: VnicId, qpn: Qpn, checked: &CheckedPacket<'_>) {
        let now = clock::now();
        self.keep(vnic, qpn, checked);
        let Some(deth) = checked.packet.deth() else { return };
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let source_qpn = deth.source();
        if home.reports.is_news((qpn, checked.from, source_qpn), now) {
            let _ = self.outbox.post(
                vnic,
                Event::Stranger {
                    vnic,
                    qpn,
                    source_qpn,
                    underlay: UnderlayRoute::plain(checked.local, checked.from, checked.interface),
                },
            );
        }
    }

    fn keep(&mut self, vnic: VnicId, qpn: Qpn, checked: &CheckedPacket<'_>) {
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let opcode = checked.packet.opcode();
        // A response answers a request, so it was no early packet, but a late one.
        if opcode.operation.is_response() {
            return;
        }
        let forgets = opcode.is_of(Service::Uc) || opcode.is_of(Service::Ud);
        let again = if forgets { Redelivery::No } else { Redelivery::Yes };
        let packet = Early {
            qpn,
            source: checked.packet.deth().map(|deth| deth.source()),
            from: checked.from,
            local: checked.local,
            ecn: checked.ecn,
            datagram: checked.datagram.to_vec(),
        };
        let now = clock::now();
        home.unclaimed.keep(now, packet, again);
        home.set_early_alarm(vnic, &mut self.clocked, now);
    }

    /// A link is ready for packets that came before it was.
    pub(super) fn take_unclaimed(&mut self, index: usize) {
        let Some(link) = self.links.get(index) else { return };
        let Ends { vnic, qpn, peer_qpn, flow, .. } = *link.ends();
        let now = self.now();
        let Some(home) = self.vnics.get_mut(vnic).filter(|home| !home.unclaimed.is_empty()) else {
            return;
        };
        for kept in home.unclaimed.take(now.clock, qpn, (flow.destination, peer_qpn)) {
            let Ok(packet) = Packet::parse(&kept.datagram) else { continue };
            self.dispatch(
                vnic,
                &CheckedPacket {
                    packet,
                    datagram: &kept.datagram,
                    from: kept.from,
                    local: kept.local,
                    interface: 0,
                    ecn: kept.ecn,
                    now: now.links,
                },
            );
        }
    }

    /// Packets of links of ours to queue pairs of ours.
    pub(super) fn deliver_passages(&mut self) {
        if self.passages.is_empty() {
            return;
        }
        let now = self.now().links;
        let mut passages = std::mem::take(&mut self.passages);
        passages.drain(|passage, datagram| {
            let LinkLocation { vnic, local, interface } = passage.to;
            let Ok(packet) = Packet::parse(datagram) else { return };
            let (from, ecn) = (passage.from, Ecn::Unmarked);
            let checked = CheckedPacket { packet, datagram, from, local, interface, ecn, now };
            self.dispatch(vnic, &checked);
        });
        self.passages = passages;
    }
}

/// The codepoint of a packet's IP header (RFC 3168, 5): ours leave as "ECN-capable".
fn codepoint(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::Unmarked => 2,
        Ecn::CongestionExperienced => 3,
    }
}
