//! A packet arrives: from the network or from another link of ours.

use super::link::{Kind, Link};
use super::links::Reason;
use super::state::State;
use crate::command::{Event, Underlay};
use crate::identity::VnicId;
use crate::network::numbering::Numbering;
use crate::network::port::Arrival;
use omniverb_sys::clock;
use omniverb_terms::{Qpn, Service};
use omniverb_wire::{Identification, Packet, Run, Verdict};
use std::net::IpAddr;

/// How handshakes of Omniverb begin: with a transport version that does not exist.
const VERSION_OTHER: u8 = 0x0f;

/// A packet that is sound, and what came with it.
pub(super) struct Sound<'a> {
    packet: Packet<'a>,
    datagram: &'a [u8],
    from: IpAddr,
    local: IpAddr,
    interface: u32,
    congested: bool,
    /// When it was taken.
    now: u64,
}

impl<'a> Sound<'a> {
    pub(super) fn new(
        packet: Packet<'a>,
        datagram: &'a [u8],
        arrival: &Arrival,
        now: u64,
    ) -> Sound<'a> {
        Sound {
            packet,
            datagram,
            from: arrival.flow.source,
            local: arrival.flow.destination,
            interface: arrival.interface,
            congested: arrival.congested,
            now,
        }
    }
}

