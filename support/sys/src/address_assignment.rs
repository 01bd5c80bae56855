//! Adds IP addresses to interfaces of the calling thread's network namespace, and removes them.
//!
//! Added addresses are marked (`IFA_PROTO`, since Linux 5.18), so that another process knows them
//! again. The prefix of each is a single address, which brings no route but its own.

use crate::local_addresses::{
    ADDED_MARK, IFA_ADDRESS, IFA_FLAGS, IFA_LOCAL, IFA_PROTO, RTM_GETADDR, RTM_NEWADDR, attributes,
    change, dump, ip, u32_at,
};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const RTM_DELADDR: u16 = 21;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
/// Another address of IPv4 is the source of packets to its subnet.
const IFA_F_SECONDARY: u8 = 0x01;
/// An address of IPv6 is used at once, without asking whether another host has it.
const IFA_F_NODAD: u32 = 0x02;
/// `struct ifa_cacheinfo`: how long an address of IPv6 is preferred as a source, and how long it is
/// valid, in seconds; two times that the kernel sets. One that is never preferred ("deprecated") is
/// the source of nothing that names no source, whichever destination it resembles.
const IFA_CACHEINFO: u16 = 6;
const RT_SCOPE_UNIVERSE: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const HEAD_BYTES: usize = 8;
/// `RTNLGRP_LINK`, `_IPV4_IFADDR` and `_IPV6_IFADDR`.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;

/// An address that an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedAddress {
    /// The address: of a point-to-point link our end.
    pub ip: IpAddr,
    /// Index of its interface.
    pub interface: u32,
    /// Its prefix is the address alone.
    pub is_alone: bool,
    /// It was added by [`add`], of any process.
    pub is_marked: bool,
    /// Of IPv4: it is global and primary. The first one of an interface is the source address of
    /// packets that leave by it, if no route names another.
    pub may_be_source: bool,
}

/// All addresses, in the kernel's order; the first 4096 at least.
///
/// # Errors
/// What the kernel says.
pub fn list() -> io::Result<Vec<AssignedAddress>> {
    let mut found = Vec::new();
    dump(RTM_GETADDR, |kind, body| {
        if kind == RTM_NEWADDR {
            found.extend(parse(body));
        }
    })?;
    Ok(found)
}

/// Gives an interface an address. One of IPv6 is the source of no packet that does not name it.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EEXIST` if it has the address, `ENODEV` if it is gone.
pub fn add(ip: IpAddr, interface: u32) -> io::Result<()> {
    change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body(ip, interface))
}

