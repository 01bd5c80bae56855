//! Attaches and detaches vNICs, doorbells and links.

use super::State;
use crate::command::{Attach, Event};
use crate::event_queues::Posted;
use crate::kept_memory_limits::HolderPath;
use crate::network::roce_port::Sockets;
use crate::pages::link_grants::Connected;
use crate::worker::link::{Ends, Kind, Link, Reason};
use crate::worker::pending_work::WorkLeft;
use crate::worker::thread_sleep::Watcher;
use crate::worker::vnic::Vnic;
use omniverb_datapath::handover::Handover;
use omniverb_datapath::peer_features;
use omniverb_datapath::queue_pair::connection_parameters::Trains;
use omniverb_datapath::queue_pair::datagram::Datagrams;
use omniverb_link::{Endpoint, EndpointParts, layout};
use omniverb_sys::clock;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_terms::{Operations, Qpn, Service, UnderlayRoute, VnicId};
use omniverb_transport::Status;
use omniverb_wire::{IcrcFlow, PORT};
use std::io;
use std::sync::Arc;

/// Budget: turns that a link gets to send what it has left when it is closed.
const LAST_TURNS: usize = 64;

impl State {
    pub(super) fn open_vnic(
        &mut self,
        id: VnicId,
        port: Arc<UdpPort>,
        (holder, services): (&HolderPath, Qpn),
        watcher: &Watcher,
    ) {
        let made = Sockets::new(port).and_then(|sockets| {
            let (budget, allowance) = (self.together.budget(), self.store.vnic(holder));
            let vnic = Vnic::new(sockets, services, budget, allowance, clock::now());
            watcher.add(id, &vnic.sockets)?;
            Ok(vnic)
        });
        // Without sockets it has no network, and its links fail by their own timeouts.
        if let Ok(vnic) = made {
            self.vnics.open(id, vnic);
        }
    }

    pub(super) fn close_vnic(&mut self, id: VnicId, watcher: &Watcher) {
        let Some(mut vnic) = self.vnics.close(id) else { return };
        watcher.remove(&vnic.sockets);
        if let Some(sockets) = vnic.tunnel.as_ref().and_then(|tunnel| tunnel.sockets()) {
            watcher.remove(sockets);
        }
        vnic.close(id, &mut self.clocked, &mut self.limits);
        if let Some(fault_queue) = &mut vnic.fault_queue {
            fault_queue.close(id, &mut self.clocked);
            self.showing.end_faults(id, &fault_queue.done());
        }
        self.drop_links(&self.links.of_vnic(id));
    }

    /// Watches a vNIC's sockets no longer if nothing can come out of them, once that is told.
    pub(in crate::worker) fn forget_sockets(&self, id: VnicId, watcher: &Watcher) {
        let over = self.vnics.get(id).filter(|vnic| vnic.sockets.is_over());
        if let Some(vnic) = over
            && self.outbox.post(id, Event::PortOver { vnic: id }) == Posted::Sent
        {
            watcher.remove(&vnic.sockets);
        }
    }

    fn drop_links(&mut self, those: &[usize]) {
        those.iter().for_each(|index| self.remove(*index));
    }

    pub(super) fn detach(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        self.drop_links(&self.links.of(qpn, peer_qpn));
    }

    fn remove(&mut self, index: usize) {
        // Completed messages of an unreliable service are to leave, and those that a reliable one's
        // peer waits for.
        let now = self.now();
        if let Some(link) = self.links.get_mut(index) {
            link.leave(now.links);
            for _ in 0..LAST_TURNS {
                if self.serve(index) == WorkLeft::Nothing {
                    break;
                }
            }
            // Nothing else may happen for long that would have its last packets forwarded.
            self.deliver_passages();
        }
        let Some(mut link) = self.links.remove(index) else { return };
        link.close(index, &mut self.timers);
        self.bells.unbind(link.bell(), index);
        let Ends { vnic, qpn, peer_qpn, flow, service, .. } = *link.ends();
        let counted = link.counters();
        if let Some(of) = self.vnics.get_mut(vnic) {
            of.gates.bytes.forget(index, &mut self.limits.bytes);
            of.gates.operations.forget(index, &mut self.limits.operations);
            if service != Service::Ud && counted.sent_packets + counted.received_packets > 0 {
                of.unclaimed.connection_ended(qpn, flow.destination);
            }
        }
        self.showing.end_link(vnic, (qpn, peer_qpn), &counted);
    }

    /// The application of a link may not ask for these any more.
    pub(super) fn refuse(&mut self, vnic: VnicId, link: (Qpn, Qpn), refused: Operations) {
        for index in self.links.of(link.0, link.1) {
            if let Some(link) = self.links.get_mut(index)
                && link.ends().vnic == vnic
            {
                link.refuse(refused);
                self.links.touch(index, Reason::News);
            }
        }
    }

