//! Numbers that look random, and are the same in each run.

/// Marsaglia's xorshift of 64 bits, from a number other than 0 on; it never ends.
pub(crate) struct Random(pub(crate) u64);

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0)
    }
}
