//! Copies to regions on a peer's behalf: by a region's own mapping, or by the host, which has the
//! kernel make them. What a peer may read has no such mapping: it can map those pages itself.

use crate::library_mapping_of_region::OwnMapping;
use crate::memory_region::Region;
use crate::platform::Host;
use omniverb_ring::UserMemory;

impl Region {
    /// The one whose pages it is on: its own, or that of the region that it is a window on.
    #[inline(always)]
    pub(crate) fn own_mapping(&self) -> &OwnMapping {
        self.extras.part_of.as_ref().map_or(&self.own, |region| &region.own)
    }

    /// Notes a copy that the kernel makes, of so many bytes.
    #[inline]
    pub(crate) fn note_kernel_copy(&self, host: &dyn Host, bytes: usize) {
        let region = self.extras.part_of.as_deref().unwrap_or(self);
        if region.own.note(region.memory.len(), bytes) {
            host.own_pages(region.rkey);
        }
    }

    /// Copies what a peer writes to memory of the region. False: some of it may not be written.
    #[inline]
    pub(crate) fn place(&self, host: &dyn Host, ours: UserMemory, program: UserMemory) -> bool {
        self.own_mapping().place(ours, program) || {
            self.note_kernel_copy(host, program.len());
            host.place(ours, program)
        }
    }
}
