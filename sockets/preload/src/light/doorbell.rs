//! Rings the descriptors by which one process or thread wakes another.

use std::os::fd::BorrowedFd;

use rustix::net::{SendFlags, send};

use crate::borrowed_fd::borrow;
use crate::library_fds;

/// The descriptor of a place, for a caller that knows that it stays there meanwhile: for good, or
/// for as long as its channel.
#[inline]
pub(super) fn at(place: usize) -> Option<BorrowedFd<'static>> {
    let fd = library_fds::fd(place)?;
    Some(borrow(fd))
}

/// Wakes the process at the other end of a pair of sockets.
pub(super) fn ring(place: usize) {
    if let Some(bell) = at(place) {
        _ = send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
