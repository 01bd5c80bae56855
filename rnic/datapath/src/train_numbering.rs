//! Recovers the numbering of a train's packets, so that each ICRC is checked at the first try.

use omniverb_wire::{BatchSize, IcrcFlow, IcrcVerdict, Identification, PreparedIcrc};

/// How the packets of a train are numbered, which a UDP socket does not show: as a rule each with
/// the number behind that of the one before, or all alike.
pub struct Numbering {
    next: Identification,
    step: u16,
    before: Option<u16>,
    /// For packets as the latest one.
    pub prepared: Option<PreparedIcrc>,
}

impl Numbering {
    /// `prepared`: for packets as those that came last.
    pub fn new(prepared: Option<PreparedIcrc>) -> Numbering {
        Numbering { next: Identification::ZERO, step: 1, before: None, prepared }
    }

    /// Checks the ICRC of the next packet.
    pub fn check(&mut self, flow: &IcrcFlow, datagram: &[u8]) -> IcrcVerdict {
        let alike = if self.before.is_some() { BatchSize::Several } else { BatchSize::One };
        match PreparedIcrc::reuse(&mut self.prepared, flow, datagram.len(), alike) {
            Some(prepared) => prepared.check(datagram, self.next),
            None => flow.check(datagram, None),
        }
    }

    /// Whether the ICRC of the next packet is right; if so, notes how it was numbered.
    pub fn sound(&mut self, flow: &IcrcFlow, datagram: &[u8]) -> bool {
        let found = match self.check(flow, datagram) {
            IcrcVerdict::Exact => Identification::ZERO,
            IcrcVerdict::Solved(found) => found,
            IcrcVerdict::Damaged => return false,
        };
        self.found(found);
        true
    }

    /// It was this one's.
    pub fn found(&mut self, found: Identification) {
        if let Some(before) = self.before.replace(found.id)
            && found != self.next
        {
            self.step = found.id.wrapping_sub(before);
        }
        self.next = Identification { id: found.id.wrapping_add(self.step), ..found };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Packets that were numbered so are all right, whatever is believed of the next.
    fn pass(numbers: &[u16]) -> Vec<u16> {
        let [source, destination] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host).into());
        let flow = IcrcFlow { source, destination, source_port: 0xc001 };
        let mut numbering = Numbering::new(None);
        let mut expected = Vec::new();
        for number in numbers {
            let mut packet = [7; 1056];
            packet[4] = 0;
            flow.seal(&mut packet, *number);
            expected.push(numbering.next.id);
            let found = match numbering.check(&flow, &packet) {
                IcrcVerdict::Exact => Identification::ZERO,
                IcrcVerdict::Solved(found) => found,
                IcrcVerdict::Damaged => panic!("packet {number} of {numbers:?}"),
            };
            assert_eq!(found.id, *number);
            numbering.found(found);
            packet[500] ^= 1;
            let damaged = numbering.check(&flow, &packet);
            assert_ne!(damaged, IcrcVerdict::Exact);
        }
        expected
    }

    #[test]
    fn packets_are_expected_to_go_on_as_they_began() {
        assert_eq!(pass(&[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(pass(&[0xfffe, 0xffff, 0, 1]), [0, 0xffff, 0, 1]);
        assert_eq!(pass(&[0, 0, 0, 0]), [0, 1, 0, 0]);
        assert_eq!(pass(&[77, 9, 10, 3000]), [0, 78, 0u16.wrapping_sub(59), 11]);
    }
}
