//! Encrypts what a vNIC, or a virtual network, sends to other addresses, and opens what arrives
//! from them.
//!
//! In: trains of packets to send, datagrams from the PSP port, the time, random numbers. Out:
//! sealed trains, messages of the handshake, packets that a holder of the tenant's key has sealed,
//! and events.
//!
//! * Each direction has a key of its own, which its receiver makes and hands over by a
//!   [`key_handshake`]. The first packet to an address asks for one. Packets wait for it, a bounded
//!   number of bytes, and are sent when it comes.
//! * A request is sent again a few times. An address that does not answer gets nothing: packets to
//!   it are dropped, and it is asked again a second later. For copies to groups, which go to silent
//!   hosts, too, it is asked ever more rarely.
//! * The receiver changes its master key once in each lifetime, and opens packets of the one before
//!   until the next change. A sender asks for another key after half a lifetime, and goes on with
//!   the old one meanwhile, so that nothing is lost.
//! * A receiver that was restarted knows none of its old numbers, or has given one to another
//!   tenant, whose key opens nothing of the old sender's. It says so, without proof. The sender
//!   then asks for another key, at most a few times a second.

mod datagrams;
mod peer;
mod sealing;

use crate::header::Header;
use crate::key_handshake::{Accepted, Pending};
use crate::packet_keys::{MasterKey, Spi};
use crate::receiver::{DropReason, NumberLimits, Receiver};
use crate::sender::sealed_bytes;
use crate::spi_block::SpiBlock;
use datagrams::{ROCE_PORT, UDP_BYTES, UNKNOWN_SPI, message, seal_train};
use omniverb_vgid::TenantKey;
use peer::{CurrentKey, HEEDED_AGAIN, HeldTrain, Peer, PendingRequest};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use zeroize::Zeroizing;

pub use datagrams::{
    Addresses, OutgoingDatagrams, is_message, is_request, number_of, unknown_number,
};

const MILLISECOND: u64 = 1_000_000;
/// Bytes that a packet takes more than in plain: the headers of PSP and of the UDP inside, and the
/// integrity check value.
pub const OVERHEAD_BYTES: usize = sealed_bytes(UDP_BYTES);
/// Budget: addresses that a tunnel has keys with, or asks for one. The one that was idle longest
/// makes way.
const TUNNEL_PEERS_MAX: usize = 512;
/// Budget: bytes of packets that wait for keys, of all addresses.
const HELD_BYTES_MAX: usize = 1 << 20;
/// Budget: numbers that a tunnel has given out and that were not used.
const UNUSED_NUMBERS_MAX: usize = 1024;
/// Budget: numbers of one address that are in use; its oldest makes way. Two are enough but while
/// keys change.
const NUMBERS_OF_ONE: usize = 4;
/// All of that.
const NUMBERS: NumberLimits = NumberLimits {
    unused: UNUSED_NUMBERS_MAX,
    used: NUMBERS_OF_ONE * TUNNEL_PEERS_MAX,
    used_by_owner: NUMBERS_OF_ONE,
};
/// The shortest and the longest lifetime of a master key, in nanoseconds.
const LIFETIME: std::ops::RangeInclusive<u64> = 1_000_000_000..=86_400_000_000_000;

/// Fills bytes with numbers that nobody can guess.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Why an address gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It has not answered the handshake.
    NoAnswer,
    /// It sends RoCE in plain.
    Plain,
}

/// What the control plane is to know of an address: each change once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// It gets nothing.
    Refused(IpAddr, Refusal),
    /// It has answered, after it had not.
    Established(IpAddr),
}

/// What became of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealOutcome {
    /// It is sealed, in datagrams of this length but for the last.
    Now(usize),
    /// It waits for the other side's answer.
    Held,
    /// It is dropped.
    Dropped,
}

/// What has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounters {
    /// Packets that were opened.
    pub opened: u64,
    /// Packets that were sealed.
    pub sealed: u64,
    /// Packets that no holder of the key has sealed so.
    pub forged: u64,
    /// Packets that arrived before.
    pub replayed: u64,
    /// Packets of numbers that were not given to their sender.
    pub unknown: u64,
    /// Packets that arrived without encryption.
    pub plain: u64,
    /// Answers to requests that were found good.
    pub answered: u64,
}

/// Keys of a vNIC, or of a virtual network on one host, and those of its peers.
pub struct Tunnel {
    /// The newest first, by which is asked; all of them are answered.
    keys: Vec<TenantKey>,
    lifetime: u64,
    random: Random,
    receiver: Receiver,
    /// When the master key changes.
    changes_at: u64,
    peers: HashMap<Addresses, Peer>,
    owners: u64,
    /// Requests under way, by when something is due.
    asking: BTreeSet<(u64, Addresses)>,
    held_bytes: usize,
    outgoing: VecDeque<OutgoingDatagrams>,
    events: VecDeque<TunnelEvent>,
    counters: TunnelCounters,
}

