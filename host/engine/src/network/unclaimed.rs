//! Packets for a queue pair that has no link yet, or whose application is not ready to receive:
//! they are kept for a moment, since a link is often made while its first packet is on its way.

use crate::room::{Part, Room};
use omniverb_terms::Qpn;
use omniverb_transport::Ecn;
use std::collections::VecDeque;
use std::net::IpAddr;

/// How long, in nanoseconds: much longer than it takes to find out whether another Omniverb is at
/// the other end, on a busy machine, too. UC and UD do not say it again.
const KEPT: u64 = 3_000_000_000;
/// Packets of one vNIC.
const PACKETS_MAX: usize = 1024;
/// Bytes of one vNIC.
const BYTES_MAX: usize = 2 << 20;

/// A packet whose ICRC is right.
pub(crate) struct UnclaimedPacket {
    arrived: u64,
    pub(crate) qpn: Qpn,
    pub(crate) from: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) ecn: Ecn,
    pub(crate) datagram: Vec<u8>,
    _part: Part,
}

/// The packets that one vNIC keeps, oldest first; the oldest make room.
pub(crate) struct Unclaimed {
    packets: VecDeque<UnclaimedPacket>,
    room: Room,
}

impl Default for Unclaimed {
    fn default() -> Unclaimed {
        Unclaimed { packets: VecDeque::new(), room: Room::new(BYTES_MAX) }
    }
}

impl Unclaimed {
    /// Keeps a packet.
    pub(crate) fn keep(
        &mut self,
        now: u64,
        qpn: Qpn,
        (from, local): (IpAddr, IpAddr),
        ecn: Ecn,
        datagram: &[u8],
    ) {
        let old = |packet: &UnclaimedPacket| now.saturating_sub(packet.arrived) > KEPT;
        while self.packets.front().is_some_and(old) {
            self.packets.pop_front();
        }
        if self.packets.len() == PACKETS_MAX {
            self.packets.pop_front();
        }
        let _part = loop {
            match self.room.part(datagram.len()) {
                Some(part) => break part,
                None if self.packets.pop_front().is_some() => {}
                None => return,
            }
        };
        let datagram = datagram.to_vec();
        let packet = UnclaimedPacket { arrived: now, qpn, from, local, ecn, datagram, _part };
        self.packets.push_back(packet);
    }

    /// Takes the packets of a queue pair from a peer.
    pub(crate) fn take(&mut self, now: u64, qpn: Qpn, from: IpAddr) -> Vec<UnclaimedPacket> {
        let all = std::mem::take(&mut self.packets).into_iter();
        let (mut taken, left): (Vec<_>, Vec<_>) =
            all.partition(|packet| packet.qpn == qpn && packet.from == from);
        self.packets = left.into();
        taken.retain(|packet| now.saturating_sub(packet.arrived) <= KEPT);
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, KEPT, PACKETS_MAX, Unclaimed};
    use omniverb_terms::Qpn;
    use omniverb_transport::Ecn;
    use std::net::{IpAddr, Ipv4Addr};

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn kept_in_order_and_not_for_long() {
        let mut unclaimed = Unclaimed::default();
        for (time, qpn, byte) in [(0, Qpn(7), 1), (1, Qpn(8), 2), (2, Qpn(7), 3)] {
            unclaimed.keep(time, qpn, (HOME, HOME), Ecn::Unmarked, &[byte]);
        }
        let taken: Vec<u8> =
            unclaimed.take(3, Qpn(7), HOME).iter().map(|packet| packet.datagram[0]).collect();
        assert_eq!(taken, [1, 3]);
        assert!(unclaimed.take(KEPT + 2, Qpn(8), HOME).is_empty(), "too old");
        assert!(unclaimed.is_empty());
    }

    #[test]
    fn a_flood_takes_no_more_than_its_share() {
        let mut unclaimed = Unclaimed::default();
        for length in [1, 4096] {
            for _ in 0..10 * PACKETS_MAX {
                unclaimed.keep(0, Qpn(7), (HOME, HOME), Ecn::Unmarked, &vec![0; length]);
                assert!(
                    unclaimed.packets.len() <= PACKETS_MAX && unclaimed.room.taken() <= BYTES_MAX
                );
            }
        }
    }
}
