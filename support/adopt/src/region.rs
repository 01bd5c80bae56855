//! The list of all memfds that pages of this process live on. It exists for `fork()`, whose hooks
//! must find them without allocating; a region whose pages could not be moved back stays on it for
//! ever.
#![expect(unsafe_code)]
// UNSAFETY: an intrusive list, since a collection would allocate under the lock; every access is
// made with crate::lock::MOVES held.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

pub(crate) struct Region {
    pub start: usize,
    pub length: usize,
    file: ManuallyDrop<OwnedFd>,
    device: (u32, u32),
    inode: u64,
    next: Cell<*mut Region>,
}

static FIRST: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

impl Region {
    pub(crate) fn new(start: usize, length: usize, file: OwnedFd) -> Result<Box<Region>, Errno> {
        let status = rustix::fs::fstat(&file)?;
        let device = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
        let next = Cell::new(ptr::null_mut());
        let file = ManuallyDrop::new(file);
        Ok(Box::new(Region { start, length, file, device, inode: status.st_ino, next }))
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

    /// True if a mapping is of this region's file.
    pub(crate) fn is_behind(&self, mapping: &crate::maps::Mapping<'_>) -> bool {
        mapping.inode == self.inode && mapping.device == self.device && mapping.shared
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

    /// The region a mapping belongs to. With the lock held.
    pub(crate) fn find(mapping: &crate::maps::Mapping<'_>) -> Option<&'static Region> {
        let mut at = FIRST.load(Ordering::Relaxed);
        // SAFETY: the list holds live boxes; with the lock held nobody frees one.
        while let Some(region) = unsafe { at.as_ref() } {
            if region.is_behind(mapping) {
                return Some(region);
            }
            at = region.next.get();
        }
        None
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
