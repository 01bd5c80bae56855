//! vNICs, bells and links come and go.

use super::Worker;
use super::link::{Kind, Link};
use crate::command::{Attach, Event, QpCounters, Underlay, VnicId, feature};
use crate::network::port::Sockets;
use crate::queue_pair::connected::Connected;
use crate::queue_pair::datagram::Datagrams;
use crate::worker::bell::Bell;
use crate::worker::timers::Due;
use crate::worker::vnic::Vnic;
use omniverb_link::{Endpoint, EndpointParts, layout};
use omniverb_sys::datagram::Port;
use omniverb_sys::{Access, clock};
use omniverb_terms::{Qpn, Service};
use omniverb_transport::Status;
use omniverb_wire::{Flow, PORT};
use std::io;
use std::sync::Arc;

/// Turns that a link gets to send what it has left when it is closed.
const LAST_TURNS: usize = 64;

impl Worker {
    pub(super) fn open_vnic(&mut self, id: VnicId, port: Arc<Port>) {
        let made = Sockets::new(port).and_then(|sockets| {
            let vnic = Vnic::new(sockets, self.mappings.budget(), clock::now());
            self.watch(id.0, &vnic)?;
            Ok(vnic)
        });
        // Without sockets it has no network, and its links fail by their own timeouts.
        if let Ok(vnic) = made {
            self.vnics.insert(id.0, vnic);
        }
    }

    pub(super) fn close_vnic(&mut self, number: u64) {
        let Some(vnic) = self.vnics.remove(&number) else { return };
        for socket in vnic.sockets.files() {
            let _ = self.poller.remove(socket);
        }
        self.timers.disarm(Due::Vnic(number), vnic.armed);
        if let Some(line) = &vnic.bad_line {
            self.timers.disarm(Due::Faults(number), line.armed);
            self.forget_faults(number);
        }
        self.drop_links(|link| link.vnic == number);
    }

    fn drop_links(&mut self, which: impl Fn(&Link) -> bool) {
        let indices = 0..self.links.len();
        let those = |index: &usize| self.links[*index].as_ref().is_some_and(|link| which(link));
        for index in indices.filter(those).collect::<Vec<_>>() {
            self.remove(index);
        }
    }

    pub(super) fn detach(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.drop_links(|link| link.qpn == qpn && link.peer_qpn == peer_qpn);
    }

    fn remove(&mut self, index: usize) {
        // What an unreliable service has completed is to leave, and what a reliable one's peer is
        // waiting for.
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.leave(clock::now());
            for _ in 0..LAST_TURNS {
                if !self.serve(index) {
                    break;
                }
            }
            // Nothing else may happen for long that would have its last packets forwarded.
            self.deliver_passages();
        }
        let Some(mut link) = self.links.get_mut(index).and_then(Option::take) else { return };
        link.close();
        self.timers.disarm(Due::Link(index), link.armed);
        if let Some(bell) = self.bells.get_mut(&link.bell) {
            bell.unbind(link.slot, index);
        }
        self.drop_unused_bell(link.bell);
        if link.service == Service::Ud {
            self.by_source.remove(&(link.qpn, link.flow.destination, link.peer_qpn));
        } else if self.by_number.get(&link.qpn) == Some(&index) {
            self.by_number.remove(&link.qpn);
            self.latest = None;
        }
        if let Some(vnic) = self.vnics.get_mut(&link.vnic) {
            vnic.parked.retain(|parked| *parked != index);
        }
        self.dirty.remove(link.vnic, index);
        self.forget_counters(link.qpn, link.peer_qpn);
        self.free.push(index);
    }

    /// The control plane lets go of a bell with its last link; nobody would tell us later.
    fn drop_unused_bell(&mut self, number: u64) {
        if let Some(bell) = self.bells.get(&number).filter(|bell| bell.is_unused()) {
            bell.ring();
            self.listener.remove(bell.heard_as);
            self.bells.remove(&number);
        }
    }

    pub(super) fn attach(&mut self, attach: &Attach) {
        // The application's QP was reset and comes back. Datagram peers on different hosts may have
        // the same number.
        let Attach { qpn, peer_qpn, underlay: Underlay { remote, .. }, .. } = *attach;
        self.drop_links(|link| {
            (link.qpn, link.peer_qpn, link.flow.destination) == (qpn, peer_qpn, remote)
        });
        match self.try_attach(attach) {
            Ok(index) => {
                self.touch(index);
                if attach.service == Service::Ud {
                    self.take_early(index);
                }
            }
            Err(_) => {
                self.drop_unused_bell(attach.bell);
                let status = Status::LocalProtection;
                self.outbox.tell(Event::Failed { qpn, peer_qpn, status });
            }
        }
    }

    fn try_attach(&mut self, attach: &Attach) -> io::Result<usize> {
        if let Some(memory) = &attach.bell_memory {
            let bell = Bell::new(memory, &self.listener)?;
            self.bells.insert(attach.bell, bell);
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let bell = self.bells.get_mut(&attach.bell).ok_or_else(missing)?;
        let (request_bytes, response_bytes) = (attach.request_bytes, attach.response_bytes);
        let bytes = layout::link_bytes(request_bytes, response_bytes);
        let endpoint = Endpoint::new(EndpointParts {
            memory: attach.link.map_exactly(bytes, Access::ReadWrite)?,
            side: 1,
            request_bytes,
            response_bytes,
            doorbell: bell.doorbell(),
            peer_slot: attach.peer_slot,
        })
        .ok_or_else(missing)?;
        let Underlay { local, remote, interface } = attach.underlay;
        let vnic = self.vnics.get(&attach.vnic.0);
        let source_port = vnic.and_then(|vnic| vnic.sockets.source_port(remote));
        let flow =
            Flow { source: local, destination: remote, source_port: source_port.unwrap_or(PORT) };
        let allowance = vnic.map(|vnic| vnic.allowance.clone()).unwrap_or_default();
        let Attach { qpn, peer_qpn, service, .. } = *attach;
        // A peer within this engine is an Omniverb, too.
        let features = if attach.within { feature::ALL } else { attach.features };
        let kind = match service {
            Service::Ud => {
                let datagrams = Datagrams::new(endpoint, qpn, peer_qpn, features, allowance);
                Kind::Datagrams(Box::new(datagrams))
            }
            _ => Kind::Connected(Box::new(Connected::new(
                endpoint,
                service,
                (qpn, peer_qpn),
                features,
                request_bytes,
                allowance,
                attach.features != 0 && !attach.within,
            ))),
        };
        let link = Link {
            vnic: attach.vnic.0,
            qpn,
            peer_qpn,
            service,
            flow,
            interface,
            within: attach.within,
            kind,
            bell: attach.bell,
            slot: attach.local_slot,
            armed: None,
            queued: false,
            parked: false,
            held: None,
            looked_again: true,
            counted: QpCounters::default(),
        };
        let index = self.free.pop().unwrap_or(self.links.len());
        if index == self.links.len() {
            self.links.push(None);
        }
        self.links[index] = Some(Box::new(link));
        bell.bind(attach.local_slot, index);
        if service == Service::Ud {
            self.by_source.insert((qpn, remote, peer_qpn), index);
        } else {
            self.by_number.insert(qpn, index);
            self.latest = None;
        }
        Ok(index)
    }
}
