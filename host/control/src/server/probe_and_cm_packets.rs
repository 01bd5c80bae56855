//! Handles control packets on each vNIC's UDP port 4791: answers to probes, and QP 1.
//!
//! The engine handles everything else on that port.
//!
//! In: the engine's events. Out: the results of probes and requests, to the tables; probes.

use crate::daemon_log::Level;
use crate::engine::{Event, SharedLimits, handshake_datagram};
use crate::roce_port::VnicPort;
use crate::server::Server;
use crate::server::operation_contexts::EnginePorts;
use crate::vnics::Vnics;
use omniverb_engine::LimitUnit;
use omniverb_session::tc_units::{show_ops, show_rate};
use omniverb_sys::clock;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_tenancy::{ProbeId, RateLimit, VnicId};
use std::net::IpAddr;
use std::num::NonZeroU32;

/// Budget: events of the engine that are handled before others get their turn.
const EVENTS_PER_TURN: usize = 256;

/// With so many bytes in front of a socket a packet thread is behind, and an answer may be among
/// those it has not seen.
const WAITING: u32 = 256 << 10;

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
            Event::Answered { number, at, from, features } => {
                if self.vnics.are_open(&[at]) {
                    self.engine_ports().answered(number, (from, at), features);
                }
            }
            Event::Management { vnic, source, underlay, datagram } => {
                if !self.vnics.are_open(&[vnic]) {
                    return;
                }
                let now = clock::now();
                self.tables
                    .decide(|tables| tables.management(vnic, source, &underlay, &datagram, now));
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
            Event::Encryption { vnic, remote, refusal } => {
                self.engine_ports().encryption_changed(vnic, remote, refusal);
            }
            Event::PortOver { vnic } => self.port_over(vnic),
            Event::LimitRefused { vnic, unit } => {
                let name = self.vnics.registry().name(vnic);
                let (what, limits) = self.limits_of(vnic, unit);
                let text = format_args!(
                    "vNIC {name} sends nothing: its {what} ({limits}) cannot be put in place (a \
                     fault of the daemon); set its {what} or its tenant again"
                );
                self.journal.log(Level::Error, text);
            }
            Event::PortNotice { vnic, from, notice } => {
                if self.vnics.are_open(&[vnic]) {
                    let now = clock::now();
                    self.tables.decide(|tables| tables.port_notice(vnic, from, &notice, now));
                }
            }
            Event::NotServed { qpn, peer_qpn } => {
                self.tables.decide(|tables| tables.carried_link_lost(qpn, peer_qpn));
            }
            Event::Failed { qpn, peer_qpn, why } => {
                self.journal.log(
                    Level::Debug,
                    format_args!(
                        "the link of QP {qpn} with QP {peer_qpn} of another host failed: {why}"
                    ),
                );
            }
        }
    }
}

impl Server {
    /// What a unit's limits are called, and those that hold for a vNIC.
    fn limits_of(&self, vnic: VnicId, unit: LimitUnit) -> (&'static str, String) {
        let (policy, tenant) = (self.tables.policy(vnic), self.objects.tenant_of(vnic));
        let SharedLimits { rate, ops, .. } = self.objects.shared_limits(vnic);
        match unit {
            LimitUnit::Bytes => {
                let show = |limit: &RateLimit| show_rate(limit.bits_per_second);
                ("rate", rate.show(policy.limit, tenant, show))
            }
            LimitUnit::Operations => {
                let show = |ops: &NonZeroU32| show_ops(ops.get().into());
                ("ops", ops.show(policy.operations, tenant, show))
            }
        }
    }
}

impl EnginePorts<'_> {
    pub(super) fn answered(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        features: Option<u32>,
    ) {
        let (way, now) = ((from, at), clock::now());
        self.tables.decide(|tables| match features {
            None => tables.probe_arrived(id, way, now),
            Some(features) => tables.probe_replied(id, way, features, now),
        });
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
            self.engine.expect(id, vnic, destination);
            self.probes.start(id, vnic, interface, destination, now);
            self.note_lost(id);
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

    /// No host has answered a probe. While the port is still being opened none could: "no answer"
    /// would then mean a peer without Omniverb, though no peer could be reached.
    pub(super) fn give_up(&mut self, id: ProbeId, vnic: VnicId, now: u64) {
        if self.vnics.port(vnic).is_some_and(VnicPort::is_asked_for) {
            return self.probes.start_again(vnic, now);
        }
        // Nor does silence say anything if a flood may have hidden an answer.
        if self.probes.may_be_lost(id, |at| lost(self.vnics, at)) || self.may_be_waiting(id) {
            match self.probes.repeat(id, now) {
                true => self.note_lost(id),
                false => self.tables.decide(|tables| tables.probe_unheard(id, now)),
            }
            return;
        }
        self.tables.decide(|tables| tables.probe_unanswered(id, now));
    }

    /// Whether an answer may be among what waits to be received.
    pub(super) fn may_be_waiting(&self, id: ProbeId) -> bool {
        let port = |at| self.vnics.port(at).and_then(VnicPort::open);
        let waiting = |at| port(at).map_or(0, UdpPort::waiting);
        self.tables.hearers(id).into_iter().any(|at| waiting(at) > WAITING)
    }

    /// Notes what was lost by now where the answer to a probe would be heard.
    pub(super) fn note_lost(&mut self, id: ProbeId) {
        let hearers = self.tables.hearers(id).into_iter();
        let lost = hearers.map(|at| (at, lost(self.vnics, at))).collect();
        self.probes.set_lost(id, lost);
    }

    pub(super) fn send_probe(&mut self, id: ProbeId, vnic: VnicId, to: IpAddr, interface: u32) {
        if let Some(port) = self.vnics.port(vnic).and_then(VnicPort::open) {
            // No route, or a packet filter: the same as no answer.
            let _ =
                port.send(&handshake_datagram::probe(id), self.probes.source(id), to, interface);
        }
    }
}

/// Datagrams that were lost in front of a vNIC's sockets so far.
fn lost(vnics: &Vnics, at: VnicId) -> u32 {
    vnics.port(at).and_then(VnicPort::open).map_or(0, UdpPort::dropped)
}
