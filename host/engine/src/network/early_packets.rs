//! Keeps packets for queue pairs that are not ready yet, for a moment.
//!
//! Any host may send such packets. Where there is no room for one more, the sender with most loses
//! its oldest: a flooding sender pushes out its own.

use omniverb_datapath::Allowance;
use omniverb_datapath::memory_accounts::{Room, RoomPart};
use omniverb_terms::{Gid, Qpn};
use omniverb_transport::Ecn;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

/// Budget: how long, in nanoseconds, what will be said again.
const KEPT: u64 = 500_000_000;
/// Budget: and what will not, as UC and UD do not: much longer than it takes to find out whether
/// another Omniverb is at the other end, on a busy machine, too.
const KEPT_LONG: u64 = 3_000_000_000;
/// Budget: ended connections that are remembered: what comes for such a queue pair is late, not
/// early.
const ENDED_MAX: usize = 64;
/// Budget: packets of one vNIC.
const PACKETS_MAX: usize = 1024;
/// Budget: bytes of one vNIC, within what it may keep in all.
const BYTES_MAX: usize = 2 << 20;

/// How often what is too old is looked for, in nanoseconds.
const LOOK_EVERY: u64 = 250_000_000;
/// Places that a queue has for each packet in it, at most: the first packet of a queue takes four.
const PLACES: usize = 4;
/// Bytes that a packet takes beside its own: its places, and the key of its sender.
const OVERHEAD: usize = PLACES * size_of::<EarlyPacket>() + 192;

/// A packet that came too early; its ICRC is right.
pub(crate) struct Early {
    pub(crate) qpn: Qpn,
    /// Which QP sent it, if the packet says so.
    pub(crate) source: Option<Qpn>,
    pub(crate) from: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) ecn: Ecn,
    pub(crate) datagram: Vec<u8>,
}

/// One that is kept.
struct EarlyPacket {
    /// In the order of their coming.
    number: u64,
    packet: Early,
    /// It is thrown away after this time.
    until: u64,
    _part: RoomPart,
}

/// Whether a packet will be sent again if nothing comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redelivery {
    Yes,
    No,
}

/// A host, by [`Gid::host`].
type Sender = Gid;

/// The packets that one vNIC keeps.
pub(crate) struct Unclaimed {
    /// Those of each sender, oldest first; none is empty.
    of: HashMap<Sender, VecDeque<EarlyPacket>>,
    /// How many each has, and the number of its oldest: the last of them makes room.
    ranks: BTreeSet<(usize, Reverse<u64>, Sender)>,
    count: usize,
    numbers: u64,
    room: Room,
    /// Queue pairs whose connections have ended, and where their peers were.
    ended: VecDeque<(Qpn, IpAddr)>,
}

impl Unclaimed {
    pub(crate) fn new(allowance: &Allowance) -> Unclaimed {
        let room = allowance.kept.within(BYTES_MAX);
        let (of, ranks, ended) = (HashMap::new(), BTreeSet::new(), VecDeque::new());
        Unclaimed { of, ranks, count: 0, numbers: 0, room, ended }
    }

    /// When to drop what is too old, if something is kept.
    pub(crate) fn due(&self, now: u64) -> Option<u64> {
        (!self.is_empty()).then(|| now.saturating_add(LOOK_EVERY))
    }

    /// Drops what is too old by now.
    pub(crate) fn expire(&mut self, now: u64) {
        let senders: Vec<Sender> = self.of.keys().copied().collect();
        for sender in senders {
            self.change(sender, |queue| queue.retain(|kept| kept.until >= now));
        }
    }

    /// Drops packets, the largest sender's first, while the vNIC keeps more than it may.
    pub(crate) fn give_way(&mut self, allowance: &Allowance) {
        while allowance.kept.is_over() && self.drop_one() {}
    }

    /// The sender with most loses its oldest packet. False: there is none.
    fn drop_one(&mut self) -> bool {
        let Some((_, _, sender)) = self.ranks.last().copied() else { return false };
        self.change(sender, |queue| drop(queue.pop_front()));
        true
    }

