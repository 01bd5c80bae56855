//! Remembers facts about some sockets, by descriptor and identity: of those that share a place the
//! latest.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// So many places.
pub(crate) struct Marks([AtomicU64; 256]);

/// A word that no other socket has.
pub(crate) fn word(fd: c_int, id: u32) -> u64 {
    u64::from(fd.unsigned_abs()) << 32 | u64::from(id)
}

impl Marks {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 256])
    }

    fn place(&self, fd: c_int) -> &AtomicU64 {
        &self.0[fd.unsigned_abs() as usize % self.0.len()]
    }

    /// This one is marked.
    pub(crate) fn put(&self, fd: c_int, id: u32) {
        self.place(fd).store(word(fd, id), Ordering::Relaxed);
    }

    /// It is, and no other one of its place was since.
    pub(crate) fn has(&self, fd: c_int, id: u32) -> bool {
        self.place(fd).load(Ordering::Relaxed) == word(fd, id)
    }
}
