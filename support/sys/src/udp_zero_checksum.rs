//! Lets UDP sockets send and receive without a checksum over IPv6, as RoCE v2 needs.
//!
//! The kernel drops such datagrams unless a socket says otherwise.
#![expect(unsafe_code)]
// UNSAFETY: a socket option that rustix does not offer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `UDP_NO_CHECK6_RX` (Linux 3.16).
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Datagrams without a checksum are received too.
pub(crate) fn allow_zero_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, UDP_NO_CHECK6_RX)
}

fn set(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<()> {
    let value: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `value`, which has that many.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_UDP,
            name,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use crate::udp_socket::UdpPort;
    use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
    use std::net::{Ipv6Addr, SocketAddrV6};
    use std::os::fd::AsFd;
    use std::time::Duration;

    /// `UDP_NO_CHECK6_TX`.
    const UDP_NO_CHECK6_TX: libc::c_int = 101;

    #[test]
    fn a_datagram_without_a_checksum_arrives() {
        let sender = socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
        super::set(sender.as_fd(), UDP_NO_CHECK6_TX).unwrap();
        let free = |number| Some((number, UdpPort::open(number).ok()?));
        let (number, port) = (41_000..42_000).find_map(free).unwrap();
        let home = SocketAddrV6::new(Ipv6Addr::LOCALHOST, number, 0, 0);
        sendto(&sender, b"hello", SendFlags::empty(), &home).unwrap();
        let socket = port.sockets().last().unwrap();
        assert!(crate::eventfd::readable(socket, Some(Duration::from_millis(500))).unwrap());
        let mut buffer = [0; 8];
        assert_eq!(port.receive(&mut buffer), Some(5));
    }
}
