//! One rule of the specification each: packets by hand in, packets as they print themselves out.

mod answering;
mod executing;
mod extended;
mod reading;
mod requester;
mod responder;
mod retrying;
mod runs;
mod script;
mod unreliable;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_packets_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        omniverb_transport::fuzz::connection(&bytes);
    }

    #[test]
    fn arbitrary_requests_do_no_harm(
        packets in prop::collection::vec((0_u8..0x18, prop::collection::vec(any::<u8>(), 60)), 40)
    ) {
        // Length byte, then a packet that begins with a known opcode.
        let bytes: Vec<u8> = packets
            .into_iter()
            .flat_map(|(code, rest)| [vec![61, code], rest].concat())
            .collect();
        omniverb_transport::fuzz::connection(&bytes);
    }
}
