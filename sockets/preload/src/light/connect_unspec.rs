//! Undoes a light connection (`connect` with `AF_UNSPEC`): its descriptor is for a new socket of
//! the kernel's, with the same options, and the other end is reset.

use core::ffi::c_int;
use std::os::fd::AsRawFd;

use omniverb_connection::descriptors::Kind;
use omniverb_connection::light::connection_slot::Flag;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::bind;

use super::descriptors::{self, Token};
use super::socket_addresses::{self, Family};
use super::state::with;
use crate::descriptor_tables::DESCRIPTORS;
use crate::errno::fails;
use crate::kernel_socket;
use crate::next_library;

/// See the head of the file. One that has several descriptors, or is in a set, stays what it is.
pub(super) fn disconnect(fd: c_int, token: Token) -> c_int {
    let cloexec = if kernel_socket::is_close_on_exec(fd) { libc::O_CLOEXEC } else { 0 };
    let done = with(|state| {
        let at = state.slot(token).ok_or(libc::EBADF)?;
        let slot = state.slots.at(at);
        if slot.fd_count != 1 || slot.set != 0 {
            return Err(libc::EAFNOSUPPORT);
        }
        let does_not_wait = slot.has(Flag::NonBlocking);
        let (bound, family) = (slot.naming.chosen(slot.names.from), Family::of(slot));
        let socket = state.fresh_socket(at)?;
        // As the kernel, which keeps an address and a port that were chosen. Meanwhile they were
        // free: if another socket has them now, this one has none.
        if let Some(name) = bound {
            _ = bind(&socket, &socket_addresses::to_std(&name, family));
        }
        let how = if does_not_wait { OFlags::RDWR | OFlags::NONBLOCK } else { OFlags::RDWR };
        _ = fcntl_setfl(&socket, how);
        if next_library::dup3(socket.as_raw_fd(), fd, cloexec) != fd {
            return Err(libc::EAFNOSUPPORT);
        }
        descriptors::put(fd, None);
        let slot = state.slots.at(at);
        (slot.fd_count, slot.is_abrupt) = (0, true);
        state.close(at);
        DESCRIPTORS.put(fd, Kind::Fresh);
        Ok(())
    });
    if let Some(Err(error)) = done {
        return fails(error);
    }
    done.map_or_else(
        || fails(libc::EAGAIN),
        |_| {
            super::supported_socket_options::was_set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR);
            0
        },
    )
}
