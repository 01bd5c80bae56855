//! Encrypts what virtual networks exchange between hosts: one tunnel for each encrypted tenant.
//!
//! All tunnels share UDP port 1000 of this host's own network namespace. Several tenants may have
//! one underlay address, so a packet's number (SPI) says of which tenant it is: each tunnel gives
//! out numbers of a block of its own. A number that was guessed opens nothing. What was opened is
//! given to vNICs of that tenant alone.
//!
//! A request does not say in plain whose it is. It is tried with each tenant that has the address
//! it came to, within a budget. A tenant without a tunnel or a port sends nothing.

use crate::command::{Encryption, Event};
use crate::event_outbox::Outbox;
use crate::network::roce_port::{Arrival, Buffers, Sockets};
use crate::pacing::per_sender_budget::{Rate, Shares};
use omniverb_psp::tunnel::{
    self, Addresses, OutgoingDatagrams, SealOutcome, Tunnel, TunnelEvent, is_message, is_request,
};
use omniverb_psp::{SpiBlock, TenantKey};
use omniverb_sys::random;
use omniverb_sys::udp_socket::UdpPort;
use omniverb_terms::VnicId;
use omniverb_wire::{IcrcFlow, PORT};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Budget: encrypted virtual networks of this host that have processes at the same time. A further
/// one reaches no other host.
const TUNNELS_MAX: usize = 256;
/// Budget: requests for keys that are looked at, of all virtual networks. A request costs two
/// ciphers of 100 bytes for each tenant at its address.
const KEYS: Rate = Rate { per_second: 2000, at_once: 512 };
/// Budget: of those, of one address.
const KEYS_OF_ONE: Rate = Rate { per_second: 200, at_once: 64 };
/// Budget: words that a number is unknown that are sent, of all virtual networks. Packets without
/// end of numbers that nobody has take nothing from requests.
const WORDS: Rate = Rate { per_second: 1000, at_once: 256 };
/// Budget: of those, to one address.
const WORDS_OF_ONE: Rate = Rate { per_second: 100, at_once: 32 };

/// What leaves for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// A packet of a vNIC to another.
    Packet,
    /// A copy of a packet to a group.
    Copy,
}

/// The tunnel of a virtual network.
struct TenantTunnel {
    tunnel: Tunnel,
    block: SpiBlock,
    /// vNICs with processes, and their underlay addresses.
    users: BTreeMap<VnicId, IpAddr>,
    /// When it is looked at.
    alarm: u64,
}

/// All of them.
pub(super) struct TenantTunnels {
    port: Option<Arc<UdpPort>>,
    sockets: Option<Sockets>,
    buffers: Option<Buffers>,
    tunnels: BTreeMap<u64, TenantTunnel>,
    /// Virtual networks whose packets do not leave in plain, whether or not they have a tunnel.
    encrypted: BTreeMap<u64, BTreeSet<VnicId>>,
    blocks: BTreeMap<SpiBlock, u64>,
    alarms: BTreeSet<(u64, u64)>,
    /// How many vNICs of a virtual network are at an underlay address.
    places: BTreeMap<(IpAddr, u64), usize>,
    requests: Shares,
    words: Shares,
    /// A packet, sealed; its memory is used again.
    sealed: Vec<u8>,
    outbox: Outbox,
}

impl TenantTunnels {
    pub(super) fn new(outbox: Outbox, now: u64) -> TenantTunnels {
        TenantTunnels {
            port: None,
            sockets: None,
            buffers: None,
            tunnels: BTreeMap::new(),
            encrypted: BTreeMap::new(),
            blocks: BTreeMap::new(),
            alarms: BTreeSet::new(),
            places: BTreeMap::new(),
            requests: Shares::new(KEYS, KEYS_OF_ONE, now),
            words: Shares::new(WORDS, WORDS_OF_ONE, now),
            sealed: Vec::new(),
            outbox,
        }
    }

