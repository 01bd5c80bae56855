//! Memory of ours that the device may reach.

use core::ffi::c_void;

use omniverb_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd,
};
use omniverb_dma_announce::{READABLE, WRITABLE};
use omniverb_terms::{Errno, Rkey};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::errno::made;
use crate::rdma_imports;

/// Whole pages, and the region that they are; both go with it.
pub(crate) struct Memory {
    start: *mut c_void,
    bytes: usize,
    mr: *mut ibv_mr,
}

// SAFETY: verbs are for any thread, and users of the bytes are responsible for them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed pages; `rights` are others'.
    pub(crate) fn new(pd: *mut ibv_pd, bytes: usize, rights: u32) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let bytes = bytes.checked_next_multiple_of(page).ok_or(Errno::ENOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever there is room.
        let start =
            unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let start = start.map_err(|error| Errno(error.raw_os_error().unsigned_abs()))?;
        let mut access = IBV_ACCESS_LOCAL_WRITE;
        if rights & READABLE != 0 {
            access |= IBV_ACCESS_REMOTE_READ;
        }
        if rights & WRITABLE != 0 {
            access |= IBV_ACCESS_REMOTE_WRITE;
        }
        // SAFETY: a protection domain of ours, and memory that stays while it is registered.
        let mr = made(unsafe { rdma_imports::ibv_reg_mr(pd, start, bytes, access.cast_signed()) });
        match mr {
            Ok(mr) => Ok(Self { start, bytes, mr }),
            Err(errno) => {
                // SAFETY: mapped above, and not used any more.
                unsafe { munmap(start, bytes) }.ok();
                Err(errno)
            }
        }
    }

    pub(crate) fn start(&self) -> *mut c_void {
        self.start
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Whether it is of that protection domain.
    pub(crate) fn is_of(&self, pd: *mut ibv_pd) -> bool {
        // SAFETY: live as long as this is.
        unsafe { (*self.mr).pd == pd }
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: live as long as this is.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> Rkey {
        // SAFETY: live as long as this is.
        Rkey(unsafe { (*self.mr).rkey })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `new`. Pages that the device might still reach are kept.
        unsafe {
            if rdma_imports::ibv_dereg_mr(self.mr) == 0 {
                munmap(self.start, self.bytes).ok();
            }
        }
    }
}
