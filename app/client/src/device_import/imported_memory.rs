//! What a process has of another's objects: their memory, mapped here, and a region on it.

use super::connection_to_exporter::{EndsWithExporter, ExporterConnection};
use omniverb_device::memory_region::NO_RKEY;
use omniverb_device::{Region, RegionKind, access};
use omniverb_ring::Window;
use omniverb_session::device_import_messages::{self, Notice};
use omniverb_sys::{Access, clock};
use omniverb_terms::{Errno, Lkey, Rkey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rights of a region that mean something here.
const RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE | access::MW_BIND;

/// A region of another process's that is part of this one's device: our requests name it by a key
/// of ours, peers by the key that it has there.
pub struct ImportedRegion {
    region: Arc<Region>,
    /// What peers name it by, or what looks like that.
    pub rkey: Rkey,
    /// What the other process calls it.
    pub handle: u32,
    line: Arc<ExporterConnection>,
    ended: AtomicBool,
    /// Lives as long as a thread may use the region.
    _memory: Window,
}

/// Device memory of another process's.
pub struct ImportedMemory {
    /// Bytes of it.
    pub length: usize,
    /// What the other process calls it.
    pub handle: u32,
    begin: usize,
    line: Arc<ExporterConnection>,
    memory: Window,
}

/// Bytes of the pages that an object is said to lie in. `None`: there are no such.
pub(crate) fn pages_of(answer: &Notice) -> Option<usize> {
    let page = clock::page_bytes();
    let (begin, length) =
        (usize::try_from(answer.begin).ok()?, usize::try_from(answer.length).ok()?);
    if begin >= page || length == 0 {
        return None;
    }
    begin.checked_add(length)?.checked_next_multiple_of(page)
}

/// Where a window begins, in this process, for access by its address.
fn address(window: &Window, begin: usize) -> usize {
    window.cell(0).map_or(0, |cell| cell.address()) + begin
}

impl ImportedRegion {
    /// What its memory is to be mapped for.
    pub(crate) fn mapped_for(answer: &Notice) -> Access {
        match answer.access & access::LOCAL_WRITE {
            0 => Access::ReadOnly,
            _ => Access::ReadWrite,
        }
    }

    /// Makes it part of the device. The window is as long as [`pages_of`] says.
    pub(crate) fn new(
        line: Arc<ExporterConnection>,
        answer: &Notice,
        window: Window,
        pd: u32,
    ) -> Result<Arc<ImportedRegion>, Errno> {
        let device = line.device.upgrade().ok_or(Errno::EIO)?;
        let regions = &device.shared().regions;
        let mut access = answer.access & RIGHTS;
        // Peers write, and the mapping must bear that.
        if access & access::LOCAL_WRITE == 0 {
            access &= access::REMOTE_READ;
        }
        let rkey = if access & access::REMOTE == 0 { NO_RKEY } else { answer.rkey };
        // As with regions of its own, if nothing else has the number.
        let lkey = match Lkey(answer.rkey.0) {
            lkey if lkey != Lkey(0) && regions.get(lkey).is_none() => lkey,
            _ => regions.new_lkey(),
        };
        let at = address(&window, answer.begin as usize);
        let region = Arc::new(Region {
            lkey,
            rkey,
            pd,
            access,
            iova: answer.iova,
            memory: crate::user_memory_constructors::mapped(&window, at, answer.length as usize)
                .ok_or(Errno::EPROTO)?,
            moved: Default::default(),
            own: Default::default(),
            extras: RegionKind::default(),
        });
        regions.insert(region.clone());
        drop(device);
        let (rkey, handle, ended) = (answer.rkey, answer.handle, AtomicBool::new(false));
        Ok(Arc::new(ImportedRegion { region, rkey, handle, line, ended, _memory: window }))
    }

    /// The region as this process has it: with a key of its own, on pages of the owner's.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Makes an end of it in this process.
    pub fn end_here(&self) {
        self.end();
    }

    /// Whether it is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl EndsWithExporter for ImportedRegion {
    fn end(&self) {
        let Some(device) = self.line.device.upgrade().filter(|device| device.is_ours()) else {
            return;
        };
        let regions = &device.shared().regions;
        let is_first = !self.ended.swap(true, Ordering::AcqRel);
        // A removal waits for all uses. Another thread may be in the middle of one.
        if !is_first || regions.remove(self.region.lkey).is_none() {
            regions.finish_access();
        }
    }
}

impl Drop for ImportedRegion {
    fn drop(&mut self) {
        // What the other process has ended it does not count as ours.
        if !self.has_ended() {
            self.end();
            self.line.leave(device_import_messages::REGION, self.handle);
        }
    }
}

impl ImportedMemory {
    pub(crate) fn new(
        line: Arc<ExporterConnection>,
        answer: &Notice,
        memory: Window,
    ) -> ImportedMemory {
        let (begin, length) = (answer.begin as usize, answer.length as usize);
        ImportedMemory { length, handle: answer.handle, begin, line, memory }
    }

    /// Where it is in this process.
    pub fn address(&self) -> usize {
        address(&self.memory, self.begin)
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        self.line.leave(device_import_messages::DEVICE_MEMORY, self.handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_object_can_be_is_none() {
        let pages = |begin, length| pages_of(&Notice { begin, length, ..Notice::NONE });
        assert_eq!(pages(0, 1), Some(4096));
        assert_eq!(pages(4095, 2), Some(8192));
        let nonsense = [(0, 0), (4096, 1), (u64::MAX, 1), (0, u64::MAX), (1, u64::MAX)];
        for (begin, length) in nonsense {
            assert_eq!(pages(begin, length), None, "{begin} {length}");
        }
    }
}
