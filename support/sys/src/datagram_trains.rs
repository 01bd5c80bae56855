//! Sends and receives trains of equal datagrams by one UDP socket, one system call each.
//!
//! In: an address of the calling thread's network namespace. Out: a socket that needs no privilege;
//! the kernel cuts trains apart (GSO) and merges what arrives (GRO), where it can.
#![expect(unsafe_code)]
// UNSAFETY: ancillary data of UDP (segment sizes, IP_TOS), which rustix does not offer; and the
// C library's calls may be hooked in the processes that this is loaded into.

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Budget: bytes of datagrams that may wait to be read, if the system allows any program so many.
const RECEIVE_BYTES: usize = 4 << 20;
/// Bytes of datagrams that may wait to be sent.
const SEND_BYTES: usize = 4 << 20;
/// `UDP_SEGMENT` (Linux 4.18).
const UDP_SEGMENT: libc::c_int = 103;
/// `UDP_GRO` (Linux 5.0).
const UDP_GRO: libc::c_int = 104;
/// Explicit congestion notification: the bits that say that marks are understood.
const ECN_CAPABLE: libc::c_int = 2;

/// Room for what comes beside datagrams: a segment size, and the bits of congestion.
#[repr(align(8))]
struct Ancillary([u8; 128]);

/// Datagrams that were received together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in all.
    pub length: usize,
    /// Bytes of each datagram but the last, which may be shorter.
    pub stride: usize,
    /// Where they came from.
    pub from: SocketAddr,
    /// The two bits of the IP header that tell of congestion.
    pub ecn: u8,
}

/// A socket with a port of its own.
#[derive(Debug)]
pub struct TrainSocket {
    file: OwnedFd,
    local: SocketAddr,
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> bool {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `value`, which has that many.
    let result = unsafe {
        let file = socket.as_raw_fd();
        libc::syscall(libc::SYS_setsockopt, file, level, name, &raw const value, length)
    };
    result == 0
}

impl TrainSocket {
    /// One at this address, which the calling thread's network namespace has, with a port that the
    /// kernel gives. `interface`: of a link-local address.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`, `EMFILE` and the like.
    pub fn open(local: IpAddr, interface: u32) -> io::Result<TrainSocket> {
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let file = socket_with(family, SocketType::DGRAM, flags, None)?;
        // As much as the system allows; less is no error.
        let _ = sockopt::set_socket_recv_buffer_size(&file, RECEIVE_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&file, SEND_BYTES);
        let (level, tos, receive_tos) = match local {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_RECVTOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_RECVTCLASS),
        };
        // Without them nothing is marked, merged or cut, which is slower only.
        set(file.as_fd(), level, tos, ECN_CAPABLE);
        set(file.as_fd(), level, receive_tos, 1);
        set(file.as_fd(), libc::IPPROTO_UDP, UDP_GRO, 1);
        match local {
            IpAddr::V4(ip) => bind(&file, &SocketAddrV4::new(ip, 0))?,
            IpAddr::V6(ip) => bind(&file, &SocketAddrV6::new(ip, 0, 0, interface))?,
        }
        let local = SocketAddr::try_from(getsockname(&file)?)?;
        Ok(TrainSocket { file, local })
    }

