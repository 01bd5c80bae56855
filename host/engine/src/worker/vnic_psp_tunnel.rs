//! Joins a vNIC's tunnel with the sockets of its PSP port.

use super::timers::{Alarm, Due, Timers};
use crate::command::Encryption;
use crate::network::roce_port::{Arrival, Sent, Sockets};
use omniverb_psp::TenantKey;
use omniverb_psp::tunnel::{self, Addresses, OutgoingDatagrams, SealOutcome, Tunnel, TunnelEvent};
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{clock, random};
use omniverb_terms::VnicId;
use omniverb_wire::IcrcFlow;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of datagrams that one call sends: what fits into one IP packet.
const CALL_BYTES_MAX: usize = 65_000;

/// Encrypts a vNIC's packets.
pub(super) struct VnicTunnel {
    port: Option<Arc<UdpPort>>,
    sockets: Option<Arc<Sockets>>,
    tunnel: Tunnel,
    alarm: Alarm,
    /// A train, sealed; its memory is used again.
    sealed: Vec<u8>,
}

/// Packets that were decrypted, as trains.
#[derive(Default)]
pub(super) struct Decrypted {
    bytes: Vec<u8>,
    trains: Vec<DecryptedTrain>,
}

/// Packets of one source port, of which all but the last are equally long.
struct DecryptedTrain {
    source_port: u16,
    stride: usize,
    start: usize,
    end: usize,
}

impl Decrypted {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.trains.clear();
    }

    fn add(&mut self, source_port: u16, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        let end = self.bytes.len();
        match self.trains.last_mut() {
            Some(train)
                if train.source_port == source_port
                    && packet.len() <= train.stride
                    && (train.end - train.start).is_multiple_of(train.stride) =>
            {
                train.end = end;
            }
            _ if packet.is_empty() => {}
            _ => {
                let stride = packet.len();
                self.trains.push(DecryptedTrain { source_port, stride, start, end });
            }
        }
    }

    /// Each train: its source port, its packets, and the length of all but the last.
    pub(super) fn trains(&self) -> impl Iterator<Item = (u16, &[u8], usize)> {
        self.trains.iter().filter_map(|train| {
            let bytes = self.bytes.get(train.start..train.end)?;
            Some((train.source_port, bytes, train.stride))
        })
    }
}

fn addresses(arrival: &Arrival) -> (Addresses, u32) {
    let (local, remote) = (arrival.flow.destination, arrival.flow.source);
    (Addresses { local, remote }, arrival.interface)
}

impl VnicTunnel {
    /// Without sockets, if they cannot be used: nothing passes then.
    pub(super) fn new(encryption: Encryption, now: u64) -> VnicTunnel {
        let Encryption { port, keys, lifetime } = encryption;
        let sockets = port.clone().and_then(|port| Sockets::new(port).ok()).map(Arc::new);
        let tunnel = Tunnel::new(keys, nanoseconds(lifetime), Box::new(random::fill), now);
        VnicTunnel { port, sockets, tunnel, alarm: Alarm::default(), sealed: Vec::new() }
    }

    /// Whether it has this port.
    pub(super) fn has_port(&self, port: Option<&Arc<UdpPort>>) -> bool {
        match (&self.port, port) {
            (Some(own), Some(port)) => Arc::ptr_eq(own, port),
            (None, None) => true,
            _ => false,
        }
    }

    /// The tenant has these keys, the newest first, and this lifetime of those of packets. What is
    /// as before changes nothing.
    pub(super) fn set_keys(&mut self, keys: Vec<TenantKey>, lifetime: Duration, now: u64) {
        self.tunnel.set_lifetime(nanoseconds(lifetime), now);
        if self.tunnel.keys() != keys {
            self.tunnel.set_keys(keys, now);
        }
    }

    /// The sockets to watch.
    pub(super) fn sockets(&self) -> Option<&Arc<Sockets>> {
        self.sockets.as_ref()
    }

    /// Sends a train of packets of `segment` bytes, or keeps it until there is a key for it.
    pub(super) fn send(
        &mut self,
        flow: &IcrcFlow,
        interface: u32,
        (train, segment): (&[u8], usize),
    ) -> Sent {
        let Some(sockets) = &self.sockets else { return Sent::Lost };
        self.sealed.clear();
        let to = (Addresses { local: flow.source, remote: flow.destination }, interface);
        let train = (train, segment);
        let now = clock::now();
        match self.tunnel.seal(to, flow.source_port, train, &mut self.sealed, now) {
            SealOutcome::Now(segment) => send_to(sockets, to, &self.sealed, segment),
            SealOutcome::Held => Sent::Taken,
            SealOutcome::Dropped => Sent::Lost,
        }
    }

