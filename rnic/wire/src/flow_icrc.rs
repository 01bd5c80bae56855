//! Seals and checks datagrams of one flow: the addresses that the ICRC covers.

use crate::ip_identification::{Fragments, Identification, solve};
use crate::{SUFFIX_BYTES, icrc};
use std::net::IpAddr;

/// One direction of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcFlow {
    /// Address in the IP header of who sends.
    pub source: IpAddr,
    /// Address of who receives.
    pub destination: IpAddr,
    /// The sender's UDP port.
    pub source_port: u16,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcVerdict {
    /// The ICRC is right.
    Exact,
    /// The ICRC is right if the packet had this identification, which nobody told us.
    Solved(Identification),
    /// The packet is damaged.
    Damaged,
}

impl IcrcFlow {
    fn icrc(&self, identification: Identification, packet: &[u8]) -> u32 {
        let (source, destination) = (self.source, self.destination);
        icrc(source, destination, self.source_port, identification.bytes(), packet)
    }

    /// Writes the ICRC into the last four bytes of a finished datagram. `id` is what the kernel
    /// will put into the IPv4 header: 0, or the index within a segmented train.
    pub fn seal(&self, datagram: &mut [u8], id: u16) {
        let Some(end) = datagram.len().checked_sub(SUFFIX_BYTES) else { return };
        let (packet, suffix) = datagram.split_at_mut(end);
        let identification = Identification { id, fragments: Fragments::Forbidden };
        suffix.copy_from_slice(&self.icrc(identification, packet).to_le_bytes());
    }

    /// Checks the ICRC of a datagram that arrived with this identification; IPv6 has none.
    pub fn check(&self, datagram: &[u8], known: Option<Identification>) -> IcrcVerdict {
        let Some(end) = datagram.len().checked_sub(SUFFIX_BYTES) else {
            return IcrcVerdict::Damaged;
        };
        let (packet, suffix) = datagram.split_at(end);
        let mut received = [0; SUFFIX_BYTES];
        received.copy_from_slice(suffix);
        let received = u32::from_le_bytes(received);
        let expected = self.icrc(known.unwrap_or(Identification::ZERO), packet);
        if received == expected {
            return IcrcVerdict::Exact;
        }
        if known.is_some() || !(self.source.is_ipv4() && self.destination.is_ipv4()) {
            return IcrcVerdict::Damaged;
        }
        solve(received, expected, packet.len()).map_or(IcrcVerdict::Damaged, IcrcVerdict::Solved)
    }
}
