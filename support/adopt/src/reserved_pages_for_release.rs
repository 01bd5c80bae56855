//! Reserves private pages for contents on their way back to the program.
//!
//! Ending a right must not fail for want of what the program limits itself, so what a release needs
//! is reserved by the first adoption: a few MiB of address space, without pages. A release fills
//! some of it and moves it to where the contents belong. That takes no new address space, locked
//! or not: what goes in exchange is as large. What is left, one page at least, then grows again.
//! Growing keeps the flags of the mapping: `mlockall(MCL_FUTURE)` concerns new ones only.
//!
//! With [`crate::move_lock::MOVES`] held, all of it. A forked child has a reserve of its own, as
//! empty.
#![expect(unsafe_code)]
// UNSAFETY: maps, grows and empties memory of this module's own.

use crate::stretch_move::{PAGE_BYTES, STRETCH_BYTES_MAX};
use core::cell::UnsafeCell;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap, munmap,
};

/// What stays when all else was moved: a mapping that can grow.
const SEED_BYTES: usize = PAGE_BYTES;
const BYTES: usize = STRETCH_BYTES_MAX + SEED_BYTES;
/// Budget: mappings that are given up when the process has as many as it may. To replace part of
/// one takes up to four more for a moment.
const SPARE_MAPPINGS: usize = 8;

struct AddressReserve {
    address: usize,
    length: usize,
    /// Where the spare mappings are; 0: there are none.
    spare: usize,
}

struct ReserveCell(UnsafeCell<AddressReserve>);

// SAFETY: used only with MOVES held.
unsafe impl Sync for ReserveCell {}

static RESERVE: ReserveCell =
    ReserveCell(UnsafeCell::new(AddressReserve { address: 0, length: 0, spare: 0 }));

fn reserve<'a>() -> &'a mut AddressReserve {
    // SAFETY: MOVES is held by the caller, and no reference outlives a function of this module.
    unsafe { &mut *RESERVE.0.get() }
}

fn at(address: usize) -> *mut core::ffi::c_void {
    core::ptr::with_exposed_provenance_mut(address)
}

/// Makes sure that there is a reserve, before the first page moves.
///
/// # Errors
/// What the kernel says: the process has no room for it.
pub(crate) fn prepare() -> Result<(), Errno> {
    let reserve = reserve();
    reserve.make()?;
    if reserve.spare == 0 {
        reserve.spare = spare_mappings()?;
    }
    Ok(())
}

/// Pages with another protection each, so that the kernel does not make one mapping of them.
fn spare_mappings() -> Result<usize, Errno> {
    let length = SPARE_MAPPINGS * PAGE_BYTES;
    // SAFETY: a new mapping at an address the kernel chooses, and pages of it.
    unsafe {
        let made = mmap_anonymous(
            core::ptr::null_mut(),
            length,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?;
        // The last one can be read: what lies behind an inaccessible page looks like a stack.
        for page in (1..SPARE_MAPPINGS).step_by(2) {
            let page = made.wrapping_byte_add(page * PAGE_BYTES);
            // Fewer spare ones otherwise.
            let _ = mprotect(page, PAGE_BYTES, MprotectFlags::READ);
        }
        Ok(made.expose_provenance())
    }
}

/// The process has as many mappings as it may: gives up the spare ones. False: there were none.
pub(crate) fn give_up_spare() -> bool {
    let spare = core::mem::take(&mut reserve().spare);
    // SAFETY: mapped by `spare_mappings`, known only here.
    spare != 0 && unsafe { munmap(at(spare), SPARE_MAPPINGS * PAGE_BYTES) }.is_ok()
}

/// Empty pages for so many bytes, or for less, if there is no room for more: where, and how many
/// bytes of them.
///
/// # Errors
/// What the kernel says: there is no room for a single page.
pub(crate) fn pages(wanted: usize) -> Result<(usize, usize), Errno> {
    let reserve = reserve();
    reserve.make()?;
    let mut grown = BYTES.max(wanted + SEED_BYTES);
    let mut outcome = Ok(());
    while reserve.length < grown {
        outcome = reserve.grow(grown);
        if outcome.is_err() {
            grown = SEED_BYTES + (grown - SEED_BYTES) / 2 / PAGE_BYTES * PAGE_BYTES;
        }
    }
    let length = wanted.min(reserve.length - SEED_BYTES);
    if length == 0 {
        Err(outcome.err().unwrap_or(Errno::NOMEM))
    } else {
        Ok((reserve.address, length))
    }
}

impl AddressReserve {
    fn make(&mut self) -> Result<(), Errno> {
        if self.length == 0 {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address the kernel chooses.
            let made = unsafe {
                mmap_anonymous(core::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE)?
            };
            (self.address, self.length) = (made.expose_provenance(), BYTES);
        }
        Ok(())
    }

    fn grow(&mut self, to: usize) -> Result<(), Errno> {
        // SAFETY: a mapping of this module's, known only here.
        let grown = unsafe { mremap(at(self.address), self.length, to, MremapFlags::MAYMOVE) }?;
        (self.address, self.length) = (grown.expose_provenance(), to);
        Ok(())
    }
}

/// The first `length` bytes were moved elsewhere.
pub(crate) fn moved(length: usize) {
    let reserve = reserve();
    reserve.address += length;
    reserve.length -= length;
}

/// What was put on the pages is not to stay there.
pub(crate) fn empty() {
    const DONTNEED_LOCKED: i32 = 24;
    const GUARD_REMOVE: i32 = 103;
    let AddressReserve { address, length, .. } = *reserve();
    // SAFETY: pages of this module's.
    unsafe {
        let _ = mprotect(at(address), length, MprotectFlags::READ | MprotectFlags::WRITE);
        // An error where the kernel knows of no guard pages, and has made none.
        let _ = libc::madvise(at(address), length, GUARD_REMOVE);
        if madvise(at(address), length, Advice::LinuxDontNeed).is_ok()
            || libc::madvise(at(address), length, DONTNEED_LOCKED) == 0
        {
            return;
        }
        at(address).cast::<u8>().write_bytes(0, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::move_lock::MOVES;

    #[test]
    fn a_moved_range_becomes_empty_private_memory() {
        let _lock = MOVES.guard();
        for _ in 0..3 {
            let (address, length) = pages(STRETCH_BYTES_MAX).unwrap();
            assert_eq!(length, STRETCH_BYTES_MAX);
            // SAFETY: pages of the reserve, which the lock makes this thread's; they are unmapped
            // as if they had been moved.
            unsafe {
                let bytes = core::slice::from_raw_parts_mut(at(address).cast::<u8>(), length);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(7);
                munmap(at(address), length).unwrap();
            }
            moved(length);
        }
        let (address, length) = pages(PAGE_BYTES).unwrap();
        // SAFETY: as above.
        unsafe { at(address).cast::<u8>().write(7) };
        empty();
        // SAFETY: as above.
        assert_eq!((unsafe { at(address).cast::<u8>().read() }, length), (0, PAGE_BYTES));
        for _ in 0..2 {
            prepare().unwrap();
            assert!(give_up_spare() && !give_up_spare());
        }
    }
}