/// Takes an address from an interface, if its prefix is the address alone.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EADDRNOTAVAIL` if it does not have the address, `ENODEV` if it
/// is gone.
pub fn remove(ip: IpAddr, interface: u32) -> io::Result<()> {
    change(RTM_DELADDR, 0, &body(ip, interface))
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, interface index; then attributes.
fn body(ip: IpAddr, interface: u32) -> Vec<u8> {
    let (family, bits, octets) = match ip {
        IpAddr::V4(four) => (AF_INET, 32, four.octets().to_vec()),
        IpAddr::V6(six) => (AF_INET6, 128, six.octets().to_vec()),
    };
    let mut body = vec![family, bits, 0, 0];
    body.extend(interface.to_ne_bytes());
    let mut attribute = |kind: u16, value: &[u8]| {
        let length = 4 + value.len();
        body.extend((length as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
        body.resize(body.len().next_multiple_of(4), 0);
    };
    attribute(IFA_LOCAL, &octets);
    attribute(IFA_ADDRESS, &octets);
    attribute(IFA_PROTO, &[ADDED_MARK]);
    if ip.is_ipv6() {
        attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        let lifetimes = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes);
        attribute(IFA_CACHEINFO, lifetimes.as_flattened());
    }
    body
}

fn parse(body: &[u8]) -> Option<AssignedAddress> {
    let (bits, interface) = (*body.get(1)?, u32_at(body, 4)?);
    let (flags, scope) = (*body.get(2)?, *body.get(3)?);
    let (mut address, mut local, mut mark) = (None, None, 0);
    for attribute in attributes(body.get(HEAD_BYTES..)?) {
        let (kind, value) = attribute?;
        match kind {
            IFA_ADDRESS => address = ip(value),
            IFA_LOCAL => local = ip(value),
            IFA_PROTO => mark = value.first().copied().unwrap_or(0),
            _ => {}
        }
    }
    let ip = local.or(address)?;
    let is_alone = bits == if ip.is_ipv4() { 32 } else { 128 };
    let is_marked = is_alone && mark == ADDED_MARK;
    let is_global = scope == RT_SCOPE_UNIVERSE;
    let may_be_source = ip.is_ipv4() && is_global && flags & IFA_F_SECONDARY == 0;
    Some(AssignedAddress { ip, interface, is_alone, is_marked, may_be_source })
}

/// A socket that hears of interfaces and addresses of the namespace that it was made in.
#[derive(Debug)]
pub struct AddressEvents(OwnedFd);

impl AddressEvents {
    /// Listens from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open() -> io::Result<AddressEvents> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(AddressEvents(socket))
    }

    /// Forgets what was heard so far: an event says that it is time to [`list`] again.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take(&self) -> io::Result<()> {
        let mut buffer = [0_u8; 32 << 10];
        loop {
            match recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty()) {
                // Without room for what there was to tell something has happened, too.
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for AddressEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::readable;
    use crate::netns::Namespace;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn messages_say_which_addresses_are_marked() {
        let address = IpAddr::from([192, 0, 2, 50]);
        let ours = body(address, 3);
        let found = parse(&ours).unwrap();
        assert_eq!((found.ip, found.interface), (address, 3));
        assert!(found.is_alone && found.is_marked && found.may_be_source);
        for (at, value) in [(2, IFA_F_SECONDARY), (3, 253)] {
            let mut other = ours.clone();
            other[at] = value;
            assert!(!parse(&other).unwrap().may_be_source);
        }
        for end in 0..ours.len() {
            let _ = parse(&ours[..end]);
        }
        let mut of_subnet = ours.clone();
        of_subnet[1] = 24;
        let found = parse(&of_subnet).unwrap();
        assert!(!found.is_alone && !found.is_marked, "what is removed is never a subnet's");
        let six = parse(&body(Ipv6Addr::LOCALHOST.into(), 1)).unwrap();
        assert!(six.is_alone && six.ip.is_ipv6());
    }

    /// In a namespace of its own.
    #[test]
    fn an_address_is_added_seen_and_removed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let work = std::thread::spawn(|| {
            let mut holder = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
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
            let all = [IpAddr::from([192, 0, 2, 50]), "2001:db8::50".parse().unwrap()];
            theirs
                .run(|| {
                    let events = AddressEvents::open()?;
                    for ip in all {
                        add(ip, 1)?;
                        assert!(readable(events.as_fd(), Some(Duration::from_secs(10)))?);
                        events.take()?;
                        assert!(!readable(events.as_fd(), Some(Duration::ZERO))?);
                        let found = list()?.into_iter().find(|found| found.ip == ip).unwrap();
                        assert!(found.is_alone && found.interface == 1, "{found:?}");
                        let again = add(ip, 1).unwrap_err();
                        assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
                        remove(ip, 1)?;
                        assert!(!list()?.iter().any(|found| found.ip == ip));
                        let again = remove(ip, 1).unwrap_err();
                        assert_eq!(again.raw_os_error(), Some(libc::EADDRNOTAVAIL));
                    }
                    assert_eq!(
                        add(Ipv4Addr::new(192, 0, 2, 1).into(), 99).unwrap_err().raw_os_error(),
                        Some(libc::ENODEV)
                    );
                    Ok(())
                })
                .unwrap();
            holder.kill().unwrap();
            holder.wait().unwrap();
        });
        work.join().unwrap();
    }
}
