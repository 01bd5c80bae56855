//! Entry points for fuzzers: bytes in, nothing out, never a panic.

use crate::{Fragments, IcrcFlow, IcrcVerdict, Identification, Packet, PortNotice};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Parses arbitrary bytes and calls every accessor; checks and seals them as a datagram.
pub fn packet(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        assert!(packet.payload().len() <= bytes.len());
        // What the opcode says comes along does come along.
        assert_eq!(packet.reth().is_some(), packet.opcode().has_reth());
        assert_eq!(packet.aeth().is_some(), packet.opcode().has_aeth());
        assert_eq!(packet.atomic().is_some(), packet.opcode().has_atomic());
        assert_eq!(packet.flush().is_some(), packet.opcode().has_flush());
        assert_eq!(packet.immediate().is_some(), packet.opcode().has_immediate());
        assert_eq!(packet.invalidate().is_some(), packet.opcode().has_invalidate());
        assert_eq!(packet.srq().is_some(), packet.opcode().has_srq());
        let _ = (packet.deth(), packet.atomic_ack(), packet.to_string());
        let _ = packet.flush().map(|feth| (feth.placement(), feth.selectivity()));
    }
    // A notice has no bytes that mean nothing.
    if let Some(notice) = PortNotice::read(bytes) {
        assert_eq!(notice.datagram(), bytes);
    }
    let source_port = 0xc000;
    let v4 = Ipv4Addr::LOCALHOST.into();
    let v6 = Ipv6Addr::LOCALHOST.into();
    for (source, destination) in [(v4, v4), (v6, v6), (v4, v6)] {
        let flow = IcrcFlow { source, destination, source_port };
        let _ = flow.check(bytes, None);
        let mut copy = bytes.to_vec();
        flow.seal(&mut copy, 7);
        let id = Some(Identification { id: 7, fragments: Fragments::Forbidden });
        assert!(copy.len() < 4 || flow.check(&copy, id) == IcrcVerdict::Exact);
    }
}

#[cfg(test)]
mod tests {
    use super::packet;
    use crate::Opcode;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn arbitrary_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..128),
            code in any::<u8>().prop_filter_map("known opcodes", Opcode::from_byte),
        ) {
            packet(&bytes);
            let mut bytes = bytes;
            if bytes.len() > 1 {
                bytes[0] = code.to_byte();
                bytes[1] &= 0xf0;
            }
            packet(&bytes);
            bytes.truncate(bytes.len() / 4 * 4);
            packet(&bytes);
        }
    }
}
