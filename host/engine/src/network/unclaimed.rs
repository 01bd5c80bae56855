//! Packets for a queue pair that has no link yet, or whose application is not ready to receive:
//! they are kept for a moment, since a link is often made while its first packet is on its way.

use crate::memory::Allowance;
use crate::room::{Part, Room};
use omniverb_terms::Qpn;
use omniverb_transport::Ecn;
use std::collections::VecDeque;
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
/// What a packet takes beside its bytes.
const OVERHEAD: usize = size_of::<Kept>() + 32;

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
struct Kept {
    packet: Early,
    /// It is thrown away after this time.
    until: u64,
    _part: Part,
}

/// Whether a packet will be sent again if nothing comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Yes,
    No,
}

/// The packets that one vNIC keeps, oldest first; the oldest make room.
pub(crate) struct Unclaimed {
    packets: VecDeque<Kept>,
    room: Room,
    /// Queue pairs whose connections have ended, and where their peers were.
    ended: VecDeque<(Qpn, IpAddr)>,
}

impl Unclaimed {
    pub(crate) fn new(allowance: &Allowance) -> Unclaimed {
        let room = allowance.kept.within(BYTES_MAX);
        Unclaimed { packets: VecDeque::new(), room, ended: VecDeque::new() }
    }

    /// When to drop what is too old, if something is kept.
    pub(crate) fn due(&self, now: u64) -> Option<u64> {
        (!self.is_empty()).then(|| now.saturating_add(LOOK_EVERY))
    }

    /// Drops what is too old by now.
    pub(crate) fn expire(&mut self, now: u64) {
        self.packets.retain(|kept| kept.until >= now);
        self.let_go_of_queue();
    }

    /// Drops the oldest packets while the vNIC keeps more than it may.
    pub(crate) fn give_way(&mut self, allowance: &Allowance) {
        while allowance.kept.is_over() && self.packets.pop_front().is_some() {}
        self.let_go_of_queue();
    }

    /// An empty queue keeps no memory.
    fn let_go_of_queue(&mut self) {
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
    }

    /// Keeps a packet.
    pub(crate) fn keep(&mut self, now: u64, packet: Early, again: Again) {
        while self.packets.front().is_some_and(|kept| kept.until < now) {
            self.packets.pop_front();
        }
        if self.packets.len() == PACKETS_MAX {
            self.packets.pop_front();
        }
        let _part = loop {
            match self.room.part(packet.datagram.len() + OVERHEAD) {
                Some(part) => break part,
                None if self.packets.pop_front().is_some() => {}
                None => return,
            }
        };
        let long = again == Again::No && !self.ended.contains(&(packet.qpn, packet.from));
        let until = now.saturating_add(if long { KEPT_LONG } else { KEPT });
        self.packets.push_back(Kept { packet, until, _part });
    }

    /// Takes the packets of a queue pair from a peer, which is this QP there.
    pub(crate) fn take(&mut self, now: u64, qpn: Qpn, (from, peer): (IpAddr, Qpn)) -> Vec<Early> {
        let all = std::mem::take(&mut self.packets).into_iter();
        let fresh = all.filter(|kept| kept.until >= now);
        let (taken, left): (Vec<_>, Vec<_>) = fresh.partition(|Kept { packet, .. }| {
            let is_peer = packet.source.is_none_or(|source| source == peer);
            packet.qpn == qpn && packet.from == from && is_peer
        });
        self.packets = left.into();
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
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Again, Allowance, BYTES_MAX, Early, KEPT, KEPT_LONG, PACKETS_MAX, Unclaimed};
    use omniverb_terms::Qpn;
    use omniverb_transport::Ecn;
    use std::net::{IpAddr, Ipv4Addr};

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
    fn kept_in_order_and_not_for_long() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for (time, qpn, byte) in [(0, 7, 1), (1, 8, 2), (2, 7, 3)] {
            unclaimed.keep(time, early(qpn, &[byte]), Again::Yes);
        }
        assert_eq!(taken(&mut unclaimed, 3, 7), [1, 3]);
        assert_eq!(taken(&mut unclaimed, KEPT + 2, 8), [], "too old");
        assert!(unclaimed.is_empty() && unclaimed.room.taken() == 0);
    }

    #[test]
    fn what_is_old_goes_though_nothing_else_comes() {
        let allowance = Allowance::default();
        let mut unclaimed = Unclaimed::new(&allowance);
        assert_eq!(unclaimed.due(0), None);
        unclaimed.keep(0, early(7, &[1]), Again::Yes);
        unclaimed.keep(0, early(7, &[2]), Again::No);
        let mut now = 0;
        while let Some(due) = unclaimed.due(now) {
            assert!(due <= now + KEPT && due < 2 * KEPT_LONG);
            now = due;
            unclaimed.expire(now);
            assert_eq!(
                unclaimed.packets.len(),
                if now <= KEPT { 2 } else { 1 }.min(unclaimed.packets.len())
            );
        }
        assert!(
            now > KEPT_LONG && allowance.kept.taken() == 0 && unclaimed.packets.capacity() == 0
        );
    }

    #[test]
    fn what_is_not_said_again_is_kept_longer_but_behind_the_end_of_a_connection() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for ended in [false, true] {
            if ended {
                unclaimed.connection_ended(Qpn(7), HOME);
            }
            unclaimed.keep(0, early(7, &[1]), Again::No);
            unclaimed.keep(0, early(8, &[2]), Again::No);
            assert_eq!(taken(&mut unclaimed, KEPT + 1, 7).len(), usize::from(!ended));
            assert_eq!(taken(&mut unclaimed, KEPT_LONG, 8), [2]);
        }
    }

    #[test]
    fn a_datagram_is_for_the_link_with_its_sender() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        let packet = Early { source: Some(Qpn(2)), ..early(7, &[1]) };
        unclaimed.keep(0, packet, Again::No);
        assert_eq!(taken(&mut unclaimed, 1, 7), []);
        assert_eq!(unclaimed.take(1, Qpn(7), (HOME, Qpn(2))).len(), 1);
    }

    #[test]
    fn a_flood_takes_no_more_than_its_share() {
        let mut unclaimed = Unclaimed::new(&Allowance::default());
        for length in [1, 4096] {
            let datagram = vec![0; length];
            for number in 0..10 * PACKETS_MAX as u32 {
                unclaimed.keep(0, early(7, &datagram), Again::Yes);
                unclaimed.connection_ended(Qpn(number), HOME);
                assert!(unclaimed.packets.len() <= PACKETS_MAX);
                assert!(unclaimed.room.taken() <= BYTES_MAX);
            }
        }
    }
}
