//! Control messages: any bytes may come.

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::vm::{self, FrameHead, FrameKind, Frames};
use omniverb_session::{Message, VERSION, decode, encode};
use proptest::prelude::*;

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) }
}

/// What is accepted means the same when it is written again.
fn check(bytes: &[u8]) {
    let Ok((tag, message)) = decode(bytes) else { return };
    let mut out = [0; MESSAGE_BYTES_MAX];
    let length = encode(tag, &message, &mut out);
    assert_eq!(decode(&out[..length]), Ok((tag, message.clone())));
    if !matches!(message, Message::Failed(_)) {
        assert_eq!(&out[..length], bytes);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }

    /// A stream of any bytes behind a right head: one frame, of the length it says, or none.
    #[test]
    fn arbitrary_streams_decode_or_are_refused(
        kind in 0..FrameKind::ALL.len() as u16 + 2,
        length in prop_oneof![0..64u32, any::<u32>()],
        step in 1..40usize,
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        bytes.extend(VERSION.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend([0; 8]);
        prop_assert_eq!(bytes.len(), size_of::<FrameHead>());
        bytes.extend(&body);
        let (mut frames, mut found, mut over) = (Frames::default(), Vec::new(), false);
        for piece in bytes.chunks(step) {
            frames.feed(piece);
            while let (false, next) = (over, frames.next_frame()) {
                match next {
                    Ok(Some(frame)) => found.push(frame),
                    Ok(None) => break,
                    Err(_) => over = true,
                }
            }
        }
        let most = FrameKind::ALL.into_iter().find(|one| *one as u16 == kind);
        let most = most.map(|kind| kind.bytes_max().min(body.len()));
        let whole = most.is_some_and(|most| usize::try_from(length).unwrap() <= most);
        prop_assert_eq!(!found.is_empty(), whole);
        if let Some(first) = found.first() {
            prop_assert_eq!(&first.bytes[..], &body[..first.bytes.len()]);
            prop_assert_eq!(first.bytes.len(), length as usize);
        }
        let _ = vm::decode(&bytes);
    }

    /// A right header, any body of any length.
    #[test]
    fn arbitrary_bodies_decode_or_are_refused(
        kind in 0..50u16,
        errno in prop_oneof![9 => Just(0u32), 1 => any::<u32>()],
        tag in any::<u64>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        bytes.extend(VERSION.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(errno.to_ne_bytes());
        bytes.extend(tag.to_ne_bytes());
        let header = bytes.len();
        bytes.extend(&body);
        check(&bytes);
        // Every length up to the body's: at most one of them is the right one.
        let right = (header..=bytes.len()).filter(|end| decode(&bytes[..*end]).is_ok()).count();
        prop_assert!(right <= 1);
    }
}

/// Each kind has exactly one length, and no other is taken.
#[test]
fn every_kind_has_one_length() {
    let mut known = 0;
    for kind in 1..100u16 {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 64];
        bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
        let right: Vec<_> = (0..bytes.len()).filter(|end| decode(&bytes[..*end]).is_ok()).collect();
        assert!(right.len() <= 1, "kind {kind}: {right:?}");
        assert!(right.iter().all(|length| *length <= MESSAGE_BYTES_MAX));
        known += right.len();
    }
    assert!(known >= 25);
}
