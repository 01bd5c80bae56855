//! What contexts of one family have in common, and can import from each other: protection domains,
//! regions, device memory. What C has of them is in `pd.rs`, `memory.rs` and `users.rs`.

use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use omniverb_abi::ibv_pd;
use omniverb_device::Region;
use omniverb_terms::{Errno, Rkey};

use super::counts::{Counts, Users};
use super::limits::DM_BYTES_MAX;

/// A protection domain, whoever has imported it.
pub(super) struct Protection {
    /// What the device knows it by; unique in the process.
    pub(super) number: u32,
    /// Objects made in it.
    pub(super) users: Users,
}

/// A memory region, whoever has imported it.
pub(super) struct Registered {
    pub(super) state: Mutex<State>,
    pub(super) of: MemoryOf,
}

/// What registering anew changes.
pub(super) struct State {
    pub(super) region: Arc<Region>,
    /// What peers name it by, if they may.
    pub(super) rkey: Rkey,
    /// What it is counted by.
    pub(super) pd: *mut ibv_pd,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
}

// SAFETY: the pointers are the program's, for any thread; the PD is ours, and what is done with it
// is atomic.
unsafe impl Send for State {}

/// Whose memory a region is.
pub(super) enum MemoryOf {
    Program,
    /// Nobody's: a null MR.
    Nobody,
    /// This piece of device memory.
    Device(Arc<DeviceMemory>),
}

/// Device memory, whoever has imported it: here, memory of the program that only its handle leads
/// to.
pub(super) struct DeviceMemory {
    pub(super) handle: u32,
    pub(super) memory: *mut c_void,
    pub(super) length: usize,
    layout: Layout,
    /// Regions in it.
    pub(super) users: Users,
    counts: Arc<Counts>,
}

// SAFETY: bytes that nobody interprets; programs copy to and from them as with any memory.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// So many zeroes; `ENOMEM` if there are not so many left.
    pub(super) fn new(layout: Layout, counts: Arc<Counts>) -> Result<Arc<DeviceMemory>, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let length = layout.size();
        if length == 0 || !counts.take_device_memory(length as u64, DM_BYTES_MAX) {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            counts.give_device_memory(length as u64);
            return Err(Errno::ENOMEM);
        }
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let (memory, users) = (memory.cast(), Users::default());
        Ok(Arc::new(DeviceMemory { handle, memory, length, layout, users, counts }))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nobody has it any more.
        unsafe { dealloc(self.memory.cast(), self.layout) };
        self.counts.give_device_memory(self.length as u64);
    }
}
