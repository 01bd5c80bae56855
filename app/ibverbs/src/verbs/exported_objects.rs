//! Lets other processes import objects of a context: see `contexts_of_one_cmd_fd.rs`.

use std::sync::Arc;

use omniverb_client::ExportedObjects;
use omniverb_device::Region;
use omniverb_session::device_import_messages;
use omniverb_sys::try_lock;
use omniverb_terms::{Errno, Rkey};

use super::contexts_of_one_cmd_fd::SharedCommandFile;
use super::importable_objects::MemoryOf;
use super::memory_region;

impl ExportedObjects for SharedCommandFile {
    fn has_domain(&self, handle: u32) -> bool {
        self.domains.get(handle).is_some()
    }

    fn region(&self, handle: u32) -> Result<(Arc<Region>, Rkey), Errno> {
        let of = self.regions.get(handle).ok_or(Errno::ENOENT)?;
        // A thread that destroys it waits for those that move pages, and this one moves some.
        let state = try_lock(&of.state).ok_or(Errno::EAGAIN)?;
        if matches!(of.of, MemoryOf::Nobody) || state.region.extras.looks.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok((state.region.clone(), state.rkey))
    }

    fn device_memory(&self, handle: u32) -> Option<(usize, usize)> {
        let of = self.device_memory.get(handle)?;
        Some((of.memory as usize, of.length))
    }

    fn destroy(&self, object: u32, handle: u32) -> Result<(), Errno> {
        match object {
            device_import_messages::DOMAIN => self.deallocate(handle),
            device_import_messages::REGION => {
                let client = self.client().ok_or(Errno::ENOENT)?;
                let of = self.regions.get(handle).ok_or(Errno::ENOENT)?;
                // SAFETY: it is in the table, so its PD is live.
                unsafe { memory_region::deregister(self, &client, &of) }
            }
            device_import_messages::DEVICE_MEMORY => self.free_device_memory(handle),
            _ => Err(Errno::EINVAL),
        }
    }
}