    /// Changes what is kept of one sender. Without packets there is no memory for them.
    fn change<T>(
        &mut self,
        sender: Sender,
        change: impl FnOnce(&mut VecDeque<EarlyPacket>) -> T,
    ) -> T {
        let rank = |queue: &VecDeque<EarlyPacket>| {
            queue.front().map(|kept| (queue.len(), Reverse(kept.number), sender))
        };
        let queue = self.of.entry(sender).or_default();
        let before = rank(queue);
        let changed = change(queue);
        if queue.capacity() > PLACES * queue.len() {
            queue.shrink_to_fit();
        }
        let after = rank(queue);
        self.count += after.map_or(0, |(count, ..)| count);
        self.count -= before.map_or(0, |(count, ..)| count);
        if after.is_none() {
            self.of.remove(&sender);
        }
        if self.of.is_empty() {
            self.of = HashMap::new();
        } else if self.of.capacity() > 3 * self.of.len() {
            self.of.shrink_to_fit();
        }
        if let Some(rank) = before {
            self.ranks.remove(&rank);
        }
        self.ranks.extend(after);
        changed
    }

    /// Keeps a packet.
    pub(crate) fn keep(&mut self, now: u64, packet: Early, again: Redelivery) {
        let sender = Gid::from(packet.from).host();
        self.change(sender, |queue| while queue.pop_front_if(|kept| kept.until < now).is_some() {});
        if self.count >= PACKETS_MAX {
            self.drop_one();
        }
        let _part = loop {
            match self.room.part(packet.datagram.len() + OVERHEAD) {
                Some(part) => break part,
                None if self.drop_one() => {}
                None => return,
            }
        };
        let long = again == Redelivery::No && !self.ended.contains(&(packet.qpn, packet.from));
        let until = now.saturating_add(if long { KEPT_LONG } else { KEPT });
        self.numbers += 1;
        let number = self.numbers;
        self.change(sender, |queue| queue.push_back(EarlyPacket { number, packet, until, _part }));
    }

    /// Takes the packets of a queue pair from a peer, which is this QP there.
    pub(crate) fn take(&mut self, now: u64, qpn: Qpn, (from, peer): (IpAddr, Qpn)) -> Vec<Early> {
        let taken = self.change(Gid::from(from).host(), |queue| {
            queue.retain(|kept| kept.until >= now);
            let (taken, left) = std::mem::take(queue).into_iter().partition(|kept| {
                let packet = &kept.packet;
                let is_peer = packet.source.is_none_or(|source| source == peer);
                packet.qpn == qpn && packet.from == from && is_peer
            });
            *queue = left;
            Vec::from_iter::<VecDeque<EarlyPacket>>(taken)
        });
        taken.into_iter().map(|kept| kept.packet).collect()
    }

    /// A connection of a queue pair with a peer there has ended.
    pub(crate) fn connection_ended(&mut self, qpn: Qpn, from: IpAddr) {
        if !self.ended.contains(&(qpn, from)) {
            self.ended.push_back((qpn, from));
        }
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PEER: (IpAddr, Qpn) = (HOME, Qpn(1));

    fn early(qpn: u32, datagram: &[u8]) -> Early {
        let (qpn, ecn, datagram) = (Qpn(qpn), Ecn::Unmarked, datagram.into());
        Early { qpn, source: None, from: HOME, local: HOME, ecn, datagram }
    }

    fn taken(unclaimed: &mut Unclaimed, now: u64, qpn: u32) -> Vec<u8> {
        let taken = unclaimed.take(now, Qpn(qpn), PEER);
        taken.iter().map(|packet| packet.datagram[0]).collect()
    }

    #[test]
    fn early_packets_are_kept_in_order_for_a_while() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for (time, qpn, byte) in [(0, 7, 1), (1, 8, 2), (2, 7, 3)] {
            unclaimed.keep(time, early(qpn, &[byte]), Redelivery::Yes);
        }
        assert_eq!(taken(&mut unclaimed, 3, 7), [1, 3]);
        assert_eq!(taken(&mut unclaimed, KEPT + 2, 8), [], "too old");
        assert!(unclaimed.is_empty() && unclaimed.room.taken() == 0);
    }

    #[test]
    fn old_packets_go_though_no_others_come() {
        let allowance = Allowance::default();
        let mut unclaimed = Unclaimed::new(&allowance);
        assert_eq!(unclaimed.due(0), None);
        unclaimed.keep(0, early(7, &[1]), Redelivery::Yes);
        unclaimed.keep(0, early(7, &[2]), Redelivery::No);
        let mut now = 0;
        while let Some(due) = unclaimed.due(now) {
            assert!(due <= now + KEPT && due < 2 * KEPT_LONG);
            now = due;
            unclaimed.expire(now);
            assert_eq!(unclaimed.count, if now <= KEPT { 2 } else { 1 }.min(unclaimed.count));
        }
        assert!(now > KEPT_LONG && allowance.kept.taken() == 0);
        assert!(unclaimed.of.capacity() == 0 && unclaimed.ranks.is_empty());
    }

