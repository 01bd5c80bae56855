//! Fuzzes a node of the DMA API whose peer sends anything.

use omniverb_dma_announce::{AnnouncedBuffer, MESSAGE_BYTES, Message, PeerBuffers};

use crate::Random;
use omniverb_terms::Rkey;

/// Each step is a byte, what we do meanwhile, and a message.
pub fn dma_peer(bytes: &[u8]) {
    let mut known = PeerBuffers::default();
    let mut used: Vec<u64> = Vec::new();
    for (number, step) in bytes.chunks(1 + MESSAGE_BYTES).enumerate() {
        let (Some(&ours), Some(message)) = (step.first(), step.get(1..)) else { return };
        if let Ok(message) = Message::decode(message) {
            assert_eq!(message.encode(), step[1..], "written as it was read");
        }
        // What is found is believed, so it must be possible.
        if let Some(found) = known.find(u64::from(ours % 8)) {
            assert!(found.length > 0 && found.address.checked_add(found.length).is_some());
            if known.begin(found.serial) {
                used.push(found.serial);
            }
        }
        if ours & 0x40 != 0
            && let Some(serial) = used.pop()
        {
            let said = known.end(serial);
            assert!(said.is_none() || !used.contains(&serial), "let go while it is used");
        }
        if ours & 0x80 != 0 {
            known.withdraw(number as u64);
        }
        match known.hear(message) {
            Ok(Some(Message::LetGo(serial))) => assert!(!used.contains(&serial)),
            Ok(answer) => assert_eq!(answer, None),
            // Nobody listens to it any more.
            Err(_) => return,
        }
    }
}

/// Mostly what nodes say, with numbers that are small enough to mean something.
pub(crate) fn input(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for serial in 1..random.below(60) as u64 {
        bytes.push(random.number() as u8);
        let some = random.below(1 + serial as usize) as u64;
        let id = random.below(8) as u64;
        let (address, length) = (random.number() >> random.below(64), random.number() >> 24);
        let what = AnnouncedBuffer {
            id,
            serial,
            address,
            length,
            rkey: Rkey(1),
            rights: 1 + some as u32 % 3,
        };
        let message = match random.below(8) {
            0 | 1 => Message::Withdrawn(some),
            2 => Message::LetGo(some),
            3 if serial == 1 => Message::All,
            _ => Message::Buffer(what),
        };
        bytes.extend(message.encode());
    }
    bytes
}
