//! Applies commands of the control plane.

use super::State;
use crate::command::{Command, Event, Pages};
use crate::worker::thread_sleep::Watcher;
use omniverb_sys::clock;

impl State {
    pub(in crate::worker) fn apply(&mut self, command: Command, watcher: &Watcher) {
        match command {
            Command::OpenVnic { vnic, port, holder, services } => {
                self.open_vnic(vnic, port, (&holder, services), watcher);
            }
            Command::CloseVnic { vnic } => self.close_vnic(vnic, watcher),
            Command::SetLimit { unit, vnic, limit, group } => {
                if let Some(of) = self.vnics.get_mut(vnic) {
                    let (gate, limits) = (of.gates.of(unit), self.limits.of(unit));
                    let free = gate.set_limit(vnic, (limit, group), limits, clock::now());
                    if gate.is_closed() {
                        let _ = self.outbox.post(vnic, Event::LimitRefused { vnic, unit });
                    }
                    self.links.unpark(unit, free);
                }
            }
            Command::SetGroup { unit, group, within, limit } => {
                self.limits.of(unit).set_group(group, within, limit, clock::now());
            }
            Command::CloseGroup { unit, group } => self.limits.of(unit).close_group(group),
            Command::SetFaults { vnic, faults } => self.set_faults(vnic, faults),
            Command::SetEncryption { vnic, encryption } => {
                self.set_encryption(vnic, encryption, watcher);
            }
            Command::SetPlaces { vnic, places } => {
                if let Some(vnic) = self.vnics.get_mut(vnic) {
                    vnic.places = Some(places);
                }
            }
            Command::SetGroupSenders { vnic, senders } => {
                if let Some(vnic) = self.vnics.get_mut(vnic) {
                    vnic.group_senders = senders;
                }
            }
            Command::Attach(attach) => self.attach(&attach),
            Command::Refuse { vnic, qpn, peer_qpn, refused } => {
                self.refuse(vnic, (qpn, peer_qpn), refused);
            }
            Command::SetPeerPort { vnic, qpn, peer_qpn, port } => {
                self.set_peer_port(vnic, (qpn, peer_qpn), port);
            }
            Command::Detach { qpn, peer_qpn } => self.detach(qpn, peer_qpn),
            Command::Grant(grant) => {
                let file = match &grant.memory {
                    Pages::Moved(extent) => Some(extent.file.clone()),
                    // Not ours alone: the file is a machine's memory.
                    Pages::InPlace(_) => None,
                };
                self.granted(grant);
                // The owner may have closed it, or it was not mapped: then no other has it.
                file.into_iter().for_each(|file| self.together.bury(file));
            }
            Command::Withdraw { vnic, row } => self.withdraw(vnic, &row),
            Command::Deny { qpn, peer_qpn, key, denied, .. } => {
                self.denied((qpn, peer_qpn), key, denied);
            }
            Command::Manage { vnic, underlay, services, datagram, recipient } => {
                self.manage(vnic, (&underlay, services), &datagram, recipient);
            }
            Command::Capture { vnic, queue } => {
                if let Some(vnic) = self.vnics.get_mut(vnic) {
                    vnic.capture.set(queue);
                }
            }
            Command::ForgetCounted { vnic } => self.showing.forget(vnic),
        }
    }
}
