//! Handles management datagrams of queue pair 1.
//!
//! In: from the network, packets for queue pair 1; from the control plane, what to send. Out:
//! answers to ids of ours, and other datagrams within a limit, to the control plane; its own leave
//! at once. Answers to strangers have a limit, since strangers choose their number. Messages of ids
//! are bounded by the number of ids, and some are sent once.

use super::State;
use crate::command::{Event, Recipient};
use crate::worker::checked_packet::CheckedPacket;
use omniverb_sys::clock;
use omniverb_terms::{Psn, Qkey, Qpn, UnderlayRoute, VnicId};
use omniverb_transport::unreliable_datagram::{self, Address, Message};
use omniverb_wire::{DATAGRAM_MAX, Fragments, IcrcFlow, Identification};

/// Bytes of a management datagram, always (InfiniBand specification 13.4.2).
const MAD_BYTES: usize = 256;

impl State {
    /// A packet for queue pair 1.
    pub(super) fn management(&mut self, vnic: VnicId, checked: &CheckedPacket<'_>) {
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let Ok(arrived) = unreliable_datagram::read(&checked.packet, Qkey::GENERAL_SERVICES) else {
            return;
        };
        // A datagram of no connection manager is ignored. Where ranges of QPNs are vNICs' own, the
        // reader knows the number of the sender's.
        let source = arrived.source;
        let is_flat = home.services == Qpn::GENERAL_SERVICES;
        let is_strange = is_flat && source != Qpn::GENERAL_SERVICES;
        if is_strange || arrived.message.data.len() != MAD_BYTES {
            return;
        }
        // An answer to an id of ours is heard, whatever strangers send.
        let data = arrived.message.data;
        let is_answer = home.spoken.is_answered(data, checked.from);
        if is_answer || home.reports.may_manage(checked.from, clock::now()) {
            let underlay = UnderlayRoute::plain(checked.local, checked.from, checked.interface);
            let datagram = data.to_vec();
            let event = Event::Management { vnic, source, underlay, datagram, is_answer };
            let _ = self.outbox.post(vnic, event);
        }
    }

    /// Sends a management datagram. One that cannot leave is lost, as in a network.
    pub(super) fn manage(
        &mut self,
        vnic: VnicId,
        (underlay, services): (&UnderlayRoute, Qpn),
        data: &[u8],
        recipient: Recipient,
    ) {
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let now = clock::now();
        match recipient {
            Recipient::Stranger => {
                let may_answer = home.reports.may_answer(underlay.remote, now);
                if !may_answer || !home.sockets.may_send_to_stranger(underlay.remote) {
                    return;
                }
            }
            Recipient::Known => home.spoken.sends(data, underlay.remote, now),
        }
        let UnderlayRoute { local: source, remote: destination, interface, key: None } = *underlay
        else {
            return; // our sockets are in the vNIC's own network
        };
        let Some(source_port) = home.sockets.source_port(destination) else { return };
        let (queue_key, source_qpn) = (Qkey::GENERAL_SERVICES, home.services);
        let address = Address { destination: services, queue_key, source: source_qpn };
        let message = Message { immediate: None, is_solicited: false, data };
        let mut packet = [0; DATAGRAM_MAX];
        let psn = Psn::new(home.next_management_psn());
        let Some(length) = unreliable_datagram::write(&mut packet, &address, psn, &message) else {
            return;
        };
        let Some(packet) = packet.get_mut(..length) else { return };
        let flow = IcrcFlow { source, destination, source_port };
        flow.seal(packet, 0);
        if home.capture.is_on() {
            let identification = Identification { id: 0, fragments: Fragments::Forbidden };
            home.capture.add(&flow, identification, 2, packet);
        }
        match &mut home.tunnel {
            None => drop(home.sockets.send(&flow, interface, packet, length)),
            Some(tunnel) => {
                tunnel.send(&flow, interface, (packet, length));
                self.settle_tunnel(vnic);
            }
        }
    }
}
