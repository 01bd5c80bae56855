//! Tests two nodes that announce buffers to each other, and one that receives arbitrary messages.

use omniverb_dma_announce::{
    AnnouncedBuffer, AnnouncementFault, BUFFER_BYTES_MAX, BUFFERS_MAX, HELLO, Message, PeerBuffers,
    READABLE, WRITABLE, is_hello,
};
use omniverb_terms::Rkey;
use proptest::prelude::*;

fn buffer(id: u64, serial: u64) -> AnnouncedBuffer {
    AnnouncedBuffer {
        id,
        serial,
        address: 4096,
        length: 10,
        rkey: Rkey(7),
        rights: READABLE | WRITABLE,
    }
}

fn hears(known: &mut PeerBuffers, message: Message) -> Result<Option<Message>, AnnouncementFault> {
    known.hear(&message.encode())
}

#[test]
fn a_buffer_is_found_from_its_announcement_to_its_withdrawal() {
    let mut known = PeerBuffers::default();
    assert_eq!(known.find(5), None);
    assert_eq!(hears(&mut known, Message::Buffer(buffer(5, 1))), Ok(None));
    assert_eq!(known.find(5), Some(buffer(5, 1)));
    assert_eq!(hears(&mut known, Message::Withdrawn(1)), Ok(Some(Message::LetGo(1))));
    assert_eq!(known.find(5), None);
    assert!(!known.begin(1));
}

#[test]
fn a_withdrawn_buffer_is_released_when_the_last_transfer_ends() {
    let mut known = PeerBuffers::default();
    hears(&mut known, Message::Buffer(buffer(5, 1))).unwrap();
    assert!(known.begin(1) && known.begin(1));
    assert_eq!(hears(&mut known, Message::Withdrawn(1)), Ok(None));
    assert!(!known.begin(1) && known.keeps_withdrawn());
    // Another of that name does not disturb it.
    hears(&mut known, Message::Buffer(buffer(5, 2))).unwrap();
    assert_eq!(known.end(1), None);
    assert_eq!(known.end(1), Some(Message::LetGo(1)));
    assert!(!known.keeps_withdrawn());
    assert_eq!(known.find(5), Some(buffer(5, 2)));
}

#[test]
fn what_we_withdraw_is_awaited_until_they_let_it_go() {
    let mut known = PeerBuffers::default();
    assert_eq!(known.withdraw(3), Message::Withdrawn(3));
    assert!(known.awaits(3) && !known.awaits(4));
    assert_eq!(hears(&mut known, Message::LetGo(4)), Err(AnnouncementFault::Unknown));
    assert_eq!(hears(&mut known, Message::LetGo(3)), Ok(None));
    assert!(!known.awaits(3));
}

#[test]
fn what_no_node_says_is_a_fault() {
    let mut known = PeerBuffers::default();
    hears(&mut known, Message::Buffer(buffer(5, 7))).unwrap();
    assert_eq!(hears(&mut known, Message::Buffer(buffer(5, 8))), Err(AnnouncementFault::Twice));
    assert_eq!(hears(&mut known, Message::Buffer(buffer(6, 7))), Err(AnnouncementFault::Twice));
    assert_eq!(hears(&mut known, Message::Withdrawn(8)), Err(AnnouncementFault::Unknown));
    assert_eq!(hears(&mut known, Message::All), Ok(None));
    assert!(known.has_all());
    assert_eq!(hears(&mut known, Message::All), Err(AnnouncementFault::Again));
    let mut full = PeerBuffers::default();
    for number in 1..=BUFFERS_MAX as u64 {
        hears(&mut full, Message::Buffer(buffer(number, number))).unwrap();
    }
    let more = BUFFERS_MAX as u64 + 1;
    assert_eq!(
        hears(&mut full, Message::Buffer(buffer(more, more))),
        Err(AnnouncementFault::TooMany)
    );
}

#[test]
fn replacing_a_buffer_in_use_takes_no_more_room() {
    let mut known = PeerBuffers::default();
    for number in 1..=BUFFERS_MAX as u64 {
        hears(&mut known, Message::Buffer(buffer(number, number))).unwrap();
    }
    assert!(known.begin(1));
    assert_eq!(hears(&mut known, Message::Withdrawn(1)), Ok(None));
    let next = BUFFERS_MAX as u64 + 1;
    assert_eq!(hears(&mut known, Message::Buffer(buffer(next, next))), Ok(None));
    let more = next + 1;
    assert_eq!(
        hears(&mut known, Message::Buffer(buffer(more, more))),
        Err(AnnouncementFault::TooMany)
    );
    assert_eq!(known.end(1), Some(Message::LetGo(1)));
}

#[test]
fn a_buffer_that_cannot_be_is_not_believed() {
    let good = buffer(1, 1);
    for bad in [
        AnnouncedBuffer { length: 0, ..good },
        AnnouncedBuffer { length: BUFFER_BYTES_MAX + 1, ..good },
        AnnouncedBuffer { address: u64::MAX - 5, ..good },
        AnnouncedBuffer { rights: 0, ..good },
        AnnouncedBuffer { rights: 4, ..good },
    ] {
        assert!(Message::decode(&Message::Buffer(bad).encode()).is_err(), "{bad:?}");
    }
    assert!(Message::decode(&Message::Buffer(good).encode()[1..]).is_err());
    for at in [4, 8, 24, 32, 40, 44] {
        let mut bytes = Message::LetGo(1).encode();
        bytes[at] = 1;
        assert!(Message::decode(&bytes).is_err(), "{at}");
    }
}

#[test]
fn a_hello_may_be_padded() {
    let mut padded = [0; 56];
    padded[..8].copy_from_slice(&HELLO);
    assert!(is_hello(&padded) && is_hello(&HELLO));
    assert!(!is_hello(&HELLO[..7]) && !is_hello(&[0; 56]));
}

proptest! {
    /// What is understood is written as it was read, and nothing makes it fall over.
    #[test]
    fn bytes_are_understood_in_one_way(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode().to_vec(), bytes);
        }
    }

    /// Whatever comes, no more is kept than may be, and what is found can be used.
    #[test]
    fn a_peer_that_says_anything_is_bounded(
        said in prop::collection::vec((1u32..6, 0u64..4, 0u64..40, any::<bool>()), 0..200)
    ) {
        let mut known = PeerBuffers::default();
        let mut users: Vec<u64> = Vec::new();
        for (kind, id, serial, uses) in said {
            let message = match kind {
                1 => Message::Buffer(buffer(id, serial)),
                2 => Message::Withdrawn(serial),
                3 => Message::LetGo(serial),
                _ => Message::All,
            };
            if let Ok(Some(Message::LetGo(gone))) = hears(&mut known, message) {
                prop_assert!(!users.contains(&gone), "let go while it is used");
            }
            if let Some(found) = known.find(id) {
                prop_assert_eq!(found.id, id);
                if uses {
                    prop_assert!(known.begin(found.serial));
                    users.push(found.serial);
                }
            }
            if !uses && let Some(serial) = users.pop() {
                let said = known.end(serial);
                prop_assert!(said.is_none() || !users.contains(&serial));
            }
        }
    }
}
