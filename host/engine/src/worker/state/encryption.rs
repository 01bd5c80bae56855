//! Encrypts and decrypts packets of vNICs whose tenant wants that.

use super::State;
use crate::command::{Encryption, Event};
use crate::network::handshake_datagram;
use crate::network::roce_port::Arrival;
use crate::worker::thread_sleep::Watcher;
use crate::worker::vnic_psp_tunnel::{Decrypted, VnicTunnel};
use omniverb_psp::tunnel::TunnelEvent;
use omniverb_sys::clock;
use omniverb_terms::VnicId;

impl State {
    /// Packets of a vNIC are encrypted from now on, by other keys, or no more.
    pub(super) fn set_encryption(
        &mut self,
        vnic: VnicId,
        encryption: Option<Box<Encryption>>,
        watcher: &Watcher,
    ) {
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let before = home.tunnel.take();
        if let Some(mut before) = before {
            // The same port: agreed keys stay.
            if let Some(encryption) = &encryption
                && before.has_port(encryption.port.as_ref())
            {
                before.set_keys(encryption.keys.clone(), encryption.lifetime, clock::now());
                home.tunnel = Some(before);
                return self.settle_tunnel(vnic);
            }
            if let Some(sockets) = before.sockets() {
                watcher.remove(sockets);
            }
            before.close(vnic, &mut self.clocked);
        }
        let Some(encryption) = encryption else { return };
        // Without sockets nothing passes.
        let tunnel = VnicTunnel::new(*encryption, clock::now());
        if let Some(sockets) = tunnel.sockets() {
            let _ = watcher.add_psp(vnic, sockets);
        }
        home.tunnel = Some(Box::new(tunnel));
        self.settle_tunnel(vnic);
    }

    /// Decrypts a train of datagrams that came to the PSP port, and hears messages among them.
    pub(super) fn decrypt(
        &mut self,
        vnic: VnicId,
        arrival: &Arrival,
        (train, stride): (&mut [u8], usize),
        decrypted: &mut Decrypted,
    ) {
        decrypted.clear();
        let Some(home) = self.vnics.get_mut(vnic) else { return };
        let Some(tunnel) = &mut home.tunnel else { return };
        // A packet to a group has no receiver: its members have no key in common.
        if arrival.flow.destination.is_multicast() {
            return;
        }
        let (reports, from) = (&mut home.reports, arrival.flow.source);
        let now = clock::now();
        tunnel.open(arrival, (train, stride), decrypted, now, || reports.may_hand_over(from, now));
        self.settle_tunnel(vnic);
    }

    /// Datagrams came in plain to a vNIC whose packets are encrypted: only handshakes of Omniverbs
    /// are heard.
    pub(super) fn plain_arrived(
        &mut self,
        vnic: VnicId,
        arrival: &Arrival,
        train: &[u8],
        stride: usize,
    ) {
        let mut is_packet = false;
        for one in train.chunks(stride.max(1)) {
            match handshake_datagram::read(one) {
                Some(_) => self.not_a_packet(vnic, arrival, one),
                None => is_packet = true,
            }
        }
        let home = self.vnics.get_mut(vnic).filter(|_| is_packet);
        if let Some(tunnel) = home.and_then(|home| home.tunnel.as_mut()) {
            tunnel.heard_plain(arrival);
            self.settle_tunnel(vnic);
        }
    }

    /// The time that a tunnel asked for has come.
    pub(super) fn tunnel_alarm_went_off(&mut self, vnic: VnicId) {
        if let Some(tunnel) = self.vnics.get_mut(vnic).and_then(|home| home.tunnel.as_mut()) {
            tunnel.alarm_went_off(clock::now());
            self.settle_tunnel(vnic);
        }
    }

    /// Sends what a tunnel has to say, and tells the control plane what it is to know.
    pub(super) fn settle_tunnel(&mut self, vnic: VnicId) {
        let Some(tunnel) = self.vnics.get_mut(vnic).and_then(|home| home.tunnel.as_mut()) else {
            return;
        };
        tunnel.send_outgoing();
        tunnel.set_alarm(vnic, &mut self.clocked);
        while let Some(event) = tunnel.next_event() {
            let (remote, refusal) = match event {
                TunnelEvent::Refused(remote, why) => (remote, Some(why)),
                TunnelEvent::Established(remote) => (remote, None),
            };
            let _ = self.outbox.post(vnic, Event::Encryption { vnic, remote, refusal });
        }
    }
}
