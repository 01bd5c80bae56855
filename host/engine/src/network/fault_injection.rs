//! Injects faults into the packets that arrive for a vNIC, for tests of programs.
//!
//! In: datagrams that arrived for the vNIC. Out: those that are left of them, later. It stands
//! where datagrams come in, behind the kernel's merging of them, so each meets its own fate; and
//! before the ICRC is checked, so damage is found by what finds it on a real network.

use crate::network::roce_port::Arrival;
use omniverb_datapath::Allowance;
use omniverb_datapath::memory_accounts::RoomPart;
use omniverb_transport::Ecn;
use omniverb_transport::fault_injection::{DatagramInFlight, FaultCounts, Faults, FaultyLine};
use omniverb_wire::{DATAGRAM_MAX, IcrcVerdict, Identification};

/// Datagrams on their way through it, with what is known of each from the socket.
pub(crate) struct BadLine {
    line: FaultyLine<Arrival>,
    /// Their part of the vNIC's room.
    part: RoomPart,
}

/// Budget: bytes that are under way on one vNIC's line, within what the vNIC keeps.
const BYTES_MAX: usize = 32 << 20;
/// Bytes that a datagram takes beside its own: its place on the line and the allocator's overhead.
const OVERHEAD: usize = 2 * size_of::<DatagramInFlight<Arrival>>() + 32;

impl BadLine {
    pub(crate) fn new(faults: Faults, seed: u64, allowance: &Allowance) -> BadLine {
        let part = allowance.kept.within(BYTES_MAX).stretch(0);
        BadLine { line: FaultyLine::new(faults, seed), part }
    }

    /// Takes a datagram. One that is damaged already takes no place of another.
    pub(crate) fn put(&mut self, now: u64, arrival: &Arrival, datagram: &[u8]) {
        if datagram.len() > DATAGRAM_MAX {
            return;
        }
        // Solving for the identification once more after the damage would let one in 65,536 damaged
        // packets pass, without the Ethernet frame check and UDP checksum that stop those
        // elsewhere.
        let identification = match arrival.flow.check(datagram, arrival.identification) {
            IcrcVerdict::Exact => arrival.identification.unwrap_or(Identification::ZERO),
            IcrcVerdict::Solved(identification) => identification,
            IcrcVerdict::Damaged => return,
        };
        // It may become two. A datagram without room is lost, but the line counts it.
        let has_room = self.part.grow(2 * (datagram.len() + OVERHEAD));
        self.line.set_bytes_max(if has_room { usize::MAX } else { 0 });
        self.line.send(now, Arrival { identification: Some(identification), ..*arrival }, datagram);
        self.give_back();
    }

    /// Drops what is under way if the vNIC keeps more than it may.
    pub(crate) fn give_way(&mut self, allowance: &Allowance) {
        if allowance.kept.is_over() {
            self.line.drop_all();
            self.give_back();
        }
    }

    /// Gives back what those take no more that have arrived.
    fn give_back(&mut self) {
        let (count, bytes) = self.line.under_way();
        self.part.shrink_to(bytes + count * OVERHEAD);
    }

    /// The next datagram that has arrived by now.
    pub(crate) fn take(&mut self, now: u64) -> Option<(Arrival, Vec<u8>)> {
        let flight = self.line.arrival(now)?;
        self.give_back();
        let ecn = match flight.ecn {
            Ecn::CongestionExperienced => flight.ecn,
            Ecn::Unmarked => flight.note.ecn,
        };
        Some((Arrival { ecn, ..flight.note }, flight.bytes))
    }

    /// When something arrives.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.line.next_time()
    }

    /// Counts of faults.
    pub(crate) fn done(&self) -> FaultCounts {
        self.line.done()
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, BadLine};
    use crate::network::roce_port::Arrival;
    use omniverb_datapath::Allowance;
    use omniverb_transport::Ecn;
    use omniverb_transport::fault_injection::Faults;
    use omniverb_wire::{DATAGRAM_MAX, Fragments, IcrcFlow, IcrcVerdict, Identification};
    use std::net::{IpAddr, Ipv4Addr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ARRIVAL: Arrival = Arrival {
        flow: IcrcFlow { source: HERE, destination: HERE, source_port: 7 },
        interface: 0,
        ecn: Ecn::Unmarked,
        identification: None,
        is_captured: false,
    };

    fn datagram(id: u16) -> Vec<u8> {
        let mut datagram = vec![0x5a; 200];
        ARRIVAL.flow.seal(&mut datagram, id);
        datagram
    }

    #[test]
    fn damage_is_found_by_the_whole_of_the_check() {
        let faults = Faults { corruption: 1_000_000, ..Faults::default() };
        let mut line = BadLine::new(faults, 1, &Allowance::default());
        for number in 0..100_000_u32 {
            let (id, whole) = (number as u16, datagram(number as u16));
            line.put(0, &ARRIVAL, &whole);
            let (arrival, bytes) = line.take(0).unwrap();
            assert_eq!(
                arrival.identification,
                Some(Identification { id, fragments: Fragments::Forbidden })
            );
            // One byte of the BTH is not covered: switches may change it.
            let verdict = match bytes.get(4) == whole.get(4) {
                true => IcrcVerdict::Damaged,
                false if bytes.len() == whole.len() => IcrcVerdict::Exact,
                false => IcrcVerdict::Damaged,
            };
            assert_eq!(arrival.flow.check(&bytes, arrival.identification), verdict);
        }
        assert_eq!(line.done().corrupted, 100_000);
    }

    #[test]
    fn noise_takes_no_packets_place() {
        let faults = Faults { limit: 2, delay: (1000, 1000), ..Faults::default() };
        let mut line = BadLine::new(faults, 1, &Allowance::default());
        for _ in 0..10 {
            line.put(0, &ARRIVAL, &[1; 200]);
            line.put(0, &ARRIVAL, &[1; DATAGRAM_MAX + 1]);
        }
        line.put(0, &ARRIVAL, &datagram(0));
        assert!((line.take(999).is_none(), line.next_time()) == (true, Some(1000)));
        assert_eq!(line.take(1000).unwrap().1, datagram(0));
        assert!(line.take(u64::MAX).is_none());
    }
    #[test]
    fn delayed_packets_are_bounded_and_yield() {
        let allowance = Allowance::default();
        let faults =
            Faults { delay: (1 << 40, 1 << 40), duplication: 500_000, ..Faults::default() };
        let mut line = BadLine::new(faults, 1, &allowance);
        let datagram = datagram(0);
        for _ in 0..BYTES_MAX / 200 {
            line.put(0, &ARRIVAL, &datagram);
        }
        let kept = allowance.kept.taken();
        assert!(kept <= BYTES_MAX + (64 << 10) && kept > BYTES_MAX / 2, "{kept}");
        assert!(line.done().dropped > 0);
        allowance.kept.reduce_to(kept / 2);
        line.give_way(&allowance);
        assert!((allowance.kept.taken(), line.next_time()) == (0, None));
        allowance.kept.restore();
        line.put(0, &ARRIVAL, &datagram);
        assert!(line.take(u64::MAX).is_some() && allowance.kept.taken() < 4096);
    }
}
