//! Lists the parts of memfds that pages of this process live in.
//!
//! It exists for `fork()`, whose hooks must find them without allocating; a region whose pages
//! could not be moved back stays on it for ever.
#![expect(unsafe_code)]
// UNSAFETY: an intrusive list, since a collection would allocate under the lock; every access is
// made with crate::move_lock::MOVES held.

use crate::process_identity;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use omniverb_sys::extent::Kind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Where the contents of adopted pages are read when they go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadBackSource {
    /// In the file, of which only the parts that hold data are read.
    File,
    /// Where the program has it mapped: the descriptor is not ours any more.
    Mapping,
}

pub(crate) struct Region {
    pub start: usize,
    pub length: usize,
    /// Where in the file its first page is.
    pub offset: u64,
    /// What that is.
    pub kind: Kind,
    file: ManuallyDrop<OwnedFd>,
    device: (u32, u32),
    inode: u64,
    /// Whose pages they are: a forked child has a copy of this.
    process: u64,
    /// Where a mapping of the library's own begins, or 0: no page of the program's.
    pub own_mapping: AtomicUsize,
    next: Cell<*mut Region>,
}

/// Pages of a region, where they are mapped and where they are in its file.
pub(crate) struct RegionPart {
    pub address: usize,
    pub length: usize,
    pub offset: u64,
}

static FIRST: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

impl Region {
    pub(crate) fn new(
        (start, length): (usize, usize),
        (file, offset): (OwnedFd, u64),
        kind: Kind,
    ) -> Result<Box<Region>, Errno> {
        let status = rustix::fs::fstat(&file)?;
        let device = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
        let next = Cell::new(ptr::null_mut());
        let file = ManuallyDrop::new(file);
        let (inode, process) = (status.st_ino, process_identity::current());
        let own_mapping = AtomicUsize::new(0);
        let region =
            Region { start, length, offset, kind, file, device, inode, process, own_mapping, next };
        Ok(Box::new(region))
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// False if the program closed our descriptor (some close everything they do not know) and
    /// the number, if it is in use, now means another file.
    pub(crate) fn file_is_ours(&self) -> bool {
        rustix::fs::fstat(self.file()).is_ok_and(|status| {
            status.st_ino == self.inode
                && (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev))
                    == self.device
        })
    }

    /// Where its contents are to be read: in the file, as long as we have it. Without it, and where
    /// it is a device, they are read where they are mapped, if they can be read there.
    pub(crate) fn source(&self, mapping: &omniverb_sys::proc_maps::Mapping<'_>) -> ReadBackSource {
        let in_file = self.kind == Kind::File && self.file_is_ours();
        if in_file || !mapping.may_read { ReadBackSource::File } else { ReadBackSource::Mapping }
    }

    /// Takes pages out of the file that are not the program's any more: another process that has
    /// them mapped sees zeros, and pays for them. A file that peers may not write to cannot be
    /// emptied.
    pub(crate) fn empty(&self, offset: u64, length: usize) {
        let is_ours = self.process == process_identity::current() && self.file_is_ours();
        if self.kind == Kind::File && is_ours {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(self.file(), how, offset, length as u64);
        }
    }

    /// What a mapping shows of this region: a mapping may be of several that are neighbours in one
    /// file and in memory, or of other parts of the file.
    pub(crate) fn part_in(
        &self,
        mapping: &omniverb_sys::proc_maps::Mapping<'_>,
    ) -> Option<RegionPart> {
        if mapping.inode != self.inode
            || mapping.device != self.device
            || !mapping.is_shared
            || mapping.start == self.own_mapping.load(Ordering::Relaxed)
        {
            return None;
        }
        let offset = self.offset.max(mapping.offset);
        let mapped_to = mapping.offset.saturating_add((mapping.end - mapping.start) as u64);
        let end = mapped_to.min(self.offset + self.length as u64);
        let length = usize::try_from(end.checked_sub(offset)?).ok().filter(|length| *length > 0)?;
        let address = mapping.start + usize::try_from(offset - mapping.offset).ok()?;
        Some(RegionPart { address, length, offset })
    }

    /// Puts the region on the list. With the lock held.
    pub(crate) fn link(self: Box<Region>) -> NonNull<Region> {
        self.next.set(FIRST.load(Ordering::Relaxed));
        let region = Box::into_raw(self);
        FIRST.store(region, Ordering::Relaxed);
        // SAFETY: from a box.
        unsafe { NonNull::new_unchecked(region) }
    }

    /// Takes the region off the list. With the lock held; `region` must be on the list.
    pub(crate) fn unlink(region: NonNull<Region>) -> Box<Region> {
        // SAFETY: the list holds live boxes; the lock makes us its only user.
        unsafe {
            let after = region.as_ref().next.get();
            let first = FIRST.load(Ordering::Relaxed);
            if first == region.as_ptr() {
                FIRST.store(after, Ordering::Relaxed);
            } else {
                let mut at = first;
                while let Some(node) = at.as_ref() {
                    if node.next.get() == region.as_ptr() {
                        node.next.set(after);
                        break;
                    }
                    at = node.next.get();
                }
            }
            Box::from_raw(region.as_ptr())
        }
    }

    /// The regions that a mapping shows something of. With the lock held.
    pub(crate) fn each_in(
        mapping: &omniverb_sys::proc_maps::Mapping<'_>,
        mut visit: impl FnMut(&Region, RegionPart),
    ) {
        let mut at = FIRST.load(Ordering::Relaxed);
        // SAFETY: the list holds live boxes; with the lock held none is freed.
        while let Some(region) = unsafe { at.as_ref() } {
            if let Some(part) = region.part_in(mapping) {
                visit(region, part);
            }
            at = region.next.get();
        }
    }

    /// True if there is no region. With the lock held.
    pub(crate) fn none() -> bool {
        FIRST.load(Ordering::Relaxed).is_null()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Never close what the program opened under our number.
        if self.file_is_ours() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}
