//! The statistics area: one cache line per QP, written here, shown by the daemon, which makes it.
//! After a restart of the daemon the new one's area takes the place of the old.

use crate::{errno_of, lock};
use omniverb_ring::Window;
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_sys::mapping::Access;
use omniverb_sys::{memfd, window};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

pub(crate) struct Area {
    window: Window,
    free: Mutex<Vec<u32>>,
}

pub(crate) const BYTES: usize = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;

fn check(file: &OwnedFd) -> Result<(), i32> {
    memfd::verify(file.as_fd(), BYTES as u64).map_err(|_| libc::EPROTO)
}

impl Area {
    /// Maps what the daemon made.
    pub(crate) fn new(file: &OwnedFd) -> Result<Area, i32> {
        check(file)?;
        let window =
            window::map(file.as_fd(), BYTES, Access::ReadWrite).map_err(|e| errno_of(&e))?;
        let free = Mutex::new((0..STATISTICS_SLOTS as u32).rev().collect());
        Ok(Area { window, free })
    }

    /// Goes on in the area of another daemon, with the counts of now.
    pub(crate) fn move_to(&self, file: &OwnedFd) -> Result<(), i32> {
        check(file)?;
        window::replace(&self.window, file.as_fd()).map_err(|e| errno_of(&e))
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
