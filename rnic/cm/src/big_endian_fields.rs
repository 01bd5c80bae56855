//! Reads and writes fields of a message by their offsets, which are constants of this crate; the
//! array is always long enough for them.

/// Bytes of a message behind the management header.
pub(crate) const BYTES: usize = 232;

/// A message as bytes.
pub(crate) struct Fields(pub(crate) [u8; BYTES]);

impl Fields {
    pub(crate) fn zero() -> Fields {
        Fields([0; BYTES])
    }
    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.0[at..at + N]);
        array
    }
    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }
    pub(crate) fn u24(&self, at: usize) -> u32 {
        let [a, b, c] = self.array(at);
        u32::from_be_bytes([0, a, b, c])
    }
    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }
    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(crate) fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }
    pub(crate) fn set_u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }
    pub(crate) fn set_u16(&mut self, at: usize, value: u16) {
        self.set(at, value.to_be_bytes());
    }
    pub(crate) fn set_u24(&mut self, at: usize, value: u32) {
        let [_, a, b, c] = value.to_be_bytes();
        self.set(at, [a, b, c]);
    }
    pub(crate) fn set_u32(&mut self, at: usize, value: u32) {
        self.set(at, value.to_be_bytes());
    }
    pub(crate) fn set_u64(&mut self, at: usize, value: u64) {
        self.set(at, value.to_be_bytes());
    }
}
