//! Receives what the kernel tells of interfaces, addresses and namespaces, of all namespaces that
//! the caller's knows.
#![expect(unsafe_code)]
// UNSAFETY: rustix does not give the control messages of netlink sockets, nor set their options.

use crate::local_addresses::messages;
use crate::network_interfaces::{parse_link, parse_namespace_id};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_DELNSID: u16 = 89;
/// `RTNLGRP_LINK`, `_IPV4_IFADDR`, `_IPV6_IFADDR` and `_NSID`.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8 | 1 << 27;
const SOL_NETLINK: libc::c_int = 270;
const NETLINK_LISTEN_ALL_NSID: libc::c_int = 8;

/// What has happened. Namespaces are named by the numbers that ours knows them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// Interfaces or addresses of a namespace are others, or what they are joined to here.
    Changed(u32),
    /// A namespace is no more, and its number may be given to another.
    Ended(u32),
    /// The kernel had no room for what there was to tell: anything may have happened.
    Lost,
}

/// A socket that hears of all namespaces.
#[derive(Debug)]
pub struct NetworkEvents {
    socket: OwnedFd,
}

impl NetworkEvents {
    /// Listens from now on.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_BROADCAST.
    pub fn open() -> io::Result<NetworkEvents> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads an integer, which is there.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                SOL_NETLINK,
                NETLINK_LISTEN_ALL_NSID,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(NetworkEvents { socket })
    }

    /// Tells `each` of what one datagram says; false: there is none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn receive(&self, mut each: impl FnMut(NetworkEvent)) -> io::Result<bool> {
        let mut buffer = [0_u8; 32 << 10];
        let (length, namespace) = match receive(self.socket.as_fd(), &mut buffer) {
            Ok(received) => received,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => Ok(false),
                    Some(Errno::INTR) => Ok(true),
                    Some(Errno::NOBUFS) => {
                        each(NetworkEvent::Lost);
                        Ok(true)
                    }
                    _ => Err(error),
                };
            }
        };
        // An error is no event.
        let _ = messages(&buffer[..length], |kind, body| {
            if let Some(event) = event(kind, body, namespace) {
                each(event);
            }
        });
        Ok(true)
    }
}

impl AsFd for NetworkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a message of a namespace says; `None`: of our own.
fn event(kind: u16, body: &[u8], namespace: Option<u32>) -> Option<NetworkEvent> {
    match (kind, namespace) {
        (RTM_DELNSID, None) => parse_namespace_id(body).map(NetworkEvent::Ended),
        (RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR, Some(namespace)) => {
            Some(NetworkEvent::Changed(namespace))
        }
        // Our end of a veth, which a bridge may have been given.
        (RTM_NEWLINK, None) => parse_link(body)?.link_namespace.map(NetworkEvent::Changed),
        _ => None,
    }
}

/// A datagram's length, and which namespace it is about; `None`: our own.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    /// Room for some control messages, aligned as they have to be.
    #[repr(C, align(8))]
    struct Control([u8; 256]);

    let mut control = Control([0; 256]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes are a message header without any pointers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: the header points to `piece` and `control`, and that one to `buffer`; all of them
    // live and are not touched otherwise until it returns.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut namespace = None;
    // SAFETY: the kernel has filled `control` and its length in, as these macros expect.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: it is one of the control messages that the kernel has written.
        let (level, kind, size) =
            unsafe { ((*next).cmsg_level, (*next).cmsg_type, (*next).cmsg_len) };
        // SAFETY: only arithmetic.
        let least = unsafe { libc::CMSG_LEN(size_of::<u32>() as u32) } as usize;
        if level == SOL_NETLINK && kind == NETLINK_LISTEN_ALL_NSID && size >= least {
            // SAFETY: there are as many bytes of data, of any alignment.
            let number = unsafe { libc::CMSG_DATA(next).cast::<i32>().read_unaligned() };
            namespace = u32::try_from(number).ok();
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok((length.min(buffer.len()), namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::readable;
    use crate::netns::Namespace;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_message_is_an_event_of_its_namespace() {
        let link = [0_u8; 16];
        assert_eq!(event(RTM_NEWLINK, &link, Some(4)), Some(NetworkEvent::Changed(4)));
        assert_eq!(event(RTM_NEWLINK, &link, None), None);
        let mut ours = link.to_vec();
        ours.extend([8, 0, 37, 0, 3, 0, 0, 0]);
        assert_eq!(event(RTM_NEWLINK, &ours, None), Some(NetworkEvent::Changed(3)));
        let ended = [0, 0, 0, 0, 8, 0, 1, 0, 5, 0, 0, 0];
        assert_eq!(event(RTM_DELNSID, &ended, None), Some(NetworkEvent::Ended(5)));
        assert_eq!(event(RTM_DELNSID, &ended, Some(1)), None, "numbers of another namespace");
    }

    /// In a namespace of its own: others change interfaces of ours as they like.
    #[test]
    fn a_veth_into_another_namespace_is_heard_of() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let script = "ip link add name near type veth peer name far && \
                      ip link set far netns $PPID && exec sleep 60";
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let mut holder =
                    Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
                let pid = i32::try_from(holder.id()).unwrap();
                let pidfd = crate::pidfd::of(pid).unwrap();
                let ours = Namespace::current().unwrap().identity();
                let theirs = loop {
                    let theirs = Namespace::of_process(pid, pidfd.as_fd()).unwrap();
                    if theirs.identity() != ours {
                        break theirs;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                };
                let heard = theirs.run(|| {
                    let events = NetworkEvents::open()?;
                    let mut child = Command::new("unshare")
                        .args(["-n", "sh", "-c", &script.replace("$PPID", &pid.to_string())])
                        .spawn()?;
                    let mut heard = Vec::new();
                    while !heard.iter().any(|event| matches!(event, NetworkEvent::Changed(_))) {
                        assert!(readable(events.as_fd(), Some(Duration::from_secs(120)))?);
                        while events.receive(|event| heard.push(event))? {}
                    }
                    child.kill()?;
                    child.wait()?;
                    while !heard.iter().any(|event| matches!(event, NetworkEvent::Ended(_))) {
                        assert!(readable(events.as_fd(), Some(Duration::from_secs(120)))?);
                        while events.receive(|event| heard.push(event))? {}
                    }
                    Ok(())
                });
                holder.kill().unwrap();
                holder.wait().unwrap();
                heard.unwrap();
            });
            work.join().unwrap();
        });
    }
}