fn master_key(random: &mut Random) -> MasterKey {
    let mut bytes = Zeroizing::new([0; 32]);
    random(&mut *bytes);
    MasterKey::new(*bytes)
}

fn salt(random: &mut Random) -> [u8; 16] {
    let mut bytes = [0; 16];
    random(&mut bytes);
    bytes
}

/// Where a receiver begins in its range.
fn place(random: &mut Random) -> u32 {
    let mut bytes = [0; 4];
    random(&mut bytes);
    u32::from_be_bytes(bytes)
}

impl Tunnel {
    /// With a tenant's keys, the newest first, and the lifetime of master keys in nanoseconds: one
    /// second to one day.
    #[must_use]
    pub fn new(keys: Vec<TenantKey>, lifetime: u64, random: Random, now: u64) -> Tunnel {
        Tunnel::with_numbers(keys, lifetime, random, now, None)
    }

    /// As [`Tunnel::new`], with numbers of this block alone: other tunnels have the same port, and
    /// give out those of other blocks.
    #[must_use]
    pub fn sharing_port(
        block: SpiBlock,
        keys: Vec<TenantKey>,
        lifetime: u64,
        random: Random,
        now: u64,
    ) -> Tunnel {
        Tunnel::with_numbers(keys, lifetime, random, now, Some(block))
    }

    fn with_numbers(
        keys: Vec<TenantKey>,
        lifetime: u64,
        mut random: Random,
        now: u64,
        block: Option<SpiBlock>,
    ) -> Tunnel {
        let lifetime = lifetime.clamp(*LIFETIME.start(), *LIFETIME.end());
        Tunnel {
            keys,
            lifetime,
            receiver: Receiver::with_limits(master_key(&mut random), NUMBERS, block)
                .beginning_at(place(&mut random)),
            random,
            changes_at: now.saturating_add(lifetime),
            peers: HashMap::new(),
            owners: 0,
            asking: BTreeSet::new(),
            held_bytes: 0,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: TunnelCounters::default(),
        }
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> TunnelCounters {
        self.counters
    }

    /// What is to be sent next, beside what was asked for.
    pub fn next_outgoing(&mut self) -> Option<OutgoingDatagrams> {
        self.outgoing.pop_front()
    }

    /// What the control plane is to know next.
    pub fn next_event(&mut self) -> Option<TunnelEvent> {
        self.events.pop_front()
    }

    /// When [`Tunnel::timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> u64 {
        self.asking.first().map_or(self.changes_at, |(due, _)| self.changes_at.min(*due))
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: u64) {
        if now >= self.changes_at {
            if !self.receiver.is_unused() {
                self.receiver.rotate(master_key(&mut self.random));
            }
            self.changes_at = now.saturating_add(self.lifetime);
        }
        while let Some((due, addresses)) =
            self.asking.first().copied().filter(|(due, _)| *due <= now)
        {
            self.asking.remove(&(due, addresses));
            let Some(peer) = self.peers.get_mut(&addresses) else { continue };
            let Some(asking) = &mut peer.asking else { continue };
            if asking.tries_again() {
                let bytes = asking.pending.request().to_vec();
                let is_refused = asking.is_refused();
                self.asking.insert((asking.due(), addresses));
                self.outgoing.push_back(message(addresses, peer.interface, bytes));
                if is_refused {
                    self.refuse(addresses, Refusal::NoAnswer, now);
                }
            } else {
                peer.note_silence(now);
                self.refuse(addresses, Refusal::NoAnswer, now);
            }
        }
    }

    /// Packets to an address are dropped, unless there still is a key for them.
    fn refuse(&mut self, addresses: Addresses, why: Refusal, now: u64) {
        let Some(peer) = self.peers.get_mut(&addresses) else { return };
        if peer.key.as_ref().is_some_and(|key| now < key.ends_at) {
            return;
        }
        let (_, bytes) = peer.take_held();
        self.held_bytes -= bytes;
        if !peer.is_for_copies && !std::mem::replace(&mut peer.is_refusal_told, true) {
            self.events.push_back(TunnelEvent::Refused(addresses.remote, why));
        }
    }

    /// The peer at these addresses, which there may be room for at the cost of another.
    fn peer(&mut self, addresses: Addresses, interface: u32, now: u64) -> &mut Peer {
        if !self.peers.contains_key(&addresses) && self.peers.len() >= TUNNEL_PEERS_MAX {
            let idle = self.peers.iter().min_by_key(|(_, peer)| (peer.key.is_some(), peer.used_at));
            if let Some(idle) = idle.map(|(addresses, _)| *addresses) {
                self.forget(idle);
            }
        }
        let owners = &mut self.owners;
        self.peers.entry(addresses).or_insert_with(|| {
            *owners += 1;
            Peer::new(*owners, interface, now)
        })
    }

