//! Memory of the application under test, with guards around it.
// UNSAFETY: makes `UserMemory` of memory that the test owns, as the C edge does of the
// application's.
#![expect(unsafe_code)]

use omniverb_ring::{UserMemory, Window, WordMemory};

const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// Bytes with a guard on either side; dropped, it checks the guards.
#[derive(Clone)]
pub struct Buffer {
    window: Window,
    length: usize,
}

impl Buffer {
    /// Zeroes; on an 8-byte boundary.
    pub fn new(length: usize) -> Buffer {
        Buffer::within(length, 0)
    }

    /// The same in the middle of a mapping, with so many bytes before and behind it.
    pub fn within(length: usize, around: usize) -> Buffer {
        let all = length.next_multiple_of(8) + 2 * GUARD;
        let window = Window::private(all + 2 * around).part(around, all).unwrap();
        let guard = [GUARD_BYTE; GUARD];
        let buffer = Buffer { window, length };
        UserMemory::lend(&guard, |bytes| buffer.window.fill(0, bytes));
        let rest = buffer.window.len() - GUARD - length;
        let guard = vec![GUARD_BYTE; rest];
        UserMemory::lend(&guard, |bytes| buffer.window.fill(GUARD + length, bytes));
        buffer
    }

    /// Bytes that depend on their place and on `seed`.
    pub fn pattern(length: usize, seed: u64) -> Buffer {
        let buffer = Buffer::new(length);
        buffer.write(0, &pattern(length, seed));
        buffer
    }

    /// Where the application sees it.
    pub fn address(&self) -> u64 {
        (self.window.cell(0).unwrap().address() + GUARD) as u64
    }

    pub fn memory(&self) -> UserMemory {
        // SAFETY: inside the window, which the regions' owner (the bench) keeps.
        unsafe { UserMemory::new(self.address() as usize, self.length) }
    }

    /// The same memory as a peer sees it that was granted `length` bytes of it from `offset` on.
    pub fn window(&self, offset: usize, length: usize) -> Window {
        assert!(offset + length <= self.length);
        self.window.part(GUARD + offset, length).unwrap()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        UserMemory::lend(bytes, |source| self.window.fill(GUARD + offset, source));
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        self.raw(GUARD + offset, length)
    }

    pub fn all(&self) -> Vec<u8> {
        self.read(0, self.length)
    }

    pub fn number(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }

    fn raw(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        UserMemory::lend_mut(&mut bytes, |target| self.window.drain(offset, target));
        bytes
    }

    /// Panics if anything was written beside the buffer.
    pub fn check_guards(&self) {
        let intact = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == GUARD_BYTE);
        assert!(intact(self.raw(0, GUARD)), "written before a buffer");
        let behind = self.window.len() - GUARD - self.length;
        assert!(intact(self.raw(GUARD + self.length, behind)), "written behind a buffer");
    }
}

/// The bytes of [`Buffer::pattern`].
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}
