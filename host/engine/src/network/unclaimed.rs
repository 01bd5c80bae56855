//! Packets for a queue pair that has no link yet, or whose application is not ready to receive:
//! they are kept for a moment, since a link is often made while its first packet is on its way.

use crate::room::{Part, Room};
use omniverb_terms::Qpn;
use omniverb_transport::Ecn;
use std::collections::VecDeque;
use std::net::IpAddr;

/// How long, in nanoseconds, what will be said again.
const KEPT: u64 = 500_000_000;
/// And what will not, as UC and UD do not: much longer than it takes to find out whether another
/// Omniverb is at the other end, on a busy machine, too.
const KEPT_LONG: u64 = 3_000_000_000;
/// Ended connections that are remembered: what comes for such a queue pair is late, not early.
const ENDED_MAX: usize = 64;
/// Packets of one vNIC.
const PACKETS_MAX: usize = 1024;
/// Bytes of one vNIC.
const BYTES_MAX: usize = 2 << 20;

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

impl Default for Unclaimed {
    fn default() -> Unclaimed {
        Unclaimed { packets: VecDeque::new(), room: Room::new(BYTES_MAX), ended: VecDeque::new() }
    }
}

impl Unclaimed {
    /// Keeps a packet.
    pub(crate) fn keep(&mut self, now: u64, packet: Early, again: Again) {
        while self.packets.front().is_some_and(|kept| kept.until < now) {
            self.packets.pop_front();
        }
        if self.packets.len() == PACKETS_MAX {
            self.packets.pop_front();
        }
        let _part = loop {
            match self.room.part(packet.datagram.len()) {
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
    use super::{Again, BYTES_MAX, Early, KEPT, KEPT_LONG, PACKETS_MAX, Unclaimed};
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
        let mut unclaimed = Unclaimed::default();
        for (time, qpn, byte) in [(0, 7, 1), (1, 8, 2), (2, 7, 3)] {
            unclaimed.keep(time, early(qpn, &[byte]), Again::Yes);
        }
        assert_eq!(taken(&mut unclaimed, 3, 7), [1, 3]);
        assert_eq!(taken(&mut unclaimed, KEPT + 2, 8), [], "too old");
        assert!(unclaimed.is_empty() && unclaimed.room.taken() == 0);
    }

    #[test]
    fn what_is_not_said_again_is_kept_longer_but_behind_the_end_of_a_connection() {
        let mut unclaimed = Unclaimed::default();
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
        let mut unclaimed = Unclaimed::default();
        let packet = Early { source: Some(Qpn(2)), ..early(7, &[1]) };
        unclaimed.keep(0, packet, Again::No);
        assert_eq!(taken(&mut unclaimed, 1, 7), []);
        assert_eq!(unclaimed.take(1, Qpn(7), (HOME, Qpn(2))).len(), 1);
    }

    #[test]
    fn a_flood_takes_no_more_than_its_share() {
        let mut unclaimed = Unclaimed::default();
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