    /// Whether it has this port.
    pub(super) fn has_port(&self, port: Option<&Arc<UdpPort>>) -> bool {
        match (&self.port, port) {
            (Some(own), Some(port)) => Arc::ptr_eq(own, port),
            (None, None) => true,
            _ => false,
        }
    }

    /// Uses this port from now on.
    pub(super) fn set_port(&mut self, port: Option<Arc<UdpPort>>) {
        self.sockets = port.clone().and_then(|port| Sockets::new(port).ok());
        self.port = port;
        self.buffers = self.sockets.is_some().then(Buffers::new);
    }

    /// The sockets of the port.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flat_map(Sockets::files)
    }

    /// Whether packets of a virtual network do not leave in plain, and none are taken in plain.
    pub(super) fn has(&self, network: u64) -> bool {
        self.encrypted.contains_key(&network)
    }

    /// A vNIC of an encrypted virtual network has processes.
    pub(super) fn join(
        &mut self,
        network: u64,
        (vnic, underlay): (VnicId, IpAddr),
        encryption: Encryption,
        now: u64,
    ) {
        self.encrypted.entry(network).or_default().insert(vnic);
        let lifetime = u64::try_from(encryption.lifetime.as_nanos()).unwrap_or(u64::MAX);
        self.set_keys(network, (encryption.keys.clone(), lifetime), now);
        if !self.tunnels.contains_key(&network) && self.tunnels.len() < TUNNELS_MAX {
            // Any one: after a restart of this host it is hardly what another tenant had before.
            let mut first = [0];
            random::fill(&mut first);
            let mut blocks = (0..=u8::MAX).map(|n| SpiBlock::new(n.wrapping_add(first[0])));
            let Some(block) = blocks.find(|block| !self.blocks.contains_key(block)) else { return };
            let random = Box::new(random::fill);
            let tunnel = Tunnel::sharing_port(block, encryption.keys, lifetime, random, now);
            let alarm = tunnel.next_timeout();
            self.alarms.insert((alarm, network));
            self.blocks.insert(block, network);
            let users = BTreeMap::new();
            self.tunnels.insert(network, TenantTunnel { tunnel, block, users, alarm });
        }
        if let Some(tunnel) = self.tunnels.get_mut(&network) {
            let before = tunnel.users.insert(vnic, underlay);
            *self.places.entry((underlay, network)).or_default() += 1;
            before.into_iter().for_each(|before| self.is_gone_from(before, network));
        }
    }

    /// A vNIC sends no more. With the last one the tunnel of its virtual network goes.
    pub(super) fn leave(&mut self, network: u64, vnic: VnicId) {
        if let Some(users) = self.encrypted.get_mut(&network) {
            users.remove(&vnic);
            if users.is_empty() {
                self.encrypted.remove(&network);
            }
        }
        let Some(it) = self.tunnels.get_mut(&network) else { return };
        let underlay = it.users.remove(&vnic);
        if it.users.is_empty() {
            self.blocks.remove(&it.block);
            self.alarms.remove(&(it.alarm, network));
            self.tunnels.remove(&network);
        }
        underlay.into_iter().for_each(|underlay| self.is_gone_from(underlay, network));
    }

    /// A vNIC less of a virtual network is at an underlay address.
    fn is_gone_from(&mut self, underlay: IpAddr, network: u64) {
        if let Some(count) = self.places.get_mut(&(underlay, network)) {
            *count -= 1;
            if *count == 0 {
                self.places.remove(&(underlay, network));
            }
        }
    }

    /// A virtual network is encrypted no more.
    pub(super) fn end(&mut self, network: u64) {
        let users = self.encrypted.get(&network).cloned().unwrap_or_default();
        users.into_iter().for_each(|vnic| self.leave(network, vnic));
    }

    /// The tenant has these keys, the newest first, and this lifetime of those of packets. The same
    /// as before change nothing.
    fn set_keys(&mut self, network: u64, (keys, lifetime): (Vec<TenantKey>, u64), now: u64) {
        let Some(it) = self.tunnels.get_mut(&network) else { return };
        it.tunnel.set_lifetime(lifetime, now);
        if it.tunnel.keys() != keys {
            it.tunnel.set_keys(keys, now);
        }
        self.settle(network);
    }

    /// Seals a packet of a virtual network and sends it, or keeps it until there is a key for it.
    pub(super) fn send(
        &mut self,
        network: u64,
        addresses: Addresses,
        (packet, kind): (&[u8], Outgoing),
        now: u64,
    ) {
        let (Some(it), Some(sockets)) = (self.tunnels.get_mut(&network), &self.sockets) else {
            return;
        };
        self.sealed.clear();
        let (to, train) = ((addresses, 0), (packet, packet.len()));
        let outcome = match kind {
            Outgoing::Packet => it.tunnel.seal(to, PORT, train, &mut self.sealed, now),
            Outgoing::Copy => it.tunnel.seal_copy(to, PORT, packet, &mut self.sealed, now),
        };
        if let SealOutcome::Now(segment) = outcome {
            send_to(sockets, to, &self.sealed, segment);
        }
        self.settle(network);
    }

    /// Says to these addresses that this host is there.
    pub(super) fn introduce(
        &mut self,
        network: u64,
        all: impl Iterator<Item = Addresses>,
        now: u64,
    ) {
        let Some(it) = self.tunnels.get_mut(&network) else { return };
        all.for_each(|ends| it.tunnel.introduce((ends, 0), now));
        self.settle(network);
    }

    /// A packet in plain came to a vNIC of an encrypted virtual network.
    pub(super) fn heard_plain(&mut self, network: u64, addresses: Addresses) {
        if let Some(it) = self.tunnels.get_mut(&network) {
            it.tunnel.heard_plain(addresses);
            self.settle(network);
        }
    }

    /// Takes what has come to a socket of the port. `deliver`: gets each packet that was opened and
    /// the virtual network that it is of.
    pub(super) fn receive(
        &mut self,
        socket: usize,
        now: u64,
        is_here: impl Fn(IpAddr) -> bool,
        mut deliver: impl FnMut(u64, &Arrival, &[u8]),
    ) {
        let Some((sockets, mut buffers)) = self.sockets.take().zip(self.buffers.take()) else {
            return;
        };
        sockets.receive_in_place(socket, &mut buffers, |arrival, train, stride| {
            let Arrival { flow, interface, .. } = *arrival;
            let ends = Addresses { local: flow.destination, remote: flow.source };
            // A process of this host's own namespace may have sent that.
            if is_here(ends.remote) || ends.local.is_multicast() {
                return;
            }
            for one in train.chunks_mut(stride.max(1)) {
                if is_message(one) {
                    self.hear((ends, interface), one, now, &sockets);
                } else if let Some((network, packet)) =
                    self.open((ends, interface), one, now, &sockets)
                {
                    deliver(network, arrival, packet);
                }
            }
        });
        (self.sockets, self.buffers) = (Some(sockets), Some(buffers));
    }

    /// A message is for one of the tenants that have the address; which one, is tried.
    fn hear(&mut self, from: (Addresses, u32), message: &[u8], now: u64, sockets: &Sockets) {
        let (Addresses { local, remote }, _) = from;
        // Before anything is spent on it. Answers and words that nobody waits for cost a look.
        let is_here = self.at(local).next().is_some();
        if !is_here || is_request(message) && !self.requests.take(remote, now) {
            return;
        }
        let at_address: Vec<u64> = self.at(local).collect();
        for network in at_address {
            let Some(it) = self.tunnels.get_mut(&network) else { continue };
            let is_found = it.tunnel.hear(from, message, now, || true);
            self.settle_by(network, Some(sockets));
            if is_found {
                return;
            }
        }
    }

    /// The virtual networks that have an underlay address.
    fn at(&self, local: IpAddr) -> impl Iterator<Item = u64> {
        let all = (local, u64::MIN)..=(local, u64::MAX);
        self.places.range(all).map(|((_, network), _)| *network)
    }

    /// Opens a packet. Its virtual network, and what was in it.
    fn open<'a>(
        &mut self,
        from: (Addresses, u32),
        packet: &'a mut [u8],
        now: u64,
        sockets: &Sockets,
    ) -> Option<(u64, &'a [u8])> {
        let (Addresses { local, remote }, interface) = from;
        let spi = tunnel::number_of(packet)?;
        let network = self.blocks.get(&SpiBlock::of(spi)).copied();
        let network = network.filter(|network| self.places.contains_key(&(local, *network)));
        let it = network.and_then(|network| self.tunnels.get_mut(&network));
        let Some((network, it)) = network.zip(it) else {
            // The tenant that had the number is gone, or the daemon was restarted.
            if self.at(local).next().is_some() && self.words.take(remote, now) {
                let OutgoingDatagrams { bytes, segment, .. } =
                    tunnel::unknown_number(spi, from.0, interface);
                send_to(sockets, from, &bytes, segment);
            }
            return None;
        };
        let words = &mut self.words;
        let opened = it.tunnel.open(from, packet, now, || words.take(remote, now));
        let packet = opened.ok().filter(|(port, _)| *port == PORT).map(|(_, packet)| &*packet);
        if packet.is_none() {
            self.settle_by(network, Some(sockets));
        }
        packet.map(|packet| (network, packet))
    }

    /// When something is due.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.alarms.first().map(|(due, _)| *due)
    }

    /// Time has passed.
    pub(super) fn timeout(&mut self, now: u64) {
        while let Some((_, network)) = self.alarms.first().copied().filter(|(due, _)| *due <= now) {
            let Some(it) = self.tunnels.get_mut(&network) else {
                self.alarms.pop_first();
                continue;
            };
            it.tunnel.timeout(now);
            self.settle(network);
            // A tunnel that wants to be looked at without end is looked at next time.
            if self.tunnels.get(&network).is_some_and(|it| it.alarm <= now) {
                return;
            }
        }
    }

    fn settle(&mut self, network: u64) {
        let sockets = self.sockets.take();
        self.settle_by(network, sockets.as_ref());
        self.sockets = sockets;
    }

    /// Sends what a tunnel has to say, tells the control plane what it is to know, and sets when it
    /// is looked at.
    fn settle_by(&mut self, network: u64, sockets: Option<&Sockets>) {
        let Some(it) = self.tunnels.get_mut(&network) else { return };
        while let Some(out) = it.tunnel.next_outgoing() {
            let OutgoingDatagrams { addresses, interface, bytes, segment } = out;
            if let Some(sockets) = sockets {
                send_to(sockets, (addresses, interface), &bytes, segment);
            }
        }
        while let Some(event) = it.tunnel.next_event() {
            let (remote, refusal) = match event {
                TunnelEvent::Refused(remote, why) => (remote, Some(why)),
                TunnelEvent::Established(remote) => (remote, None),
            };
            // One is enough: what holds for it holds for all of the tenant.
            if let Some((vnic, _)) = it.users.first_key_value() {
                let vnic = *vnic;
                let _ = self.outbox.post(vnic, Event::Encryption { vnic, remote, refusal });
            }
        }
        let due = it.tunnel.next_timeout();
        if due != it.alarm {
            self.alarms.remove(&(it.alarm, network));
            self.alarms.insert((due, network));
            it.alarm = due;
        }
    }
}

fn send_to(sockets: &Sockets, to: (Addresses, u32), datagrams: &[u8], segment: usize) {
    let (Addresses { local: source, remote: destination }, interface) = to;
    let Some(source_port) = sockets.source_port(destination) else { return };
    let flow = IcrcFlow { source, destination, source_port };
    for one in datagrams.chunks(segment.max(1)) {
        let _ = sockets.send(&flow, interface, one, segment);
    }
}
