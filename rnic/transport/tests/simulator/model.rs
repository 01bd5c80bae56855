//! Plans what one end asks of the other, and what must come of it.

use omniverb_terms::{Placement, Rkey, Selectivity};
use omniverb_transport::splitmix64::{Random, mix};
use omniverb_transport::{Operation, Request, RequestId};
use omniverb_wire::PacketPosition;

/// Memory of each end: first what WRITEs change, then what READs see, then what atomics change.
pub const WRITABLE: u64 = 16 << 10;
pub const READABLE: u64 = 64 << 10;
pub const COUNTERS: u64 = 8;
pub const BASE: u64 = 0x7f00_0000_0000;
pub const KEY: Rkey = Rkey(0xabcd_1234);

#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub operation: Operation,
    pub length: u64,
    pub fence: bool,
}

/// All messages that one end sends.
pub struct Plan {
    pub seed: u64,
    pub items: Vec<Item>,
    /// What each atomic must find.
    pub originals: Vec<Option<u64>>,
    /// What the peer's writable memory and counters must hold in the end.
    pub written: Vec<u8>,
    pub counters: [u64; COUNTERS as usize],
}

/// Byte `at` of message `item`.
pub fn byte(seed: u64, item: usize, at: u64) -> u8 {
    (mix(seed ^ ((item as u64) << 40) ^ (at / 8)) >> (at % 8 * 8)) as u8
}

/// Byte at `offset` of the readable memory of `host`.
pub fn readable(seed: u64, host: usize, offset: u64) -> u8 {
    byte(!seed, 1000 + host, offset)
}

impl Plan {
    pub fn new(seed: u64, random: &mut Random, count: usize, longest: u64) -> Plan {
        let mut plan = Plan {
            seed,
            items: Vec::new(),
            originals: Vec::new(),
            written: vec![0; WRITABLE as usize],
            counters: [0; COUNTERS as usize],
        };
        for index in 0..count {
            let item = plan.random_item(random, longest);
            let original = plan.apply(index, &item);
            plan.items.push(item);
            plan.originals.push(original);
        }
        plan
    }

    /// Only some of its messages.
    pub fn only(&self, which: impl Fn(&Item) -> bool) -> Plan {
        let mut plan = Plan::new(self.seed, &mut Random::new(0), 0, 0);
        for item in self.items.iter().filter(|item| which(item)) {
            let original = plan.apply(plan.items.len(), item);
            plan.items.push(*item);
            plan.originals.push(original);
        }
        plan
    }

    fn random_item(&self, random: &mut Random, longest: u64) -> Item {
        // Around multiples of the MTUs, and everything else.
        let length = |random: &mut Random, most: u64| {
            match random.below(4) {
                0 => random.below(64),
                1 => (256 << random.below(5)) * random.between(1, 3) + random.below(5) - 2,
                _ => random.below(most + 1),
            }
            .min(most)
        };
        let four = |random: &mut Random| (random.next() as u32).to_be_bytes();
        let key = KEY;
        let counter = BASE + WRITABLE + READABLE + 8 * random.below(COUNTERS);
        let (operation, length) = match random.below(12) {
            0..=2 => {
                let (immediate, invalidate) = match random.below(4) {
                    0 => (Some(four(random)), None),
                    1 => (None, Some(Rkey(random.next() as u32))),
                    _ => (None, None),
                };
                let solicited = random.chance(3000);
                (Operation::Send { immediate, invalidate, solicited }, length(random, longest))
            }
            3..=5 => {
                let total = length(random, longest.min(WRITABLE));
                let address = BASE + random.below(WRITABLE - total + 1);
                let immediate = random.chance(3000).then(|| four(random));
                let solicited = random.chance(3000);
                (Operation::Write { address, key, total, immediate, solicited }, total)
            }
            6 | 7 => {
                let length = length(random, longest.min(READABLE));
                let address = BASE + WRITABLE + random.below(READABLE - length + 1);
                (Operation::Read { address, key }, length)
            }
            8 => (Operation::FetchAdd { address: counter, key, add: random.next() }, 8),
            9 => {
                let value = random.next().to_ne_bytes();
                (Operation::AtomicWrite { address: counter, key, value }, 8)
            }
            10 => {
                let length = length(random, longest.min(WRITABLE)) as u32;
                let (address, placement) = (BASE, Placement::GLOBAL);
                let selectivity = Selectivity::Range;
                (Operation::Flush { address, key, length, placement, selectivity }, 0)
            }
            _ => {
                let index = ((counter - BASE - WRITABLE - READABLE) / 8) as usize;
                // Half of them find what they look for.
                let compare = self.counters[index] ^ random.below(2);
                let swap = random.next();
                (Operation::CompareSwap { address: counter, key, compare, swap }, 8)
            }
        };
        Item { operation, length, fence: random.chance(1500) }
    }

    /// The effect of a message, in its turn, exactly once.
    fn apply(&mut self, index: usize, item: &Item) -> Option<u64> {
        let counter = |address: u64| ((address - BASE - WRITABLE - READABLE) / 8) as usize;
        match item.operation {
            Operation::Write { address, total, .. } => {
                for at in 0..total {
                    self.written[(address - BASE + at) as usize] = byte(self.seed, index, at);
                }
                None
            }
            Operation::FetchAdd { address, add, .. } => {
                let value = &mut self.counters[counter(address)];
                let original = *value;
                *value = original.wrapping_add(add);
                Some(original)
            }
            Operation::AtomicWrite { address, value, .. } => {
                self.counters[counter(address)] = u64::from_ne_bytes(value);
                None
            }
            Operation::CompareSwap { address, compare, swap, .. } => {
                let value = &mut self.counters[counter(address)];
                let original = *value;
                if original == compare {
                    *value = swap;
                }
                Some(original)
            }
            _ => None,
        }
    }

    /// A message as requests: SENDs and WRITEs sometimes in pieces.
    pub fn requests(&self, index: usize, random: &mut Random, path_mtu: u64) -> Vec<Request> {
        let Item { operation, length, fence } = self.items[index];
        let divisible = matches!(operation, Operation::Send { .. } | Operation::Write { .. });
        let mut pieces = vec![0];
        while divisible && random.chance(4000) {
            let last = pieces[pieces.len() - 1];
            let next = last + path_mtu * random.between(1, 5);
            if next >= length {
                break;
            }
            pieces.push(next);
        }
        let ends = pieces.iter().skip(1).copied().chain([length]);
        let piece = |(begin, end): (u64, u64)| Request {
            id: RequestId((index as u64) << 32 | begin),
            operation,
            srq: 0,
            length: end - begin,
            place: PacketPosition::new(begin == 0, end == length),
            is_fenced: fence && begin == 0,
        };
        pieces.iter().copied().zip(ends).map(piece).collect()
    }
}
