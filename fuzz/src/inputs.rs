//! Random inputs that get past the first check of their target.

use omniverb_session::{VERSION, decode, limits::MESSAGE_BYTES_MAX};
use std::sync::OnceLock;

/// A small generator that can be repeated.
pub struct Random(u64);

impl Random {
    /// Started with any number.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() >> 16) as usize % end.max(1)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number() as u8).collect()
    }
}

/// An input for this target.
pub fn input(target: &str, random: &mut Random) -> Vec<u8> {
    match target {
        "session_decode" => message(random),
        "engine_trace" => (0..random.below(12)).flat_map(|_| record(random)).collect(),
        "broker" => (0..random.below(60)).flat_map(|_| step(random)).collect(),
        _ => {
            let length = random.below(3000);
            random.bytes(length)
        }
    }
}

/// Kinds of messages and their lengths, found out by asking.
fn kinds() -> &'static [(u16, usize)] {
    static KINDS: OnceLock<Vec<(u16, usize)>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut found = Vec::new();
        for kind in 1..100u16 {
            bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
            bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
            found.extend(
                (16..bytes.len()).find(|end| decode(&bytes[..*end]).is_ok()).map(|end| (kind, end)),
            );
        }
        found
    })
}

/// A message whose numbers are small enough to mean something, sometimes.
fn message(random: &mut Random) -> Vec<u8> {
    let (kind, length) = kinds()[random.below(kinds().len())];
    let mut bytes = vec![0; length];
    for word in bytes.chunks_mut(4) {
        let number = match random.below(6) {
            0 => random.number() as u32,
            1 => 0,
            _ => random.below(8) as u32,
        };
        word.copy_from_slice(&number.to_ne_bytes()[..word.len()]);
    }
    // The vNICs of the bench have these addresses.
    for at in (16..length.saturating_sub(16)).step_by(4) {
        if random.below(6) == 0 {
            let address =
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, random.below(5) as u8];
            bytes[at..at + 16].copy_from_slice(&address);
        }
    }
    bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
    if random.below(20) != 0 {
        bytes[4..8].fill(0);
    }
    if random.below(20) == 0 {
        let end = random.below(length + 1);
        bytes.truncate(end);
    }
    bytes
}

/// A record of a trace, right in most of its words.
fn record(random: &mut Random) -> Vec<u8> {
    let kind = [1, 2, 3, 4, 5, 6, 16, 17, 18, 19][random.below(10)];
    let flags = if random.below(3) == 0 { random.number() & 0x7ff_ff00 } else { 0 };
    let (mtu, keep) = ([1, 3, 5, 6][random.below(4)], [4096, 4096, 10, 0][random.below(4)]);
    let first = random.below(900) as u64;
    let second = [0, 0, 0, 16384, random.number()][random.below(5)];
    let length = if [1, 2, 6, 17].contains(&kind) && keep == 4096 { first } else { 0 };
    let position = random.number() & 0xffff_ffff_ffff | keep << 48;
    let header = 1 << 63 | 7 << 59 | (kind | flags) << 32 | length;
    let mut words = [header, random.number(), 0x22_0000_11, position, 0x7000, 9, first, second];
    words[2] |= mtu << 48 | random.number() << 56;
    if random.below(20) == 0 {
        words[random.below(8)] = random.number();
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(random.bytes(length as usize));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn step(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.bytes(2);
    if bytes[0] % 16 == 5 {
        bytes.extend(random.bytes(4));
    }
    if bytes[0] % 16 > 6 {
        let message = loop {
            let message = message(random);
            if message.len() < 256 {
                break message;
            }
        };
        bytes.push(message.len() as u8);
        bytes.extend(message);
    }
    bytes
}