    /// Packets of a link go to this UDP port of its peer's from now on.
    pub(super) fn set_peer_port(&mut self, vnic: VnicId, link: (Qpn, Qpn), port: u16) {
        for index in self.links.of(link.0, link.1) {
            if let Some(link) = self.links.get_mut(index)
                && link.ends().vnic == vnic
            {
                link.set_peer_port(port);
                self.links.touch(index, Reason::News);
            }
        }
    }

    pub(super) fn attach(&mut self, attach: &Attach) {
        // The application's QP was reset and comes back. Datagram peers on different hosts may have
        // the same number.
        let Attach { qpn, peer_qpn, underlay: UnderlayRoute { remote, .. }, .. } = *attach;
        let mut same = self.links.of(qpn, peer_qpn);
        let leads = |link: &Link| link.ends().flow.destination == remote;
        same.retain(|index| self.links.get(*index).is_some_and(leads));
        self.drop_links(&same);
        match self.try_attach(attach) {
            Ok(index) => {
                self.links.touch(index, Reason::News);
                if attach.service == Service::Ud || attach.handover.is_some() {
                    self.take_unclaimed(index);
                }
            }
            Err(_) => {
                self.bells.drop_unused(attach.bell);
                let status = Status::LocalProtection;
                let event = match attach.handover {
                    None => Event::Failed { qpn, peer_qpn, status },
                    Some(_) => Event::NotServed { qpn, peer_qpn },
                };
                let _ = self.outbox.post(attach.vnic, event);
            }
        }
    }

    fn try_attach(&mut self, attach: &Attach) -> io::Result<usize> {
        // One whose last link ended is not kept; it may be the same for the next.
        if let Some(memory) = &attach.bell_memory
            && self.bells.doorbell(attach.bell).is_none()
        {
            let carrier = self.vnics.get(attach.vnic).and_then(|vnic| vnic.sockets.carried());
            self.bells.add(attach.bell, memory, carrier)?;
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let doorbell = self.bells.doorbell(attach.bell).ok_or_else(missing)?;
        let (request_bytes, response_bytes) = (attach.request_bytes, attach.response_bytes);
        let bytes = layout::link_bytes(request_bytes, response_bytes);
        let endpoint = Endpoint::new(EndpointParts {
            memory: attach.link.map_exactly(bytes)?,
            side: 1,
            request_bytes,
            response_bytes,
            doorbell,
            peer_slot: attach.peer_slot,
        })
        .ok_or_else(missing)?;
        let UnderlayRoute { local, remote, interface, key: None } = attach.underlay else {
            // Our sockets are in the vNIC's own network.
            return Err(io::ErrorKind::Unsupported.into());
        };
        let vnic = self.vnics.get(attach.vnic);
        let source_port = vnic.and_then(|vnic| vnic.sockets.source_port(remote));
        let flow = IcrcFlow {
            source: local,
            destination: remote,
            source_port: source_port.unwrap_or(PORT),
        };
        let allowance = vnic.map(|vnic| vnic.allowance.clone()).unwrap_or_default();
        let Attach { qpn, peer_qpn, service, .. } = *attach;
        // A peer within this engine is an Omniverb, too.
        let features = if attach.within.is_some() { peer_features::ALL } else { attach.features };
        let trains = match attach.features != 0 && attach.within.is_none() {
            true => Trains::AcknowledgementFirst,
            false => Trains::OneByOne,
        };
        let kind = match service {
            Service::Ud => {
                // An Omniverb reports instead, and a group is not slowed down.
                let throttle = match features == 0 && !peer_qpn.is_group() {
                    true => self.links.throttle(attach.vnic, qpn, remote),
                    false => Arc::default(),
                };
                let datagrams =
                    Datagrams::new(endpoint, qpn, peer_qpn, features, allowance, throttle);
                Kind::Datagrams(Box::new(datagrams))
            }
            _ => {
                let mut connected = Connected::new(
                    endpoint,
                    service,
                    (qpn, peer_qpn),
                    features,
                    request_bytes,
                    allowance,
                    trains,
                );
                // Its process says so, and harms its own connection if it lies.
                let state = attach.handover.as_deref().filter(|state| !state.is_empty());
                if let Some(state) = state {
                    let restored =
                        Handover::from_bytes(state).and_then(|state| connected.restore(&state));
                    restored.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                }
                Kind::Connected(Box::new(connected))
            }
        };
        let (vnic, within) = (attach.vnic, attach.within);
        let ends = Ends { vnic, qpn, peer_qpn, service, flow, interface, within };
        let bell = (attach.bell, attach.local_slot);
        let mut link = Link::new(ends, kind, bell, attach.peer_port);
        link.refuse(attach.refused);
        let index = self.links.insert(link);
        self.bells.bind(bell, index);
        Ok(index)
    }
}
