//! The statistics area: one cache line per QP, written here, shown by the daemon.

use crate::{errno_of, lock};
use omniverb_ring::Window;
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_sys::mapping::Access;
use omniverb_sys::{memfd, window};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

pub(crate) struct Area {
    file: OwnedFd,
    window: Window,
    free: Mutex<Vec<u32>>,
}

impl Area {
    pub(crate) fn new() -> Result<Area, i32> {
        let bytes = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;
        let file = memfd::create("omniverb-statistics", bytes as u64).map_err(|e| errno_of(&e))?;
        let window =
            window::map(file.as_fd(), bytes, Access::ReadWrite).map_err(|e| errno_of(&e))?;
        let free = Mutex::new((0..STATISTICS_SLOTS as u32).rev().collect());
        Ok(Area { file, window, free })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A free slot and its memory.
    pub(crate) fn take(&self) -> Option<(u32, Window)> {
        let slot = lock(&self.free).pop()?;
        let window = self.window.part(slot as usize * STATISTICS_SLOT_BYTES, STATISTICS_SLOT_BYTES);
        window.map(|window| (slot, window))
    }

    pub(crate) fn give(&self, slot: u32) {
        lock(&self.free).push(slot);
    }
}
