//! Generates pseudo-random numbers (splitmix64): the same seed, the same numbers, for ever. They
//! decide which packets a faulty line hurts, and nothing else.

/// A generator: as far as it has come from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Mixes a number thoroughly.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// Numbers that follow from a seed.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }
    /// The next one.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
    /// True so many times in ten thousand.
    pub fn chance(&mut self, in_10000: u64) -> bool {
        self.below(10_000) < in_10000
    }
    /// True so many times in a million.
    pub fn rarely(&mut self, in_a_million: u64) -> bool {
        self.below(1_000_000) < in_a_million
    }
    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