impl State {
    /// A datagram arrives by itself, not in a train.
    pub(super) fn arrived_alone(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        self.arrived(vnic, arrival, datagram, &mut Numbering::new(None), clock::now());
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
            Verdict::Exact => arrival.identification.unwrap_or(Identification::ZERO),
            Verdict::Solved(identification) => identification,
            Verdict::Damaged => return,
        };
        ids.found(identification);
        if let Some(home) = self.vnics.get_mut(&vnic)
            && home.tap.is_on()
            && !arrival.captured
            && !home.tap.has_from(flow.source)
        {
            home.tap.add(flow, identification, if arrival.congested { 3 } else { 2 }, datagram);
        }
        self.dispatch(vnic, &Sound::new(packet, datagram, arrival, now));
    }

    fn not_a_packet(&mut self, vnic: VnicId, arrival: &Arrival, datagram: &[u8]) {
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        if is_handshake(datagram) && datagram.len() <= 256 && home.may_tell(clock::now()) {
            let _ = self.outbox.post(Event::Handshake {
                vnic,
                from: arrival.flow.source,
                interface: arrival.interface,
                bytes: datagram.to_vec(),
            });
        }
    }

    /// Finds out whom a packet is for.
    pub(super) fn dispatch(&mut self, vnic: VnicId, sound: &Sound<'_>) {
        let destination = sound.packet.bth().destination();
        if destination == Qpn::GENERAL_SERVICES {
            return self.management(vnic, sound);
        }
        if sound.packet.opcode().is_notification() {
            return self.slow_down(destination, sound);
        }
        let index = match sound.packet.deth() {
            Some(deth) => self.links.datagrams(destination, sound.from, deth.source()),
            None => self.links.connected(destination),
        };
        let Some(index) = index else { return self.nobody(vnic, destination, sound) };
        let Some(link) = self.links.get_mut(index) else { return };
        // Only its own peer reaches a queue pair, and only through the queue pair's own vNIC.
        if link.vnic != vnic || link.flow.destination != sound.from {
            return;
        }
        if let Kind::Connected(connected) = &link.kind
            && !connected.is_ready()
        {
            self.keep(vnic, destination, sound);
        } else {
            link.take(sound, sound.congested);
        }
        self.links.touch(index, Reason::News);
    }

    /// A congestion notification, or a report: for an RC or UC QP, or for what a UD QP sends there.
    fn slow_down(&mut self, qpn: Qpn, sound: &Sound<'_>) {
        // A report names the QP it comes from.
        let sources = match sound.packet.report() {
            Some((source, _)) => source..=source,
            None => Qpn(0)..=Qpn(u32::MAX),
        };
        for index in self.links.all_of(qpn, sound.from, sources) {
            if let Some(link) = self.links.get_mut(index)
                && link.flow.destination == sound.from
            {
                link.take(sound, false);
                self.links.touch(index, Reason::News);
            }
        }
    }

    fn management(&mut self, vnic: VnicId, sound: &Sound<'_>) {
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        let is_datagram = sound.packet.opcode().is_of(Service::Ud);
        if is_datagram && home.may_tell(clock::now()) {
            let _ = self.outbox.post(Event::Management {
                vnic,
                from: sound.from,
                local: sound.local,
                datagram: sound.datagram.to_vec(),
            });
        }
    }

    /// There is no such link, so far.
    fn nobody(&mut self, vnic: VnicId, qpn: Qpn, sound: &Sound<'_>) {
        let now = clock::now();
        self.keep(vnic, qpn, sound);
        let Some(deth) = sound.packet.deth() else { return };
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        let source_qpn = deth.source();
        if home.is_news((qpn, sound.from, source_qpn), now) {
            let _ = self.outbox.post(Event::Stranger {
                vnic,
                qpn,
                source_qpn,
                underlay: Underlay {
                    local: sound.local,
                    remote: sound.from,
                    interface: sound.interface,
                },
            });
        }
    }

    fn keep(&mut self, vnic: VnicId, qpn: Qpn, sound: &Sound<'_>) {
        let Some(home) = self.vnics.get_mut(&vnic) else { return };
        let ends = (sound.from, sound.local);
        home.early.keep(clock::now(), qpn, ends, sound.congested, sound.datagram);
    }

    /// A link is ready for packets that came before it was.
    pub(super) fn take_early(&mut self, index: usize) {
        let Some(link) = self.links.get(index) else { return };
        let (vnic, qpn, remote) = (link.vnic, link.qpn, link.flow.destination);
        let Some(home) = self.vnics.get_mut(&vnic).filter(|home| !home.early.is_empty()) else {
            return;
        };
        let now = clock::now();
        for early in home.early.take(now, qpn, remote) {
            let Ok(packet) = Packet::parse(&early.datagram) else { continue };
            self.dispatch(
                vnic,
                &Sound {
                    packet,
                    datagram: &early.datagram,
                    from: early.from,
                    local: early.local,
                    interface: 0,
                    congested: early.congested,
                    now,
                },
            );
        }
    }

    /// Packets of links of ours to links of ours.
    pub(super) fn deliver_passages(&mut self) {
        if self.passages.is_empty() {
            return;
        }
        let now = clock::now();
        let mut passages = std::mem::take(&mut self.passages);
        passages.drain(|passage, datagram| {
            let Some(link) = self.links.get(passage.to) else { return };
            let (Ok(packet), vnic) = (Packet::parse(datagram), link.vnic) else { return };
            let (from, local) = (passage.from, link.flow.source);
            let (interface, congested) = (link.interface, false);
            let sound = Sound { packet, datagram, from, local, interface, congested, now };
            self.dispatch(vnic, &sound);
        });
        self.passages = passages;
    }
}

/// Whether this begins as handshakes of Omniverb do.
pub(super) fn is_handshake(datagram: &[u8]) -> bool {
    datagram.get(1).is_some_and(|byte| byte & 0x0f == VERSION_OTHER)
}

impl Link {
    /// Packets for this link that follow each other. False: they have to come one by one.
    pub(super) fn take_run(&mut self, run: &Run<'_>, now: u64) -> bool {
        let Kind::Connected(connected) = &mut self.kind else { return false };
        let taken = connected.run(now, run);
        if taken {
            self.counted.received_packets += run.count() as u64;
            self.counted.received_bytes += run.datagrams().map(|one| one.len() as u64).sum::<u64>();
        }
        taken
    }

    /// A packet for this link.
    fn take(&mut self, sound: &Sound<'_>, congested: bool) {
        self.counted.received_packets += 1;
        self.counted.received_bytes += sound.datagram.len() as u64;
        match &mut self.kind {
            Kind::Connected(connected) => connected.packet(sound.now, &sound.packet, congested),
            Kind::Datagrams(datagrams) => datagrams.packet(sound.now, &sound.packet),
        }
    }
}
