//! UDP port 4791 of each vNIC, as far as it is ours to answer: handshakes, and packets for queue
//! pair 1. Everything else on that port is the engine's.
//!
//! In: the engine's events. Out: what a probe or a reply means, to the tables; replies.

use crate::engine::Event;
use crate::engine::FEATURES;
use crate::journal::Level;
use crate::port::VnicPort;
use crate::probes::{self, Handshake};
use crate::server::Server;
use omniverb_sys::clock;
use omniverb_tenancy::{ProbeId, VnicId};
use std::net::IpAddr;

/// Events of the engine that are handled before others get their turn.
const EVENTS_PER_TURN: usize = 256;

impl Server {
    /// The engine has something to tell.
    pub(super) fn engine_ready(&mut self) {
        self.engine.take_ready();
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = self.engine.next_event() else { return };
            self.engine_event(event);
            self.settle();
        }
        // There may be more.
        self.engine.come_back();
    }

    fn engine_event(&mut self, event: Event) {
        match event {
            Event::Handshake { vnic, from, interface, bytes } => {
                if !self.vnics.are_open(&[vnic]) {
                    return;
                }
                self.handshake(vnic, from, interface, &bytes);
            }
            Event::Management { vnic, underlay, datagram } => {
                if !self.vnics.are_open(&[vnic]) {
                    return;
                }
                let now = clock::now();
                self.tables.decide(|tables| tables.management(vnic, &underlay, &datagram, now));
            }
            Event::Stranger { vnic, qpn, source_qpn, underlay } => {
                if !self.vnics.are_open(&[vnic]) {
                    return;
                }
                let ends = (qpn, source_qpn);
                self.tables.decide(|tables| tables.stranger(vnic, ends, &underlay, clock::now()));
            }
            Event::Wanted { qpn, peer_qpn, key, range } => {
                let link = (qpn, peer_qpn);
                self.tables.decide(|tables| tables.engine_wants(link, key, range, clock::now()));
            }
            Event::NotMapped { qpn, peer_qpn, key, start } => {
                self.tables.decide(|tables| tables.engine_cannot_map((qpn, peer_qpn), key, start));
            }
            Event::PortOver { vnic } => self.port_over(vnic),
            Event::Failed { qpn, peer_qpn, why } => {
                self.journal
                    .log(Level::Debug, format_args!("QP {qpn} with {peer_qpn} on the wire: {why}"));
            }
        }
    }

    fn handshake(&mut self, at: VnicId, from: IpAddr, interface: u32, bytes: &[u8]) {
        let now = clock::now();
        match probes::read(bytes) {
            Some(Handshake::Probe(id)) if self.tables.is_probe(id) => {
                self.tables.decide(|tables| tables.probe_arrived(id, (from, at), now));
            }
            Some(Handshake::Probe(id)) => self.reply(id, at, from, interface),
            Some(Handshake::Reply(id, features)) => {
                self.tables.decide(|tables| tables.probe_replied(id, (from, at), features, now));
            }
            None => {}
        }
    }

    /// Somebody else's probe, so somebody else's daemon: it shall know that there is another one.
    fn reply(&mut self, id: ProbeId, at: VnicId, to: IpAddr, interface: u32) {
        let port = self.vnics.port_mut(at);
        if let Some(port) = port.and_then(|port| port.for_reply(clock::now())) {
            let _ = port.send(&probes::reply(id, FEATURES), None, to, interface);
        }
    }

    pub(super) fn start_probe(
        &mut self,
        id: ProbeId,
        vnic: VnicId,
        interface: u32,
        (source, destination): (Option<IpAddr>, IpAddr),
    ) {
        let now = clock::now();
        if self.want_port(vnic) {
            // The datagram itself is sent by the timers, after this.
            self.probes.start(id, vnic, interface, destination, now);
            if let Some(source) = source {
                self.probes.set_source(id, source);
            }
        } else {
            self.fail_probe(id);
        }
    }

    /// It cannot be sent.
    pub(super) fn fail_probe(&mut self, id: ProbeId) {
        let now = clock::now();
        self.tables.decide(|tables| tables.probe_failed(id, now));
    }

    /// Nobody has answered a probe. While the port is still asked for nobody could: whoever says
    /// "no answer" then takes a peer for one without Omniverb, where there is no way to any.
    pub(super) fn give_up(&mut self, id: ProbeId, vnic: VnicId, now: u64) {
        if self.vnics.port(vnic).is_some_and(VnicPort::is_asked_for) {
            return self.probes.start_again(vnic, now);
        }
        self.tables.decide(|tables| tables.probe_unanswered(id, now));
    }

    pub(super) fn send_probe(&mut self, id: ProbeId, vnic: VnicId, to: IpAddr, interface: u32) {
        if let Some(port) = self.vnics.port(vnic).and_then(VnicPort::open) {
            // No route, or a packet filter: the same as no answer.
            let _ = port.send(&probes::datagram(id), self.probes.source(id), to, interface);
        }
    }
}
