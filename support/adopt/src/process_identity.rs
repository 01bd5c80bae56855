//! Tells a process from its parents and children, also when libc does not know of the fork.
//!
//! With [`crate::move_lock::MOVES`] held, all of it.
#![expect(unsafe_code)]
// UNSAFETY: maps a page of this module's own.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A page that holds zeros in a child, however that was made; 0: there is none.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The number that was given out last, among those forked one from another.
static LAST: AtomicU64 = AtomicU64::new(0);

fn number<'a>() -> Option<&'a AtomicU64> {
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: the page stays mapped; every bit pattern is a number.
    unsafe { core::ptr::with_exposed_provenance::<AtomicU64>(page).as_ref() }
}

/// The number of this process; 0 if it has adopted nothing yet.
pub(crate) fn current() -> u64 {
    number().map_or(0, |number| number.load(Ordering::Relaxed))
}

/// Gives this process a number, if it has none.
///
/// # Errors
/// What the kernel says: there is no room for a page.
pub(crate) fn prepare() -> Result<(), Errno> {
    if PAGE.load(Ordering::Relaxed) == 0 {
        let (length, protection) =
            (omniverb_sys::clock::page_bytes(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address the kernel chooses.
        unsafe {
            let page =
                mmap_anonymous(core::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?;
            if let Err(errno) = madvise(page, length, Advice::LinuxWipeOnFork) {
                let _ = munmap(page, length);
                return Err(errno);
            }
            PAGE.store(page.expose_provenance(), Ordering::Relaxed);
        }
    }
    if current() == 0 {
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        number().into_iter().for_each(|number| number.store(next, Ordering::Relaxed));
    }
    Ok(())
}