    #[test]
    fn packets_without_retransmission_are_kept_longer() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for ended in [false, true] {
            if ended {
                unclaimed.connection_ended(Qpn(7), HOME);
            }
            unclaimed.keep(0, early(7, &[1]), Redelivery::No);
            unclaimed.keep(0, early(8, &[2]), Redelivery::No);
            assert_eq!(taken(&mut unclaimed, KEPT + 1, 7).len(), usize::from(!ended));
            assert_eq!(taken(&mut unclaimed, KEPT_LONG, 8), [2]);
        }
    }

    #[test]
    fn a_datagram_is_for_the_link_with_its_sender() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        let packet = Early { source: Some(Qpn(2)), ..early(7, &[1]) };
        unclaimed.keep(0, packet, Redelivery::No);
        assert_eq!(taken(&mut unclaimed, 1, 7), []);
        assert_eq!(unclaimed.take(1, Qpn(7), (HOME, Qpn(2))).len(), 1);
    }

    #[test]
    fn a_flood_takes_no_more_than_its_share() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for length in [1, 4096] {
            let datagram = vec![0; length];
            for number in 0..10 * PACKETS_MAX as u32 {
                unclaimed.keep(0, early(7, &datagram), Redelivery::Yes);
                unclaimed.connection_ended(Qpn(number), HOME);
                assert!(unclaimed.count <= PACKETS_MAX);
                assert!(unclaimed.room.taken() <= BYTES_MAX);
            }
        }
    }

    /// Bytes that are allocated for queues and packets.
    fn allocated(unclaimed: &Unclaimed) -> usize {
        let packets = unclaimed.of.values().flatten();
        let queues = unclaimed.of.values().map(|queue| queue.capacity() * size_of::<EarlyPacket>());
        let bytes = packets.map(|kept| kept.packet.datagram.capacity());
        let row = 1 + size_of::<(Sender, VecDeque<EarlyPacket>)>();
        bytes.sum::<usize>() + queues.sum::<usize>() + unclaimed.of.capacity() * row
    }

    #[test]
    fn allocated_bytes_are_counted() {
        let from = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for senders in [1, 3, 100, 2000] {
            let mut unclaimed = Unclaimed::new(&Allowance::default());
            for number in 0..3 * PACKETS_MAX as u32 {
                let packet = Early { from: from(number % senders), ..early(7, &[1]) };
                unclaimed.keep(0, packet, Redelivery::No);
                assert!(allocated(&unclaimed) <= unclaimed.room.taken(), "of {senders}");
            }
            while unclaimed.drop_one() {
                assert!(allocated(&unclaimed) <= unclaimed.room.taken(), "of {senders}");
            }
        }
    }

    #[test]
    fn a_flooding_sender_pushes_out_its_own() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        let packet = |last, bytes| Early { from: from(last), ..early(7, &vec![last; bytes]) };
        (0..3).for_each(|_| unclaimed.keep(0, packet(2, 100), Redelivery::No));
        for number in 0..20 * PACKETS_MAX {
            unclaimed.keep(1, packet(66, 40 + number % 4000), Redelivery::No);
        }
        unclaimed.keep(2, packet(3, 100), Redelivery::Yes);
        assert!(unclaimed.count <= PACKETS_MAX && unclaimed.count > 400);
        for (sender, count) in [(2, 3), (3, 1)] {
            assert_eq!(unclaimed.take(3, Qpn(7), (from(sender), Qpn(1))).len(), count);
        }
        // A host with many addresses in its network is one sender.
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        (0..3).for_each(|_| unclaimed.keep(0, packet(2, 100), Redelivery::No));
        let network = u128::from_be_bytes([0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in 0..20 * PACKETS_MAX as u128 {
            let from = IpAddr::from((network + number).to_be_bytes());
            unclaimed.keep(1, Early { from, ..early(7, &[1]) }, Redelivery::No);
        }
        assert_eq!(unclaimed.take(3, Qpn(7), (from(2), Qpn(1))).len(), 3);
    }
}
