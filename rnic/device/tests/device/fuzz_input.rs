//! Turns bytes into decisions: what a test or a fuzzer does next.

/// Bytes that say what happens; zeroes when they are used up.
pub struct Script<'b> {
    bytes: &'b [u8],
}

impl<'b> Script<'b> {
    pub fn new(bytes: &'b [u8]) -> Script<'b> {
        Script { bytes }
    }

    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.bytes {
            [] => 0,
            [first, rest @ ..] => {
                self.bytes = rest;
                *first
            }
        }
    }

    pub fn number(&mut self, below: usize) -> usize {
        let wide = usize::from(self.byte()) << 16 | usize::from(self.byte()) << 8;
        (wide | usize::from(self.byte())) % below.max(1)
    }

    /// Small, large, a power of two, or anything.
    pub fn word(&mut self) -> u64 {
        let kind = self.byte();
        match kind % 5 {
            0 => u64::from(self.byte()),
            1 => self.number(1 << 17) as u64,
            2 => 1 << (self.byte() & 63),
            3 => u64::MAX - u64::from(self.byte()),
            _ => (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte())),
        }
    }
}
