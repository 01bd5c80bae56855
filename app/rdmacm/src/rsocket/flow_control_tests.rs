//! Two sides of a stream, with queues and memory that are plain.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::rsocket::wire_format::Message;

/// What is under way: bytes for a place, and what the peer is told.
struct SentMessage {
    bytes: Vec<u8>,
    to: u64,
    message: Message,
    half: Option<u32>,
}

struct Side {
    sender: Sender,
    receiver: Receiver,
    send: Vec<u8>,
    receive: Vec<u8>,
    under_way: VecDeque<SentMessage>,
}

impl Side {
    fn new(send: u32, receive: u32, queue: u16, inline: u32, peer_receive: u32) -> Side {
        let target = RemoteBuffer { address: 0, key: 0, length: peer_receive / 2 };
        Side {
            sender: Sender::new(send, u32::from(queue), inline, target, queue),
            receiver: Receiver::new(receive, queue),
            send: vec![0; send as usize],
            receive: vec![0; receive as usize],
            under_way: VecDeque::new(),
        }
    }

    fn grant(&mut self) {
        if self.sender.has_control()
            && let Some(grant) = self.receiver.grant()
        {
            assert!(self.sender.control());
            let message = Message::Credits(grant.until);
            self.under_way.push_back(SentMessage {
                bytes: vec![],
                to: 0,
                message,
                half: grant.half,
            });
        }
    }

    /// Sends what it can of these.
    fn send(&mut self, data: &[u8]) -> usize {
        let (mut steps, mut done) = (PieceLength::new(), 0);
        while let Some(piece) = self.sender.next(data.len() - done, &mut steps) {
            let part = &data[done..][..piece.bytes as usize];
            if !piece.is_inline() {
                let (first, second) = part.split_at(piece.from[0].len());
                self.send[piece.from[0].clone()].copy_from_slice(first);
                self.send[piece.from[1].clone()].copy_from_slice(second);
            }
            let bytes = if piece.is_inline() {
                part.to_vec()
            } else {
                piece.from.iter().flat_map(|range| self.send[range.clone()].to_vec()).collect()
            };
            let message = Message::Data(piece.bytes);
            self.under_way.push_back(SentMessage {
                bytes,
                to: piece.to.address,
                message,
                half: None,
            });
            done += piece.bytes as usize;
        }
        done
    }

    fn read(&mut self, most: usize) -> Vec<u8> {
        let looked = self.receiver.read(most, ReadMode::Peek);
        let ranges = self.receiver.read(most, ReadMode::Take);
        assert_eq!(looked, ranges);
        self.grant();
        ranges.iter().flat_map(|range| self.receive[range.clone()].to_vec()).collect()
    }
}

/// The oldest of what is under way from one side arrives at the other.
fn arrives(from: &mut Side, at: &mut Side) {
    let Some(sent) = from.under_way.pop_front() else { return };
    at.receive[sent.to as usize..][..sent.bytes.len()].copy_from_slice(&sent.bytes);
    match sent.message {
        Message::Data(bytes) => {
            at.receiver.data(bytes).expect("an honest peer");
            from.sender.piece_is_done(bytes);
        }
        Message::Credits(until) => {
            at.sender.allow(until);
            if let Some(half) = sent.half {
                let length = from.receiver.buffer.bytes / 2;
                at.sender.add_target(RemoteBuffer { address: u64::from(half), key: 0, length });
                assert!(at.sender.targets() <= PLACES);
            }
            from.sender.control_is_done();
        }
        _ => unreachable!(),
    }
    at.grant();
}

#[derive(Clone, Debug)]
enum Step {
    Send(bool, usize),
    Read(bool, usize),
    Arrive(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 1..20_000_usize).prop_map(|(side, count)| Step::Send(side, count)),
        (any::<bool>(), 1..20_usize).prop_map(|(side, count)| Step::Send(side, count)),
        (any::<bool>(), 1..20_000_usize).prop_map(|(side, count)| Step::Read(side, count)),
        any::<bool>().prop_map(Step::Arrive),
        any::<bool>().prop_map(Step::Arrive),
    ]
}

