//! Fuzzes the link memory of a carried socket, and messages to and from the broker.

use omniverb_formats::broker_message::{Reply, Request};
use omniverb_formats::channel_layout::{self, LANES, RING as FRAMES, SIDE, lane_words, ring};
use omniverb_formats::channel_mirror::{Mirror, Scope};
use omniverb_formats::fallback_ledger::Kept;
use omniverb_formats::gateway_message::{GatewayMessage, LONGEST, Sent};
use omniverb_formats::link_layout::{self, FENCE, HEAD, PLACE, POLLING, RING, SAID};
use omniverb_formats::socket_status_rows::Row;
use omniverb_formats::{Broken, Direction};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, Window, WordMemory};

/// Bytes of a step: what is done, and a number.
const STEP: usize = 9;

/// The peer writes any word between any two steps of ours.
pub fn carry(bytes: &[u8]) {
    let memory = Window::private(link_layout::BYTES);
    let ours = Direction::new(memory.clone(), 0);
    let theirs = Direction::new(memory.clone(), 1);
    let (mut seen_head, mut seen_place) = (0, 0);
    for step in bytes.chunks_exact(STEP) {
        let mut word = [0; 8];
        word.copy_from_slice(&step[1..]);
        let value = u64::from_ne_bytes(word);
        match step[0] % 11 {
            what @ 0..=4 => {
                let at = [PLACE, HEAD, FENCE, SAID, POLLING][usize::from(what)];
                let side = usize::from(step[0] / 11) % 2;
                memory.store(link_layout::word(side, at), value, Ordering::Relaxed);
            }
            5 => _ = receive(&theirs, &mut seen_head, value as usize % (2 * RING)),
            6 => _ = send(&ours, &mut seen_place, value as usize % (2 * RING)),
            7 => _ = reclaim(&ours, value as usize),
            8 => _ = theirs.leave(),
            9 => _ = theirs.inherit(value as usize),
            _ => {
                theirs.start_polling(1, || true);
                theirs.stop_polling();
                if value.is_multiple_of(97) {
                    ours.stop();
                }
            }
        }
    }
}

fn receive(direction: &Direction<Window>, seen: &mut u64, most: usize) -> Result<(), Broken> {
    let (place, waiting) = direction.waiting_by(seen, most)?;
    assert!(waiting <= RING);
    let mut bytes = vec![0; waiting.min(most)];
    let length = bytes.len();
    UserMemory::lend_mut(&mut bytes, |to| direction.drain(place.position(), 0, to));
    direction.take(place, length);
    Ok(())
}

fn send(direction: &Direction<Window>, seen: &mut u64, most: usize) -> Result<(), Broken> {
    let head = direction.head();
    let room = RING - direction.used(head, seen, most)?;
    let bytes = vec![7; room.min(most)];
    UserMemory::lend(&bytes, |bytes| direction.fill(head.position(), 0, bytes));
    direction.publish(head, bytes.len());
    Ok(())
}

fn reclaim(direction: &Direction<Window>, most: usize) -> Result<(), Broken> {
    let Some(stretch) = direction.reclaim()? else { return Ok(()) };
    let mut bytes = vec![0; stretch.bytes];
    UserMemory::lend_mut(&mut bytes, |to| direction.drain(stretch.from, 0, to));
    direction.finish_reclaim(stretch, most % (stretch.bytes + 1))
}

/// A channel to another host: the process and the other gateway write any word that they may, or a
/// letter that is one, between any two steps of the gateway's. What it copies lies in the process's
/// rings, and words of the process's are never written.
pub fn gateway(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let side = usize::from(*first & 1);
    let mut mirror = Mirror::new(Window::private(channel_layout::BYTES), side);
    let mut pieces = Vec::new();
    for step in rest.chunks(STEP + usize::from(first >> 1)) {
        if let Some(sent) = Sent::decode(&step[1..]) {
            let mut same = [0; LONGEST];
            let length = sent.encode(&mut same);
            assert_eq!(same[..length], step[1..]);
            if let GatewayMessage::Update(news) = sent.letter {
                let own = [side * SIDE, lane_words(side, usize::from(step[0]) % LANES)];
                let words = own.map(|at| mirror.memory().load(at, Ordering::Relaxed));
                mirror.apply(&news);
                assert_eq!(own.map(|at| mirror.memory().load(at, Ordering::Relaxed)), words);
            }
        }
        let Some((word, _)) = step[1..].split_first_chunk() else { continue };
        let value = u64::from_le_bytes(*word);
        let at = match step[0] % 4 {
            0 => value as usize % 128 * 8,
            1 => lane_words(value as usize & 1, usize::from(step[0] / 4)) + value as usize % 64 * 8,
            _ => side * SIDE,
        };
        mirror.memory().store(at, value >> (step[0] / 4), Ordering::Relaxed);
        mirror.sleeps();
        _ = (mirror.is_to_be_watched(), mirror.is_cut());
        let what = if step[0] > 127 { Scope::All } else { Scope::Due };
        if mirror.look(what, &mut pieces).is_ok_and(|news| news.is_some()) {
            let frames = ring(side)..ring(side) + FRAMES;
            for piece in &pieces {
                let is_of_frames = frames.start <= piece.start && piece.end <= frames.end;
                let lane = channel_layout::lane_ring(side, 0)
                    ..channel_layout::lane_ring(side, LANES - 1) + channel_layout::LANE;
                let is_of_lanes = lane.start <= piece.start && piece.end <= lane.end;
                assert!(piece.start <= piece.end && (is_of_frames || is_of_lanes), "{piece:?}");
            }
        }
    }
}

/// What decodes encodes to the same.
pub fn socket_broker(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(reply.encode(), bytes);
    }
    // What is shown is as others have written it.
    if let Some(row) = Row::decode(bytes) {
        assert_eq!(Row::decode(&row.encode()), Some(row));
    }
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().copied().map(u64::from_ne_bytes).collect();
    if let Some(kept) = words.first_chunk().and_then(Kept::decode) {
        assert_eq!(Kept::decode(&kept.encode()), Some(kept));
    }
}