    fn forget(&mut self, addresses: Addresses) {
        let Some(mut peer) = self.peers.remove(&addresses) else { return };
        self.held_bytes -= peer.take_held().1;
        self.receiver.forget_owner(peer.owner);
        if let Some(asking) = peer.asking {
            self.asking.remove(&(asking.due(), addresses));
        }
    }

    /// Asks for a key.
    fn ask(&mut self, addresses: Addresses, now: u64) {
        let Some(peer) = self.peers.get_mut(&addresses) else { return };
        if peer.asking.is_some() || now < peer.asked_again_at {
            return;
        }
        let Some(key) = self.keys.first() else { return };
        let salt = salt(&mut self.random);
        let Some(pending) = Pending::new(key, addresses.as_sender(), salt) else { return };
        let bytes = pending.request().to_vec();
        let asking = PendingRequest::new(pending, now);
        self.asking.insert((asking.due(), addresses));
        peer.asking = Some(asking);
        self.outgoing.push_back(message(addresses, peer.interface, bytes));
    }

    /// Opens a packet that came to the PSP port, where it lies: the UDP source port inside, and
    /// what this port sent. `may_tell`: whether this sender may be told that a number is unknown,
    /// or not known to be its own.
    ///
    /// # Errors
    /// Why it is dropped. Its bytes are anything then.
    pub fn open<'a>(
        &mut self,
        (addresses, interface): (Addresses, u32),
        packet: &'a mut [u8],
        now: u64,
        may_tell: impl FnOnce() -> bool,
    ) -> Result<(u16, &'a mut [u8]), DropReason> {
        let spi = Header::decode(packet).map_err(|_| DropReason::Malformed)?.spi;
        let opened = match self.peers.get_mut(&addresses) {
            Some(peer) => {
                let opened = self.receiver.open_of(peer.owner, packet);
                if opened.is_ok() {
                    peer.used_at = now;
                }
                opened
            }
            None => Err(DropReason::Unknown),
        };
        match &opened {
            Ok(_) => self.counters.opened += 1,
            Err(DropReason::Forged) => self.counters.forged += 1,
            Err(DropReason::Replayed) => self.counters.replayed += 1,
            Err(DropReason::Unknown) => self.counters.unknown += 1,
            Err(DropReason::Malformed | DropReason::Full) => {}
        }
        // A number may be another's by now: its sender has it from before a restart, perhaps from
        // another tenant's tunnel.
        if matches!(opened, Err(DropReason::Unknown | DropReason::Forged)) && may_tell() {
            self.outgoing.push_back(unknown_number(spi, addresses, interface));
        }
        let (header, payload) =
            opened?.split_first_chunk_mut::<UDP_BYTES>().ok_or(DropReason::Malformed)?;
        let [s0, s1, d0, d1, l0, l1, ..] = *header;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if u16::from_be_bytes([d0, d1]) != ROCE_PORT || length != UDP_BYTES + payload.len() {
            return Err(DropReason::Malformed);
        }
        Ok((u16::from_be_bytes([s0, s1]), payload))
    }

    /// The tenant's keys, the newest first.
    #[must_use]
    pub fn keys(&self) -> &[TenantKey] {
        &self.keys
    }

    /// A message came to the PSP port. `may_answer`: whether this sender may be answered; asked
    /// before anything is spent on it. Whether it was found to be for this tunnel, and for no other
    /// at this port.
    pub fn hear(
        &mut self,
        (addresses, interface): (Addresses, u32),
        datagram: &[u8],
        now: u64,
        may_answer: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(spi) = datagram.strip_prefix(&UNKNOWN_SPI) {
            self.number_is_unknown(addresses, spi, now);
            // After a restart of the other side, two tenants may have the same number of it.
            return false;
        }
        if !is_request(datagram) {
            return self.answered(addresses, datagram);
        }
        if !may_answer() {
            return false;
        }
        let keys: Vec<_> = self.keys.iter().collect();
        let ends = addresses.as_receiver();
        let Some(accepted) = Accepted::new(&keys, ends, datagram) else { return false };
        let salt = salt(&mut self.random);
        let peer = self.peer(addresses, interface, now);
        peer.used_at = now;
        peer.note_word();
        let owner = peer.owner;
        let lifetime_ms = u32::try_from(self.lifetime / MILLISECOND).unwrap_or(u32::MAX);
        let given = self.receiver.give(owner, accepted.request());
        if self.receiver.is_half_spent() {
            self.changes_at = now;
        }
        let Some((spi, key)) = given else { return true };
        if let Some(answer) = accepted.answer((spi, &key), lifetime_ms, salt) {
            self.counters.answered += 1;
            self.outgoing.push_back(message(addresses, interface, answer.to_vec()));
        }
        true
    }

    /// The other side says that it does not know a number: if it is that of the key in use, another
    /// one is asked for.
    fn number_is_unknown(&mut self, addresses: Addresses, spi: &[u8], now: u64) {
        let Ok(spi) = <[u8; 4]>::try_from(spi) else { return };
        let Some(peer) = self.peers.get_mut(&addresses) else { return };
        let is_ours = peer
            .key
            .as_ref()
            .is_some_and(|key| key.sealer.spi() == Spi::new(u32::from_be_bytes(spi)));
        if is_ours && now >= peer.heeded_again_at {
            peer.heeded_again_at = now.saturating_add(HEEDED_AGAIN);
            self.ask(addresses, now);
        }
    }

    /// An answer came: if it is to a request that is open, packets are sealed with its key.
    fn answered(&mut self, addresses: Addresses, answer: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(&addresses) else { return false };
        let Some(asking) = peer.asking.take() else { return false };
        let (due, begun_at) = (asking.due(), asking.begun_at);
        let mut sender = match asking.finish(answer) {
            Ok(sender) => sender,
            Err(asking) => {
                peer.asking = Some(asking);
                return false;
            }
        };
        self.asking.remove(&(due, addresses));
        peer.silences = 0;
        let Ok(sealer) = sender.sealer() else { return true };
        let lifetime = self.lifetime.min(u64::from(sender.lifetime_ms()) * MILLISECOND);
        peer.key = Some(CurrentKey {
            sealer,
            renewed_at: begun_at.saturating_add(lifetime / 2),
            ends_at: begun_at.saturating_add(lifetime),
        });
        if std::mem::take(&mut peer.is_refusal_told) {
            self.events.push_back(TunnelEvent::Established(addresses.remote));
        }
        let (held, bytes) = peer.take_held();
        self.held_bytes -= bytes;
        let Some(key) = &mut peer.key else { return true };
        for HeldTrain { source_port, segment, bytes } in held {
            let mut sealed = Vec::with_capacity(bytes.len() * 2);
            if seal_train(key, source_port, &bytes, segment, &mut sealed) {
                self.counters.sealed += bytes.len().div_ceil(segment.max(1)) as u64;
                self.outgoing.push_back(OutgoingDatagrams {
                    addresses,
                    interface: peer.interface,
                    bytes: sealed,
                    segment: segment + OVERHEAD_BYTES,
                });
            }
        }
        true
    }

    /// A packet in plain came from an address.
    pub fn heard_plain(&mut self, addresses: Addresses) {
        self.counters.plain += 1;
        // Anybody can send one in its name: it ends nothing.
        let is_waited_for = self.peers.get(&addresses).is_some_and(|peer| {
            let is_told = peer.is_refusal_told || peer.is_for_copies;
            peer.key.is_none() && !is_told && peer.asking.is_some()
        });
        if is_waited_for && let Some(peer) = self.peers.get_mut(&addresses) {
            peer.is_refusal_told = true;
            self.events.push_back(TunnelEvent::Refused(addresses.remote, Refusal::Plain));
        }
    }

    /// Master keys have this lifetime from now on, as [`Tunnel::new`] says.
    pub fn set_lifetime(&mut self, lifetime: u64, now: u64) {
        let lifetime = lifetime.clamp(*LIFETIME.start(), *LIFETIME.end());
        if lifetime != self.lifetime {
            self.lifetime = lifetime;
            // Keys that were to last longer end with the second change. Who uses one still is told.
            self.changes_at = self.changes_at.min(now.saturating_add(lifetime));
        }
    }

    /// The tenant has other keys, the newest first. Keys of packets are handed over anew; those
    /// that there are end with their lifetime. If it has none of the keys of before, it is another
    /// tenant: what was agreed with hosts of the one before counts no more.
    pub fn set_keys(&mut self, keys: Vec<TenantKey>, now: u64) {
        if !keys.iter().any(|key| self.keys.contains(key)) {
            let peers: Vec<Addresses> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|addresses| self.forget(addresses));
        }
        self.keys = keys;
        if !self.receiver.is_unused() {
            self.receiver.rotate(master_key(&mut self.random));
        }
        self.changes_at = now.saturating_add(self.lifetime);
        for (addresses, peer) in &mut self.peers {
            if let Some(asking) = peer.asking.take() {
                self.asking.remove(&(asking.due(), *addresses));
            }
            peer.asked_again_at = now;
            if let Some(key) = &mut peer.key {
                key.renewed_at = now;
            }
        }
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tunnel({} peers, {:?})", self.peers.len(), self.receiver)
    }
}

#[cfg(test)]
mod tests;