    /// Opens a train of datagrams that came to the port, and hears messages among them.
    pub(super) fn open(
        &mut self,
        arrival: &Arrival,
        (train, stride): (&mut [u8], usize),
        decrypted: &mut Decrypted,
        now: u64,
        mut may_answer: impl FnMut() -> bool,
    ) {
        let from = addresses(arrival);
        for one in train.chunks_mut(stride.max(1)) {
            if tunnel::is_message(one) {
                self.tunnel.hear(from, one, now, &mut may_answer);
            } else if let Ok((port, packet)) = self.tunnel.open(from, one, now, &mut may_answer) {
                decrypted.add(port, packet);
            }
        }
    }

    /// A packet came in plain.
    pub(super) fn heard_plain(&mut self, arrival: &Arrival) {
        self.tunnel.heard_plain(addresses(arrival).0);
    }

    /// The time that it asked for has come.
    pub(super) fn alarm_went_off(&mut self, now: u64) {
        self.alarm.went_off();
        self.tunnel.timeout(now);
    }

    /// Sends what it has to say.
    pub(super) fn send_outgoing(&mut self) {
        while let Some(OutgoingDatagrams { addresses, interface, bytes, segment }) =
            self.tunnel.next_outgoing()
        {
            if let Some(sockets) = &self.sockets {
                send_to(sockets, (addresses, interface), &bytes, segment);
            }
        }
    }

    pub(super) fn next_event(&mut self) -> Option<TunnelEvent> {
        self.tunnel.next_event()
    }

    /// Has it looked at when something is due.
    pub(super) fn set_alarm(&mut self, vnic: VnicId, timers: &mut Timers) {
        self.alarm.set(timers, Due::Tunnel(vnic), Some(self.tunnel.next_timeout()));
    }

    /// Nothing more is due.
    pub(super) fn close(&mut self, vnic: VnicId, timers: &mut Timers) {
        self.alarm.cancel(timers, Due::Tunnel(vnic));
    }
}

fn nanoseconds(lifetime: Duration) -> u64 {
    u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX)
}

/// Sends datagrams, as many with each call as one takes.
fn send_to(
    sockets: &Sockets,
    (addresses, interface): (Addresses, u32),
    datagrams: &[u8],
    segment: usize,
) -> Sent {
    let Addresses { local: source, remote: destination } = addresses;
    let Some(source_port) = sockets.source_port(destination) else { return Sent::Lost };
    let flow = IcrcFlow { source, destination, source_port };
    let segment = segment.max(1);
    let count = sockets.train_max(destination).min(CALL_BYTES_MAX / segment).max(1);
    let mut sent = Sent::Taken;
    for some in datagrams.chunks(count * segment) {
        if sockets.send(&flow, interface, some, segment) == Sent::Lost {
            sent = Sent::Lost;
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_lifetime_and_other_keys_hold_at_once_and_the_same_change_nothing() {
        const SECOND: u64 = 1_000_000_000;
        let keys = |n: u8| vec![TenantKey::new([n; 16])];
        let hour = Duration::from_secs(3600);
        let mut tunnel =
            VnicTunnel::new(Encryption { port: None, keys: keys(1), lifetime: hour }, 0);
        tunnel.set_keys(keys(1), hour, 10 * SECOND);
        assert_eq!(tunnel.tunnel.next_timeout(), 3600 * SECOND);
        tunnel.set_keys(keys(1), Duration::from_secs(60), 10 * SECOND);
        assert_eq!(tunnel.tunnel.next_timeout(), 70 * SECOND);
        tunnel.set_keys(keys(2), Duration::from_secs(60), 20 * SECOND);
        assert_eq!(tunnel.tunnel.keys(), keys(2));
        assert_eq!(tunnel.tunnel.next_timeout(), 80 * SECOND);
    }

    #[test]
    fn packets_of_one_port_and_length_are_a_train() {
        let mut decrypted = Decrypted::default();
        for (port, length) in [(1, 9), (1, 9), (1, 4), (1, 9), (2, 9), (2, 10), (2, 10), (2, 0)] {
            decrypted.add(port, &vec![port as u8; length]);
        }
        let trains: Vec<_> =
            decrypted.trains().map(|(port, bytes, stride)| (port, bytes.len(), stride)).collect();
        assert_eq!(trains, [(1, 22, 9), (1, 9, 9), (2, 9, 9), (2, 20, 10)]);
        decrypted.clear();
        assert_eq!(decrypted.trains().count(), 0);
    }
}
