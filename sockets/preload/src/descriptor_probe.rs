//! Asks the kernel what a descriptor is, if no hook saw it being made.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use omniverb_connection::descriptors::Kind;
use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, getpeername, ipproto, sockopt};

use crate::borrowed_fd::borrow;

/// A link of `/proc` shows an epoll set so.
const SET: &[u8] = b"anon_inode:[eventpoll]";
/// `/proc/self/fd/`, a number, a zero byte.
const PATH_MAX: usize = 32;

/// What is open at a descriptor; `None` if nothing is.
pub(crate) fn kind(fd: c_int) -> Option<Kind> {
    let descriptor = borrow(fd);
    match sockopt::socket_type(descriptor) {
        Ok(SocketType::STREAM) if is_tcp(descriptor) => Some(stream(descriptor)),
        Err(Errno::BADF) => None,
        Err(Errno::NOTSOCK) if is_set(fd) => Some(Kind::Set),
        _ => Some(Kind::Other),
    }
}

fn is_tcp(descriptor: BorrowedFd<'_>) -> bool {
    let family = sockopt::socket_domain(descriptor);
    matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_protocol(descriptor) == Ok(Some(ipproto::TCP))
}

fn stream(descriptor: BorrowedFd<'_>) -> Kind {
    if sockopt::socket_acceptconn(descriptor) == Ok(true) {
        return Kind::Listening;
    }
    if getpeername(descriptor).is_ok() { Kind::Accepted } else { Kind::Fresh }
}

/// Where there is no `/proc`, no set is found.
fn is_set(fd: c_int) -> bool {
    let mut path = [0; PATH_MAX];
    let Some(path) = path_of(fd, &mut path) else { return false };
    let mut target = [MaybeUninit::<u8>::uninit(); SET.len() + 1];
    let read = readlinkat_raw(CWD, path, &mut target[..]);
    read.is_ok_and(|(read, _)| *read == *SET)
}

fn path_of(fd: c_int, bytes: &mut [u8; PATH_MAX]) -> Option<&core::ffi::CStr> {
    let mut digits = [0; 12];
    let mut count = 0;
    let mut rest = u32::try_from(fd).ok()?;
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        (rest, count) = (rest / 10, count + 1);
        if rest == 0 {
            break;
        }
    }
    let folder = b"/proc/self/fd/";
    let path = folder.iter().chain(digits[..count].iter().rev());
    bytes.iter_mut().zip(path).for_each(|(byte, is)| *byte = *is);
    core::ffi::CStr::from_bytes_until_nul(bytes).ok()
}
