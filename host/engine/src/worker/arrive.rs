//! A packet arrives: from the network or from another link of ours.

use super::Worker;
use super::link::{Kind, Link};
use crate::command::{Event, Underlay, VnicId};
use crate::network::numbering::Numbering;
use crate::network::port::Arrival;
use omniverb_sys::clock;
use omniverb_terms::{Qpn, Service};
use omniverb_wire::{Identification, Opcode, Operation, Packet, Run, Verdict};
use std::net::IpAddr;

/// How handshakes of Omniverb begin: with a transport version that does not exist.
const VERSION_OTHER: u8 = 0x0f;

/// A packet that is sound, and what came with it.
struct Sound<'a> {
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
    fn new(packet: Packet<'a>, datagram: &'a [u8], arrival: &Arrival, now: u64) -> Sound<'a> {
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

/// Whether a datagram says that it is an acknowledgement.
fn acknowledges(datagram: &[u8]) -> bool {
    let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    datagram.first() == Some(&opcode.to_byte())
}

impl Worker {
    /// A socket of a vNIC has something. True: more than was taken; the poller reports it again, so
    /// that others have their turn first.
    pub(super) fn receive(&mut self, number: u64, socket: usize) -> bool {
        let Some(vnic) = self.vnics.get(&number) else { return false };
        let (sockets, bad_line) = (vnic.sockets.clone(), vnic.bad_line.is_some());
        let Some(mut buffers) = self.buffers.take() else { return false };
        let now = clock::now();
        let mut prepared = self.prepared;
        let more = sockets.receive(socket, &mut buffers, |arrival, mut train, stride| {
            // An acknowledgement that travelled with what answers it is heard first.
            let last = (train.len().max(1) - 1) / stride * stride;
            if last > 0 && acknowledges(&train[last..]) {
                let (before, acknowledgement) = train.split_at(last);
                let none = &mut Numbering::new(None);
                match bad_line {
                    true => self.detour(number, arrival, acknowledgement),
                    false => self.arrived(number, arrival, acknowledgement, none, now),
                }
                train = before;
            }
            if bad_line {
                return train.chunks(stride).for_each(|one| self.detour(number, arrival, one));
            }
            let mut ids = Numbering::new(prepared);
            while !train.is_empty() {
                let together = self.arrived_together(number, arrival, train, stride, &mut ids, now);
                if together == 0 {
                    let one = &train[..stride.min(train.len())];
                    self.arrived(number, arrival, one, &mut ids, now);
                }
                train = &train[(together.max(1) * stride).min(train.len())..];
            }
            prepared = ids.prepared;
        });
        self.buffers = Some(buffers);
        self.prepared = prepared;
        if bad_line {
            self.delayed(number);
        }
        more
    }

    /// A datagram arrives by itself, not in a train.
    pub(super) fn arrived_alone(&mut self, number: u64, arrival: &Arrival, datagram: &[u8]) {
        self.arrived(number, arrival, datagram, &mut Numbering::new(None), clock::now());
    }

    /// A datagram came out of a socket.
    fn arrived(
        &mut self,
        number: u64,
        arrival: &Arrival,
        datagram: &[u8],
        ids: &mut Numbering,
        now: u64,
    ) {
        let flow = &arrival.flow;
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(_) => return self.not_a_packet(number, arrival, datagram),
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
        if let Some(vnic) = self.vnics.get_mut(&number)
            && vnic.tap.is_on()
            && !arrival.captured
            && !vnic.tap.has_from(flow.source)
        {
            vnic.tap.add(flow, identification, if arrival.congested { 3 } else { 2 }, datagram);
        }
        self.dispatch(number, &Sound::new(packet, datagram, arrival, now));
    }

