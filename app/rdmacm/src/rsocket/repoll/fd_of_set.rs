//! The number that a program has for a set. It is the program's to close, and may be given again.

use core::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd};

use omniverb_terms::Errno;
use rustix::fs::fstat;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::errno::of;

/// What it is the number of: a socket that nothing happens to, since of sockets each has an inode
/// of its own.
pub(super) struct SetFd {
    pub(super) number: c_int,
    /// Device and inode.
    file: (u64, u64),
}

impl SetFd {
    /// A new one, with these flags.
    pub(super) fn new(flags: SocketFlags) -> Result<SetFd, Errno> {
        let made = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .and_then(|file| Ok((fstat(&file)?, file)));
        let (status, file) = made.map_err(|error| of(error.raw_os_error()))?;
        Ok(SetFd { number: file.into_raw_fd(), file: (status.st_dev, status.st_ino) })
    }

    /// Whether it was not closed, nor its number given to another file.
    pub(super) fn is_ours(&self) -> bool {
        // SAFETY: the kernel is asked whether there is such a file, and which.
        let file = unsafe { BorrowedFd::borrow_raw(self.number) };
        fstat(file).is_ok_and(|status| (status.st_dev, status.st_ino) == self.file)
    }
}

impl Drop for SetFd {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: our own file. (A program that closes it at this moment closes it twice.)
            unsafe { libc::close(self.number) };
        }
    }
}
