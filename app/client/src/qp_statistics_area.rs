//! The statistics area: two cache lines per QP, written here, shown by the daemon, which makes it.
//! After a restart of the daemon the new one's area takes the place of the old.

use crate::memory_from_daemon;
use omniverb_ring::Window;
use omniverb_session::limits::{STATISTICS_SLOT_BYTES, STATISTICS_SLOTS};
use omniverb_sys::Extent;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

pub(crate) struct Area {
    window: Window,
    free: Mutex<Vec<u32>>,
}

pub(crate) const BYTES: usize = STATISTICS_SLOTS * STATISTICS_SLOT_BYTES;
const _: () = assert!(STATISTICS_SLOT_BYTES == omniverb_device::limits::STATISTICS_BYTES);

impl Area {
    /// Maps what the daemon made.
    pub(crate) fn new(made: &Extent<OwnedFd>) -> Result<Area, Errno> {
        let window = memory_from_daemon::map(made, BYTES)?;
        let free = Mutex::new((0..STATISTICS_SLOTS as u32).rev().collect());
        Ok(Area { window, free })
    }

    /// Goes on in the area of another daemon, with the counts of now.
    pub(crate) fn move_to(&self, made: &Extent<OwnedFd>) -> Result<(), Errno> {
        made.replace(&self.window).map_err(|error| memory_from_daemon::errno(&error))
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
