//! Makes unix sockets whose names the kernel draws (`unix(7)`, autobind), which are told by a
//! number.

use crate::unsolicited_fds;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind,
    connect as connect_to, getsockname, listen as listen_on, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Names there are in a network namespace: numbers are below that.
pub const NUMBERS: u32 = 1 << 20;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

fn named() -> io::Result<(OwnedFd, u32)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Before it has a name: no message is quicker. Before Linux 6.16 it cannot be told.
    let _ = unsolicited_fds::refuse(socket.as_fd());
    bind(&socket, &SocketAddrUnix::new_unnamed())?;
    let number = number_of(getsockname(&socket)?).ok_or(Errno::ADDRNOTAVAIL)?;
    Ok((socket, number))
}

/// The number of an address, if it is such a name.
fn number_of(address: SocketAddrAny) -> Option<u32> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    let name = str::from_utf8(address.abstract_name()?).ok()?;
    let number = u32::from_str_radix(name, 16).ok().filter(|number| *number < NUMBERS)?;
    (name_of(number) == name).then_some(number)
}

fn name_of(number: u32) -> String {
    format!("{number:05x}")
}

/// Listens, and under which number. Nothing of the socket waits.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`; `ENOSPC` when all names are in use.
pub fn listen() -> io::Result<(OwnedFd, u32)> {
    let (socket, number) = named()?;
    listen_on(&socket, BACKLOG)?;
    Ok((socket, number))
}

/// Connects to the listener under a number; the number of this end. Never waits.
///
/// # Errors
/// `ECONNREFUSED` if there is none, `EAGAIN` if too many wait there, and as [`listen`].
pub fn connect(to: u32) -> io::Result<(OwnedFd, u32)> {
    let (socket, number) = named()?;
    connect_to(&socket, &SocketAddrUnix::new_abstract_name(name_of(to).as_bytes())?)?;
    Ok((socket, number))
}

/// A peer that has connected, and its number if its socket has one. `None`: there is none now.
///
/// # Errors
/// `EMFILE` and the like.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, Option<u32>)>> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match acceptfrom_with(listener.as_fd(), flags) {
            Ok((socket, from)) => return Ok(Some((socket, from.and_then(number_of)))),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket;
    use crate::unsolicited_fds::{PlainMessage, receive};

    #[test]
    fn a_connecting_process_is_known_by_a_number() {
        let (listener, number) = listen().unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_none());
        let (ours, by) = connect(number).unwrap();
        let (theirs, from) = accept(listener.as_fd()).unwrap().unwrap();
        assert!(number < NUMBERS && from == Some(by) && by != number);
        seqpacket::try_send(ours.as_fd(), b"seven", &[]).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(receive(theirs.as_fd(), &mut bytes).unwrap(), PlainMessage::Message(5));
        drop(listener);
        assert_eq!(connect(number).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn a_kernel_that_can_refuses_descriptors_at_both_ends() {
        let (listener, number) = listen().unwrap();
        if unsolicited_fds::refuse(listener.as_fd()).is_err() {
            return; // before Linux 6.16
        }
        let (ours, _) = connect(number).unwrap();
        let (theirs, _) = accept(listener.as_fd()).unwrap().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for from in [&ours, &theirs] {
            let error = seqpacket::try_send(from.as_fd(), b"x", &[null.as_fd()]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn an_unknown_name_has_no_number() {
        let (listener, number) = listen().unwrap();
        for name in [None, Some(&b"12345x"[..]), Some(b"1234"), Some(b"0BCDE")] {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            if let Some(name) = name {
                bind(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
            }
            let to = SocketAddrUnix::new_abstract_name(name_of(number).as_bytes()).unwrap();
            connect_to(&socket, &to).unwrap();
            assert_eq!(accept(listener.as_fd()).unwrap().unwrap().1, None, "{name:?}");
        }
    }
}