/// Endless bytes that differ by where they are.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(7) ^ (at >> 16)) as u8
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_is_a_queue_of_bytes(
        steps in proptest::collection::vec(step(), 1..200),
        send in 1_u32..12, receive in 1_u32..12, queue in 16_u16..64, inline in 0_u32..300,
        odd in 0_u32..2,
    ) {
        let (send, receive) = (send * 2048 + odd, receive * 2048);
        let mut sides = [
            Side::new(send, receive, queue, inline, receive),
            Side::new(send, receive, queue, inline, receive),
        ];
        // Bytes sent by each side, and bytes read by the other.
        let (mut sent, mut read) = ([0_usize; 2], [0_usize; 2]);
        type Count<'a> = &'a mut [usize; 2];
        let run = |step: &Step, sides: &mut [Side; 2], sent: Count<'_>, read: Count<'_>| {
            match *step {
                Step::Send(side, count) => {
                    let side = usize::from(side);
                    let data: Vec<u8> = (sent[side]..sent[side] + count).map(byte).collect();
                    sent[side] += sides[side].send(&data);
                }
                Step::Read(side, count) => {
                    let side = usize::from(side);
                    let got = sides[side].read(count);
                    let right: Vec<u8> = (read[side]..read[side] + got.len()).map(byte).collect();
                    assert_eq!(got, right);
                    read[side] += got.len();
                }
                Step::Arrive(side) => {
                    let [a, b] = sides;
                    if side { arrives(a, b) } else { arrives(b, a) }
                }
            }
        };
        for step in &steps {
            run(step, &mut sides, &mut sent, &mut read);
        }
        // What was sent arrives, if it is read.
        for _ in 0..100_000 {
            if read[1] == sent[0] && read[0] == sent[1] {
                break;
            }
            for side in [false, true] {
                run(&Step::Arrive(side), &mut sides, &mut sent, &mut read);
                run(&Step::Read(side, 1 << 20), &mut sides, &mut sent, &mut read);
            }
        }
        prop_assert_eq!((read[1], read[0]), (sent[0], sent[1]));
        // And then there is room again.
        for _ in 0..16 {
            run(&Step::Arrive(true), &mut sides, &mut sent, &mut read);
            run(&Step::Arrive(false), &mut sides, &mut sent, &mut read);
        }
        for side in [0, 1] {
            prop_assert!(sides[side].sender.can_send() && sides[side].sender.is_idle());
        }
    }

    #[test]
    fn a_peer_never_makes_more_readable_than_the_buffer_has(
        claims in proptest::collection::vec((0_u32..30_000, any::<bool>()), 1..200),
    ) {
        let mut receiver = Receiver::new(8192, 16);
        for (claim, reads) in claims {
            if receiver.data(claim).is_err() {
                break;
            }
            receiver.grant();
            prop_assert!(receiver.unread() <= 8192);
            if reads {
                let ranges = receiver.read(claim as usize, ReadMode::Take);
                prop_assert!(ranges.iter().all(|range| range.end <= 8192));
            }
        }
    }
}

#[test]
fn more_than_was_granted_is_refused() {
    let mut receiver = Receiver::new(8192, 16);
    assert_eq!(receiver.data(4097), Err(ProtocolViolation));
    assert_eq!(receiver.data(4096), Ok(()));
    assert_eq!(receiver.data(1), Err(ProtocolViolation));
    assert_eq!(receiver.grant(), Some(SendGrant { until: 17, half: Some(4096) }));
    assert_eq!(receiver.data(4096), Ok(()));
    assert_eq!(receiver.grant(), None);
    assert_eq!(receiver.read(9000, ReadMode::Take), [0..8192, 0..0]);
    assert_eq!(receiver.grant(), Some(SendGrant { until: 18, half: Some(0) }));
}

#[test]
fn without_credits_nothing_is_sent() {
    let target = RemoteBuffer { address: 0, key: 0, length: 1 << 20 };
    let mut sender = Sender::new(1 << 16, 64, 0, target, 2);
    for _ in 0..2 {
        assert!(sender.next(1, &mut PieceLength::new()).is_some());
    }
    assert!(!sender.can_send() && sender.has_room());
    sender.allow(3);
    assert!(sender.next(1, &mut PieceLength::new()).is_some());
    assert!(sender.next(1, &mut PieceLength::new()).is_none());
}
