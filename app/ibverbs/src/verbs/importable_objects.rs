//! Holds the objects that contexts of one family share and can import from each other: protection
//! domains, regions, device memory. What C has of them is in `protection_domain.rs`,
//! `memory_region.rs` and `thread_domain_and_dm_handles.rs`.

use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use omniverb_abi::ibv_pd;
use omniverb_client::{ImportedMemory, ImportedRegion};
use omniverb_device::Region;
use omniverb_terms::{Errno, Rkey};

use super::object_counts::{ObjectCounts, UserCount};
use super::object_limits::DM_BYTES_MAX;

/// An importer of device memory has whole pages of it.
const PAGE: usize = 4096;

/// A protection domain, shared with its importers.
pub(super) struct ProtectionDomain {
    /// What the device knows it by; unique in the process.
    pub(super) number: u32,
    /// Another process's: its handle there.
    pub(super) elsewhere: Option<u32>,
    /// Objects made in it.
    pub(super) users: UserCount,
}

impl ProtectionDomain {
    fn with(elsewhere: Option<u32>) -> Arc<ProtectionDomain> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(ProtectionDomain { number, elsewhere, users: UserCount::default() })
    }

    /// A new one.
    pub(super) fn new() -> Arc<ProtectionDomain> {
        ProtectionDomain::with(None)
    }

    /// One of another process's, which knows it by this handle.
    pub(super) fn of_another(handle: u32) -> Arc<ProtectionDomain> {
        ProtectionDomain::with(Some(handle))
    }

    /// What C knows it by.
    pub(super) fn handle(&self) -> u32 {
        self.elsewhere.unwrap_or(self.number)
    }
}

/// A memory region, shared with its importers.
pub(super) struct ImportableRegion {
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
    /// No region: a null MR.
    Nobody,
    /// This piece of device memory.
    Device(Arc<DeviceMemory>),
    /// Memory of another process, from which the region was imported.
    Elsewhere(Arc<ImportedRegion>),
}

/// Device memory, shared with its importers: here, memory of the program that only its handle leads
/// to.
pub(super) struct DeviceMemory {
    pub(super) handle: u32,
    pub(super) memory: *mut c_void,
    pub(super) length: usize,
    /// Regions in it.
    pub(super) users: UserCount,
    of: DeviceMemoryStore,
}

/// Where device memory is.
enum DeviceMemoryStore {
    Here {
        layout: Layout,
        counts: Arc<ObjectCounts>,
    },
    /// Mapped from another process.
    Elsewhere {
        _memory: ImportedMemory,
    },
}

// SAFETY: bytes that are not interpreted; programs copy to and from them as with any memory.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// So many zeroes, in pages of their own; `ENOMEM` if there are not so many left.
    pub(super) fn new(
        length: usize,
        alignment: usize,
        counts: Arc<ObjectCounts>,
    ) -> Result<Arc<DeviceMemory>, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let layout = Layout::from_size_align(length, alignment.max(PAGE)).ok();
        let layout = layout.map(|layout| layout.pad_to_align()).ok_or(Errno::EINVAL)?;
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
        let (memory, of) = (memory.cast(), DeviceMemoryStore::Here { layout, counts });
        Ok(Arc::new(DeviceMemory { handle, memory, length, users: UserCount::default(), of }))
    }

    /// Whether it is another process's.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.of, DeviceMemoryStore::Elsewhere { .. })
    }

    /// Device memory of another process, which stays mapped until this is dropped.
    pub(super) fn imported(memory: ImportedMemory) -> Arc<DeviceMemory> {
        let (handle, length) = (memory.handle, memory.length);
        let at = std::ptr::with_exposed_provenance_mut(memory.address());
        let of = DeviceMemoryStore::Elsewhere { _memory: memory };
        Arc::new(DeviceMemory { handle, memory: at, length, users: UserCount::default(), of })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let DeviceMemoryStore::Here { layout, counts } = &self.of {
            // SAFETY: allocated with this layout; it has no owner any more.
            unsafe { dealloc(self.memory.cast(), *layout) };
            counts.give_device_memory(self.length as u64);
        }
    }
}