    /// Its address and port.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends datagrams of `segment` bytes each, the last of which may be shorter.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; what else a network says. Nothing was sent.
    pub fn send(&self, train: &[u8], segment: usize, to: &SocketAddr) -> io::Result<()> {
        let (mut name, name_length) = name_of(to);
        let mut piece =
            libc::iovec { iov_base: train.as_ptr().cast_mut().cast(), iov_len: train.len() };
        let mut beside = Ancillary([0; 128]);
        // SAFETY: a message header is plain memory, and all zeros is an empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = name_length;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if train.len() > segment {
            let size = u16::try_from(segment).map_err(|_| io::ErrorKind::InvalidInput)?;
            message.msg_control = beside.0.as_mut_ptr().cast();
            // SAFETY: the macros compute sizes from a number.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as _;
            // SAFETY: the control buffer is aligned, and has room for one header and two bytes.
            unsafe {
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                (*head).cmsg_level = libc::IPPROTO_UDP;
                (*head).cmsg_type = UDP_SEGMENT;
                (*head).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(head).cast::<u16>().write_unaligned(size);
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: everything that the header points to lives until the call returns; the kernel
        // reads no more of it than the lengths say, and writes none of it.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmsg, self.file.as_raw_fd(), &raw const message, flags)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives what has come of one sender, up to the size of the buffer, if anything has.
    ///
    /// # Errors
    /// `ECONNREFUSED` and the like, of what was sent before.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        // SAFETY: an address is plain memory, and all zeros is one of no family.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut beside = Ancillary([0; 128]);
        // SAFETY: a message header is plain memory, and all zeros is an empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of_val(&name) as libc::socklen_t;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = beside.0.len() as _;
        // SAFETY: everything that the header points to lives until the call returns, and the kernel
        // writes no more of it than the lengths say.
        let length = unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                self.file.as_raw_fd(),
                &raw mut message,
                libc::MSG_DONTWAIT,
            )
        };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        };
        let Some(from) = address_of(&name) else { return Ok(None) };
        let mut received = Received { length, stride: length.max(1), from, ecn: 0 };
        // SAFETY: the kernel has written whole headers up to `msg_controllen`, which the macros go
        // through; each has the data that is read of it, since the kernel made it.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(found) = head.as_ref() {
                let data = libc::CMSG_DATA(head);
                match (found.cmsg_level, found.cmsg_type) {
                    (libc::IPPROTO_UDP, UDP_GRO) => {
                        let stride = data.cast::<libc::c_int>().read_unaligned();
                        received.stride = usize::try_from(stride).unwrap_or(length).max(1);
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => received.ecn = data.read() & 3,
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        received.ecn = data.cast::<libc::c_int>().read_unaligned() as u8 & 3;
                    }
                    _ => {}
                }
                head = libc::CMSG_NXTHDR(&raw const message, head);
            }
        }
        Ok(Some(received))
    }
}

impl AsFd for TrainSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// An address as the kernel has it, and its length.
fn name_of(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: an address is plain memory, and all zeros is one of no family.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            let four = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than any address, and aligned for each.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(four) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let six = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: the storage is larger than any address, and aligned for each.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in6>().write(six) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (name, length as libc::socklen_t)
}

/// The address that the kernel has written; `None`: of another family.
fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger than any address, and aligned for each; the family says
            // which one it is.
            let four = unsafe { (&raw const *name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(four.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { (&raw const *name).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(six.sin6_addr.s6_addr);
            let port = u16::from_be(six.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, six.sin6_scope_id)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn exchange(local: IpAddr) {
        let [one, other] = [(); 2].map(|()| TrainSocket::open(local, 0).unwrap());
        let mut buffer = vec![0; 64 << 10];
        assert_eq!(one.receive(&mut buffer).unwrap(), None);
        let train: Vec<u8> = (0..10_500_usize).map(|n| (n / 1000) as u8).collect();
        one.send(&train, 1000, &other.local()).unwrap();
        let mut got: Vec<u8> = Vec::new();
        while got.len() < train.len() {
            let limit = Some(Duration::from_secs(5));
            assert!(crate::eventfd::readable(other.as_fd(), limit).unwrap(), "{}", got.len());
            let received = other.receive(&mut buffer).unwrap().unwrap();
            assert_eq!((received.from, received.ecn), (one.local(), 2));
            assert!(received.stride == 1000 || received.length == 500, "{received:?}");
            got.extend_from_slice(&buffer[..received.length]);
        }
        assert!(got == train);
        other.send(&[7; 40], 40, &one.local()).unwrap();
        let received = one.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((received.length, received.stride), (40, 40));
    }

    #[test]
    fn a_train_arrives_as_it_was_sent_over_ipv4() {
        exchange(Ipv4Addr::LOCALHOST.into());
    }

    #[test]
    fn a_train_arrives_as_it_was_sent_over_ipv6() {
        if TrainSocket::open(Ipv6Addr::LOCALHOST.into(), 0).is_ok() {
            exchange(Ipv6Addr::LOCALHOST.into());
        }
    }
}