    /// Takes the run that a train begins with. So many datagrams of it were taken.
    fn arrived_together(
        &mut self,
        number: u64,
        arrival: &Arrival,
        train: &[u8],
        stride: usize,
        ids: &mut Numbering,
        now: u64,
    ) -> usize {
        // What is to be said or shown of each packet is said one by one.
        let watched = self.vnics.get(&number).is_none_or(|vnic| vnic.tap.is_on());
        if watched || arrival.congested || arrival.identification.is_some() {
            return 0;
        }
        let Some(run) = Run::of(train, stride) else { return 0 };
        let Some(index) = run.packet().and_then(|p| self.connected(p.bth().destination())) else {
            return 0;
        };
        let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) else { return 0 };
        if link.vnic != number || link.flow.destination != arrival.flow.source {
            return 0;
        }
        let sound = run.datagrams().take_while(|one| ids.sound(&arrival.flow, one)).count();
        // The one that ended it is damaged, and dropped.
        let looked_at = (sound + 1).min(run.count());
        if let Some(run) = run.first(sound)
            && link.take_run(&run, now)
        {
            self.touch(index);
            return looked_at;
        }
        let sound = run.datagrams().take(sound);
        for (packet, one) in sound.filter_map(|one| Some((Packet::parse(one).ok()?, one))) {
            self.dispatch(number, &Sound::new(packet, one, arrival, now));
        }
        looked_at
    }

    fn not_a_packet(&mut self, number: u64, arrival: &Arrival, datagram: &[u8]) {
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        if is_handshake(datagram) && datagram.len() <= 256 && vnic.may_tell(clock::now()) {
            self.outbox.tell(Event::Handshake {
                vnic: VnicId(number),
                from: arrival.flow.source,
                interface: arrival.interface,
                bytes: datagram.to_vec(),
            });
        }
    }

    /// Finds out whom a packet is for.
    fn dispatch(&mut self, number: u64, sound: &Sound<'_>) {
        let destination = sound.packet.bth().destination();
        if destination == Qpn::GENERAL_SERVICES {
            return self.management(number, sound);
        }
        if sound.packet.opcode().is_notification() {
            return self.slow_down(destination, sound);
        }
        let index = match sound.packet.deth() {
            Some(deth) => self.by_source.get(&(destination, sound.from, deth.source())).copied(),
            None => self.connected(destination),
        };
        let Some(index) = index else { return self.nobody(number, destination, sound) };
        let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) else { return };
        // Only its own peer reaches a queue pair, and only through the queue pair's own vNIC.
        if link.vnic != number || link.flow.destination != sound.from {
            return;
        }
        if let Kind::Connected(connected) = &link.kind
            && !connected.is_ready()
        {
            self.keep(number, destination, sound);
        } else {
            link.take(sound, sound.congested);
        }
        self.touch(index);
    }

    /// The RC or UC link of this queue pair; mostly that of the packet before.
    fn connected(&mut self, qpn: Qpn) -> Option<usize> {
        if let Some((latest, index)) = self.latest
            && latest == qpn
        {
            return Some(index);
        }
        let index = *self.by_number.get(&qpn)?;
        self.latest = Some((qpn, index));
        Some(index)
    }

    /// A congestion notification, or a report: for an RC or UC QP, or for what a UD QP sends there.
    fn slow_down(&mut self, qpn: Qpn, sound: &Sound<'_>) {
        let connected = self.by_number.get(&qpn).copied();
        // A report names the QP it comes from.
        let sources = match sound.packet.report() {
            Some((source, _)) => source..=source,
            None => Qpn(0)..=Qpn(u32::MAX),
        };
        let (first, last) = sources.into_inner();
        let datagrams = self.by_source.range((qpn, sound.from, first)..=(qpn, sound.from, last));
        let indices: Vec<usize> =
            connected.into_iter().chain(datagrams.map(|(_, index)| *index)).collect();
        for index in indices {
            if let Some(link) = self.links.get_mut(index).and_then(Option::as_mut)
                && link.flow.destination == sound.from
            {
                link.take(sound, false);
                self.touch(index);
            }
        }
    }

    fn management(&mut self, number: u64, sound: &Sound<'_>) {
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        let is_datagram = sound.packet.opcode().is_of(Service::Ud);
        if is_datagram && vnic.may_tell(clock::now()) {
            self.outbox.tell(Event::Management {
                vnic: VnicId(number),
                from: sound.from,
                local: sound.local,
                datagram: sound.datagram.to_vec(),
            });
        }
    }

    /// There is no such link, so far.
    fn nobody(&mut self, number: u64, qpn: Qpn, sound: &Sound<'_>) {
        let now = clock::now();
        self.keep(number, qpn, sound);
        let Some(deth) = sound.packet.deth() else { return };
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        let source_qpn = deth.source();
        if vnic.is_news((qpn, sound.from, source_qpn), now) {
            self.outbox.tell(Event::Stranger {
                vnic: VnicId(number),
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

    fn keep(&mut self, number: u64, qpn: Qpn, sound: &Sound<'_>) {
        let Some(vnic) = self.vnics.get_mut(&number) else { return };
        let ends = (sound.from, sound.local);
        vnic.early.keep(clock::now(), qpn, ends, sound.congested, sound.datagram);
    }

    /// A link is ready for packets that came before it was.
    pub(super) fn take_early(&mut self, index: usize) {
        let Some(link) = self.links.get(index).and_then(Option::as_ref) else { return };
        let (number, qpn, remote) = (link.vnic, link.qpn, link.flow.destination);
        let Some(vnic) = self.vnics.get_mut(&number).filter(|vnic| !vnic.early.is_empty()) else {
            return;
        };
        let now = clock::now();
        for early in vnic.early.take(now, qpn, remote) {
            let Ok(packet) = Packet::parse(&early.datagram) else { continue };
            self.dispatch(
                number,
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
            let Some(link) = self.links.get_mut(passage.to).and_then(Option::as_mut) else {
                return;
            };
            let (Ok(packet), number) = (Packet::parse(datagram), link.vnic) else { return };
            let (from, local) = (passage.from, link.flow.source);
            let (interface, congested) = (link.interface, false);
            let sound = Sound { packet, datagram, from, local, interface, congested, now };
            self.dispatch(number, &sound);
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
    fn take_run(&mut self, run: &Run<'_>, now: u64) -> bool {
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
