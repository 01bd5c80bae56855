//! A bad network in front of a vNIC, for people who test what their programs make of one.
//!
//! In: datagrams that arrived for the vNIC. Out: those that are left of them, later. It stands
//! where datagrams come in, behind the kernel's merging of them, so each meets its own fate; and
//! before the ICRC is checked, so damage is found by what finds it on a real network.

use crate::network::port::Arrival;
use omniverb_transport::Ecn;
use omniverb_transport::faults::{Done, Faults, FaultyLine};
use omniverb_wire::{DATAGRAM_MAX, Identification, Verdict};

/// Datagrams on their way through it, with what is known of each from the socket.
pub(crate) struct BadLine(FaultyLine<Arrival>);

impl BadLine {
    pub(crate) fn new(faults: Faults, seed: u64) -> BadLine {
        BadLine(FaultyLine::new(faults, seed))
    }

    /// Takes a datagram. One that is damaged already takes nobody's place.
    pub(crate) fn put(&mut self, now: u64, arrival: &Arrival, datagram: &[u8]) {
        if datagram.len() > DATAGRAM_MAX {
            return;
        }
        // Solving for the identification once more after the damage would let one in 65,536 damaged
        // packets pass, without the Ethernet frame check and UDP checksum that stop those for
        // everybody else.
        let identification = match arrival.flow.check(datagram, arrival.identification) {
            Verdict::Exact => arrival.identification.unwrap_or(Identification::ZERO),
            Verdict::Solved(identification) => identification,
            Verdict::Damaged => return,
        };
        self.0.send(now, Arrival { identification: Some(identification), ..*arrival }, datagram);
    }

    /// What has arrived by now.
    pub(crate) fn take(&mut self, now: u64) -> Option<(Arrival, Vec<u8>)> {
        let flight = self.0.arrival(now)?;
        let ecn = match flight.ecn {
            Ecn::CongestionExperienced => flight.ecn,
            Ecn::Unmarked => flight.note.ecn,
        };
        Some((Arrival { ecn, ..flight.note }, flight.bytes))
    }

    /// When something arrives.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.0.next_time()
    }

    /// What was done to datagrams.
    pub(crate) fn done(&self) -> Done {
        self.0.done()
    }
}

#[cfg(test)]
mod tests {
    use super::BadLine;
    use crate::network::port::Arrival;
    use omniverb_transport::Ecn;
    use omniverb_transport::faults::Faults;
    use omniverb_wire::{DATAGRAM_MAX, Flow, Fragments, Identification, Verdict};
    use std::net::{IpAddr, Ipv4Addr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ARRIVAL: Arrival = Arrival {
        flow: Flow { source: HERE, destination: HERE, source_port: 7 },
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
        let mut line = BadLine::new(faults, 1);
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
                true => Verdict::Damaged,
                false if bytes.len() == whole.len() => Verdict::Exact,
                false => Verdict::Damaged,
            };
            assert_eq!(arrival.flow.check(&bytes, arrival.identification), verdict);
        }
        assert_eq!(line.done().corrupted, 100_000);
    }

    #[test]
    fn noise_takes_nobodys_place() {
        let faults = Faults { limit: 2, delay: (1000, 1000), ..Faults::default() };
        let mut line = BadLine::new(faults, 1);
        for _ in 0..10 {
            line.put(0, &ARRIVAL, &[1; 200]);
            line.put(0, &ARRIVAL, &[1; DATAGRAM_MAX + 1]);
        }
        line.put(0, &ARRIVAL, &datagram(0));
        assert!((line.take(999).is_none(), line.next_time()) == (true, Some(1000)));
        assert_eq!(line.take(1000).unwrap().1, datagram(0));
        assert!(line.take(u64::MAX).is_none());
    }
}
