//! Fills fresh private pages by `UFFDIO_COPY`: the kernel copies into pages that it has not zeroed
//! before, which takes half the time of a page fault and a `pread`.
//!
//! The form of userfaultfd that concerns only faults in user mode does, which every user may open
//! (Linux 5.11) unless a filter of system calls forbids it. Where it is not to be had the caller
//! copies otherwise.
#![expect(unsafe_code)]
// UNSAFETY: userfaultfd ioctls on pages that the caller vouches for.

use crate::userfaultfd_abi::{
    GROUP, REGISTER_MODE_MISSING, Range, above_standard_streams, enable, register, unregister,
};
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    /// Bytes that were copied, or an error.
    copied: i64,
}

const COPY_MODE_DONT_WAKE: u64 = 1 << 0;

const IOC_COPY: u32 = opcode::read_write::<Copy>(GROUP, 0x03);

/// A userfaultfd cannot be had here: it is not asked for again.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// A userfaultfd for one release. Dropping it ends what it has registered.
pub(crate) struct PageFiller(OwnedFd);

impl PageFiller {
    /// None: the kernel has none for us.
    pub(crate) fn open() -> Option<PageFiller> {
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        if IS_REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the descriptor stays inside this module.
        let file = match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY) } {
            Ok(file) => file,
            // No descriptor is left, or no memory: another time there may be.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return None,
            Err(_) => {
                IS_REFUSED.store(true, Ordering::Relaxed);
                return None;
            }
        };
        let file = above_standard_streams(file)?;
        enable(&file, 0).then_some(PageFiller(file))
    }

    /// Copies pages to as many at `to`, which are private, were never touched, and are known to
    /// this thread only. False: not all were copied; they can be written by other means.
    ///
    /// # Errors
    /// The pages at `to` must not be touched before this is dropped.
    pub(crate) fn fill(&self, to: usize, from: usize, length: usize) -> Result<bool, Errno> {
        let range = Range { start: to as u64, length: length as u64 };
        if register(&self.0, range, REGISTER_MODE_MISSING).is_err() {
            return Ok(false);
        }
        let is_filled = self.copy(range, from as u64);
        unregister(&self.0, range)?;
        Ok(is_filled)
    }

    fn copy(&self, to: Range, from: u64) -> bool {
        let mut done = 0;
        while done < to.length {
            let (start, length) = (to.start + done, to.length - done);
            let mode = COPY_MODE_DONT_WAKE;
            let mut copy = Copy { to: start, from: from + done, length, mode, copied: 0 };
            // SAFETY: the kernel makes pages where there are none, and reads where it may.
            let outcome = unsafe { ioctl(&self.0, Updater::<IOC_COPY, Copy>::new(&mut copy)) };
            match (outcome, u64::try_from(copy.copied)) {
                (Ok(()), Ok(copied)) if copied > 0 => done += copied,
                // The mappings were changed by another thread, or the copy ended early.
                (Err(Errno::AGAIN), copied) => done += copied.unwrap_or(0),
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    const PAGE: usize = 4096;

    fn pages(count: usize) -> usize {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: memory of our own.
        let at = unsafe {
            mmap_anonymous(core::ptr::null_mut(), count * PAGE, both, MapFlags::PRIVATE).unwrap()
        };
        at.expose_provenance()
    }

    fn bytes<'a>(at: usize, length: usize) -> &'a mut [u8] {
        // SAFETY: memory of this test's.
        unsafe {
            core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(at), length)
        }
    }

    #[test]
    fn pages_are_filled_or_left_to_be_written() {
        // Where no such descriptor is to be had there is nothing to be seen.
        let Some(filler) = PageFiller::open() else { return };
        let (from, to) = (pages(4), pages(4));
        bytes(from, 4 * PAGE).fill(9);
        assert_eq!(filler.fill(to, from, 3 * PAGE), Ok(true));
        assert!(bytes(to, 3 * PAGE).iter().all(|byte| *byte == 9));
        assert!(bytes(to + 3 * PAGE, PAGE).iter().all(|byte| *byte == 0));
        // Pages that are there already are not replaced, and unreadable ones are not copied.
        bytes(from, PAGE).fill(8);
        assert_eq!(filler.fill(to, from, PAGE), Ok(false));
        assert!(bytes(to, PAGE).iter().all(|byte| *byte == 9));
        let fresh = pages(2);
        let second = core::ptr::with_exposed_provenance_mut(from + PAGE);
        // SAFETY: memory of this test's.
        unsafe { mprotect(second, PAGE, MprotectFlags::empty()).unwrap() };
        assert_eq!(filler.fill(fresh, from, 2 * PAGE), Ok(false));
        // What was left can be written.
        bytes(fresh, 2 * PAGE).fill(1);
        drop(filler);
        for at in [from, to, fresh] {
            let length = if at == fresh { 2 } else { 4 } * PAGE;
            // SAFETY: memory of this test's.
            unsafe { munmap(core::ptr::with_exposed_provenance_mut(at), length).unwrap() };
        }
    }
}
