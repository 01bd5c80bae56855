//! UDP sockets of carried connections, which a forked child closes.
//!
//! A child that kept one would keep its port after this process has ended, and read its packets.
#![expect(unsafe_code)]
// UNSAFETY: closes descriptors by their numbers, in a child whose objects are all the parent's.

use omniverb_session::limits::GIDS_MAX;
use omniverb_sys::datagram_trains::TrainSocket;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Budget: sockets of carried connections: one for each address that the vNIC may have.
pub(super) const SOCKETS_MAX: usize = 32;
const _: () = assert!(SOCKETS_MAX >= GIDS_MAX);
const CLOSED: RawFd = -1;

/// Those that are open. A child that has one thread, at any step of another's, reads it safely.
static OPEN: [AtomicI32; SOCKETS_MAX] = [const { AtomicI32::new(CLOSED) }; SOCKETS_MAX];

/// A socket with a port that the kernel gave, at an address of this process's network namespace.
pub(super) struct CarriedSocket {
    socket: TrainSocket,
    entry: usize,
}

impl CarriedSocket {
    /// Opens one.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`, `EMFILE` and the like; `EMFILE` as well if there are as many as there may
    /// be addresses.
    pub(super) fn open(local: IpAddr) -> io::Result<CarriedSocket> {
        let socket = TrainSocket::open(local, 0)?;
        let number = socket.as_fd().as_raw_fd();
        let take = |entry: &AtomicI32| {
            entry.compare_exchange(CLOSED, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let free = OPEN.iter().position(take);
        let entry = free.ok_or(io::Error::from(rustix::io::Errno::MFILE))?;
        Ok(CarriedSocket { socket, entry })
    }
}

impl std::ops::Deref for CarriedSocket {
    type Target = TrainSocket;

    fn deref(&self) -> &TrainSocket {
        &self.socket
    }
}

impl Drop for CarriedSocket {
    fn drop(&mut self) {
        OPEN[self.entry].store(CLOSED, Ordering::Relaxed);
    }
}

/// Closes all of them in a child that was just forked: they are the parent's.
pub(crate) fn close_in_child() {
    for entry in &OPEN {
        let number = entry.swap(CLOSED, Ordering::Relaxed);
        if number != CLOSED {
            // SAFETY: the child has a copy of the descriptor, and no code of ours uses it: all of
            // the parent's objects are foreign to it, and its copies of them are never dropped.
            unsafe { rustix::io::close(number) };
        }
    }
}
