//! A buffer of ours.

use core::sync::atomic::{AtomicU32, Ordering};

use omniverb_dma_announce::AnnouncedBuffer;

use crate::registered_memory::Memory;

/// Memory that all nodes know of.
pub struct LocalBuffer {
    pub(crate) memory: Memory,
    /// As it is announced.
    pub(crate) what: AnnouncedBuffer,
    /// Transfers of ours that are under way.
    users: AtomicU32,
}

impl LocalBuffer {
    pub(crate) fn new(memory: Memory, what: AnnouncedBuffer) -> Self {
        Self { memory, what, users: AtomicU32::new(0) }
    }

    /// A transfer that has to do with it begins: the memory stays until all have ended.
    pub(crate) fn begin(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One that began has ended.
    pub(crate) fn end(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Whether a transfer is under way.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }
}
