//! Selects the interface by which a socket sends, whatever the routes say.
// UNSAFETY: socket options that rustix does not offer.
#![expect(unsafe_code)]

use rustix::net::AddressFamily;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What it sends leaves by this interface (`IP_UNICAST_IF`, `IPV6_UNICAST_IF`). That needs no
/// privilege.
pub(crate) fn set_interface(
    socket: BorrowedFd<'_>,
    family: AddressFamily,
    index: u32,
) -> io::Result<()> {
    let (level, name) = match family {
        AddressFamily::INET6 => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
        _ => (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
    };
    // Both in network byte order.
    let value = index.to_be();
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which has that many.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
