//! The device, and what is made of it once.

use omniverb_abi::{ibv_comp_channel, ibv_context, ibv_pd};
use omniverb_terms::Errno;

use crate::errno::made;
use crate::rdma_imports;

/// An open device. All that is made of it goes before.
pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
}

// SAFETY: verbs are for any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The first there is. It stays open, as those of rdma_cm do.
    pub(crate) fn first() -> Result<*mut ibv_context, Errno> {
        let mut count = 0;
        // SAFETY: a place for a number; the list has so many, and is given back.
        unsafe {
            let list = made(rdma_imports::rdma_get_devices(&mut count))?;
            let first = if count > 0 { list.read() } else { core::ptr::null_mut() };
            rdma_imports::rdma_free_devices(list);
            if first.is_null() { Err(Errno::ENODEV) } else { Ok(first) }
        }
    }

    /// # Safety
    /// `context` is open, and stays so.
    pub(crate) unsafe fn new(context: *mut ibv_context) -> Result<Self, Errno> {
        // SAFETY: the caller's promise.
        unsafe {
            let pd = made(rdma_imports::ibv_alloc_pd(context))?;
            match made(rdma_imports::ibv_create_comp_channel(context)) {
                Ok(channel) => Ok(Self { context, pd, channel }),
                Err(errno) => {
                    rdma_imports::ibv_dealloc_pd(pd);
                    Err(errno)
                }
            }
        }
    }

    /// The number of a node whose queue has news. Not to be waited for: none, if there is none.
    pub(crate) fn news(&self) -> Option<u32> {
        let (mut cq, mut name) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: open, and places for two pointers. What was told is acknowledged at once.
        unsafe {
            if rdma_imports::ibv_get_cq_event(self.channel, &mut cq, &mut name) != 0 {
                return None;
            }
            rdma_imports::ibv_ack_cq_events(cq, 1);
        }
        Some(name as usize as u32)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made in `new`; all that was made of them is gone.
        unsafe {
            rdma_imports::ibv_destroy_comp_channel(self.channel);
            rdma_imports::ibv_dealloc_pd(self.pd);
        }
    }
}
