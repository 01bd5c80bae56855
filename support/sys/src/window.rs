//! Mappings as the ring code sees them.
#![expect(unsafe_code)]
// UNSAFETY: vouches to the ring code that a mapping lives as long as its window.

use crate::mapping::{Access, Mapping};
use omniverb_ring::Window;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maps the first `length` bytes of a verified memfd, not to be inherited by forked children. The
/// mapping lives as long as the window, or any part of it.
///
/// # Errors
/// What the kernel says.
pub fn map(file: BorrowedFd<'_>, length: usize, access: Access) -> io::Result<Window> {
    let mapping = Arc::new(Mapping::shared(file, 0, length, access)?);
    let base = mapping.as_ptr();
    // SAFETY: the range is this fresh mapping; not inheriting it changes nothing in this process.
    // If it fails, a child merely keeps a mapping it must not use.
    let _ = unsafe {
        rustix::mm::madvise(base.as_ptr().cast(), length, rustix::mm::Advice::LinuxDontFork)
    };
    // SAFETY: mapped for `length` bytes as long as `mapping`, the owner, lives; page-aligned.
    // A read-only mapping is the caller's to write nothing through.
    Ok(unsafe { Window::new(base, length, mapping) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_ring::WordMemory;
    use omniverb_ring::sync::Ordering;
    use std::os::fd::AsFd;

    #[test]
    fn windows_on_one_file_share_and_outlive_their_whole() {
        let file = crate::memfd::create("test", 8192).unwrap();
        let writer = map(file.as_fd(), 8192, Access::ReadWrite).unwrap().part(4096, 8).unwrap();
        let reader = map(file.as_fd(), 8192, Access::ReadOnly).unwrap();
        drop(file);
        writer.store(0, 42, Ordering::Relaxed);
        assert_eq!(reader.load(4096, Ordering::Relaxed), 42);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        let file = crate::memfd::create("test", 4096).unwrap();
        assert!(map(file.as_fd(), 0, Access::ReadOnly).is_err());
    }
}
