//! vNICs, bells and links come and go.

use super::link::{Kind, Link};
use super::links::Reason;
use super::state::State;
use super::timers::Due;
use super::vnic::Vnic;
use super::watcher::Watcher;
use crate::command::{Attach, Event, QpCounters, Underlay, feature};
use crate::identity::VnicId;
use crate::network::port::Sockets;
use crate::queue_pair::connected::Connected;
use crate::queue_pair::datagram::Datagrams;
use crate::queue_pair::terms::Trains;
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

impl State {
    pub(super) fn open_vnic(&mut self, id: VnicId, port: Arc<Port>, watcher: &Watcher) {
        let made = Sockets::new(port).and_then(|sockets| {
            let vnic = Vnic::new(sockets, self.mappings.budget(), clock::now());
            watcher.add(id, &vnic.sockets)?;
            Ok(vnic)
        });
        // Without sockets it has no network, and its links fail by their own timeouts.
        if let Ok(vnic) = made {
            self.vnics.insert(id, vnic);
        }
    }

    pub(super) fn close_vnic(&mut self, id: VnicId, watcher: &Watcher) {
        let Some(vnic) = self.vnics.remove(&id) else { return };
        watcher.remove(&vnic.sockets);
        self.timers.disarm(Due::Vnic(id), vnic.armed);
        if let Some(line) = &vnic.bad_line {
            self.timers.disarm(Due::Faults(id), line.armed);
            self.counters.forget_faults(id);
        }
        self.drop_links(|link| link.vnic == id);
    }

    fn drop_links(&mut self, which: impl Fn(&Link) -> bool) {
        self.links.those(which).into_iter().for_each(|index| self.remove(index));
    }

    pub(super) fn detach(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.drop_links(|link| link.qpn == qpn && link.peer_qpn == peer_qpn);
    }

    fn remove(&mut self, index: usize) {
        // What an unreliable service has completed is to leave, and what a reliable one's peer is
        // waiting for.
        if let Some(link) = self.links.get_mut(index) {
            link.leave(clock::now());
            for _ in 0..LAST_TURNS {
                if !self.serve(index) {
                    break;
                }
            }
            // Nothing else may happen for long that would have its last packets forwarded.
            self.deliver_passages();
        }
        let Some(mut link) = self.links.remove(index) else { return };
        link.close();
        self.timers.disarm(Due::Link(index), link.armed);
        if let Some(bell) = self.bells.get_mut(link.bell) {
            bell.unbind(link.slot, index);
        }
        self.bells.drop_unused(link.bell);
        if let Some(vnic) = self.vnics.get_mut(&link.vnic) {
            vnic.parked.retain(|parked| *parked != index);
        }
        self.counters.forget_link(link.qpn, link.peer_qpn);
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
                self.links.touch(index, Reason::News);
                if attach.service == Service::Ud {
                    self.take_early(index);
                }
            }
            Err(_) => {
                self.bells.drop_unused(attach.bell);
                let status = Status::LocalProtection;
                let _ = self.outbox.post(Event::Failed { qpn, peer_qpn, status });
            }
        }
    }

    fn try_attach(&mut self, attach: &Attach) -> io::Result<usize> {
        if let Some(memory) = &attach.bell_memory {
            self.bells.add(attach.bell, memory)?;
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let bell = self.bells.get_mut(attach.bell).ok_or_else(missing)?;
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
        let vnic = self.vnics.get(&attach.vnic);
        let source_port = vnic.and_then(|vnic| vnic.sockets.source_port(remote));
        let flow =
            Flow { source: local, destination: remote, source_port: source_port.unwrap_or(PORT) };
        let allowance = vnic.map(|vnic| vnic.allowance.clone()).unwrap_or_default();
        let Attach { qpn, peer_qpn, service, .. } = *attach;
        // A peer within this engine is an Omniverb, too.
        let features = if attach.within { feature::ALL } else { attach.features };
        let trains = match attach.features != 0 && !attach.within {
            true => Trains::AcknowledgementFirst,
            false => Trains::OneByOne,
        };
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
                trains,
            ))),
        };
        let link = Link {
            vnic: attach.vnic,
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
        let index = self.links.insert(link);
        bell.bind(attach.local_slot, index);
        Ok(index)
    }
}
