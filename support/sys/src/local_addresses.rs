//! Lists the IP addresses of the calling thread's network namespace (rtnetlink).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_ACK: u16 = 0x004;
const NLM_F_REQUEST_DUMP: u16 = NLM_F_REQUEST | 0x300;
const IFLA_MTU: u16 = 4;
pub(crate) const IFA_ADDRESS: u16 = 1;
pub(crate) const IFA_LOCAL: u16 = 2;
pub(crate) const IFA_FLAGS: u16 = 8;
pub(crate) const IFA_PROTO: u16 = 11;
/// The mark of what [`crate::address_assignment`] adds: a number that neither the kernel nor
/// `rt_addrprotos` of iproute2 uses.
pub(crate) const ADDED_MARK: u8 = 79;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
/// Duplicate address detection failed, or has not finished yet.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const HEADER_BYTES: usize = 16;
/// Links or addresses looked at: a namespace may have very many, and a dump stops early.
const ENTRIES_MAX: usize = 4096;

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressScope {
    /// Beyond the link (including private ranges).
    Global,
    /// This link only.
    Link,
    /// This host only.
    Host,
}

/// One address of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// As the kernel has it: of a point-to-point link our end.
    pub ip: IpAddr,
    /// Index of its interface.
    pub interface: u32,
    /// How far it reaches.
    pub scope: AddressScope,
    /// The interface is administratively up.
    pub is_up: bool,
    /// The interface is a loopback.
    pub is_loopback: bool,
    /// The interface's MTU in bytes; 0 if the kernel does not say.
    pub mtu: u32,
}

/// What is of interest about an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    flags: u32,
    mtu: u32,
}

/// All usable addresses, in the kernel's order, without those that
/// [`crate::address_assignment::add`] has added: they come and go, and are no names of this host.
///
/// # Errors
/// What the kernel says.
pub fn list() -> io::Result<Vec<Address>> {
    let mut links = BTreeMap::new();
    dump(RTM_GETLINK, |kind, body| {
        if kind == RTM_NEWLINK {
            links.extend(parse_link(body));
        }
    })?;
    let mut addresses = Vec::new();
    dump(RTM_GETADDR, |kind, body| {
        if kind == RTM_NEWADDR {
            addresses.extend(parse_address(body, &links));
        }
    })?;
    Ok(addresses)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// All there are: a body of zeroes that is long enough for every kind of request.
pub(crate) fn dump(kind: u16, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    ask(kind, NLM_F_REQUEST_DUMP, &[0; 16], each)
}

/// One answer to one request.
pub(crate) fn request(kind: u16, body: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    ask(kind, NLM_F_REQUEST, body, each)
}

/// A change, which the kernel says is done. `flags`: beside those of every change.
pub(crate) fn change(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    ask(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body, |_, _| {})
}

fn ask(kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    // No protocol number means number 0, NETLINK_ROUTE. One socket a dump: what is left unread of
    // one that stopped early does not get into the next.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // Header (length, type, flags, sequence, port), then the body.
    let mut bytes = vec![0u8; HEADER_BYTES];
    let length = (HEADER_BYTES + body.len()) as u32;
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[8..12].copy_from_slice(&u32::from(kind).to_ne_bytes());
    bytes.extend(body);
    send(&socket, &bytes, SendFlags::empty())?;

    let mut buffer = vec![0u8; 64 * 1024];
    let mut entries = 0;
    while entries < ENTRIES_MAX {
        let length = match recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if messages(&buffer[..length], |kind, body| {
            entries += 1;
            each(kind, body);
        })? || flags == NLM_F_REQUEST
        {
            return Ok(());
        }
    }
    Ok(())
}

/// The messages of a datagram; true if the dump is complete.
pub(crate) fn messages(mut rest: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while let (Some(size), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let size = size as usize;
        let Some(body) = rest.get(HEADER_BYTES..size) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                // Without an error it is the end of a change.
                return match u32_at(body, 0).unwrap_or(0).cast_signed() {
                    0 => Ok(true),
                    code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
                };
            }
            _ => each(kind, body),
        }
        rest = rest.get(size.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

/// The attributes of a message: kind and value each, until one makes no sense.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = Option<(u16, &[u8])>> {
    std::iter::from_fn(move || {
        let (size, kind) = (usize::from(u16_at(rest, 0)?), u16_at(rest, 2)?);
        let Some(value) = rest.get(4..size) else {
            rest = &[];
            return Some(None);
        };
        rest = rest.get(size.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Some((kind, value)))
    })
}

/// `struct ifinfomsg`: family, type, index, flags, change mask; then attributes.
pub(crate) fn parse_link(body: &[u8]) -> Option<(u32, Link)> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let mut link = Link { flags, mtu: 0 };
    for attribute in attributes(body.get(16..).unwrap_or(&[])) {
        if let Some((IFLA_MTU, value)) = attribute {
            link.mtu = u32_at(value, 0).unwrap_or(0);
        }
    }
    Some((index, link))
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, interface index; then attributes.
pub(crate) fn parse_address(body: &[u8], links: &BTreeMap<u32, Link>) -> Option<Address> {
    let (scope, interface) = (*body.get(3)?, u32_at(body, 4)?);
    let mut flags = u32::from(*body.get(2)?);
    let (mut address, mut local, mut mark) = (None, None, 0);
    for attribute in attributes(body.get(8..)?) {
        let (kind, value) = attribute?;
        match kind {
            IFA_ADDRESS => address = ip(value),
            // On a point-to-point link `IFA_ADDRESS` is the far end and this is ours.
            IFA_LOCAL => local = ip(value),
            IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            IFA_PROTO => mark = value.first().copied().unwrap_or(0),
            _ => {}
        }
    }
    let link = links.get(&interface).copied().unwrap_or_default();
    let scope = match scope {
        253 => AddressScope::Link,
        254 | 255 => AddressScope::Host,
        _ => AddressScope::Global,
    };
    // A link-local address is listed from the first moment, as RNICs have it: what a program takes
    // for its name is to be that of the next one, too.
    let tentative = flags & IFA_F_TENTATIVE != 0 && scope != AddressScope::Link;
    if tentative || flags & IFA_F_DADFAILED != 0 || mark == ADDED_MARK {
        return None;
    }
    let (is_up, is_loopback) = (link.flags & IFF_UP != 0, link.flags & IFF_LOOPBACK != 0);
    Some(Address { ip: local.or(address)?, interface, scope, is_up, is_loopback, mtu: link.mtu })
}

pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_listed() {
        let found = list().unwrap();
        let home = found.iter().find(|a| a.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!((home.scope, home.is_loopback, home.is_up), (AddressScope::Host, true, true));
        let file = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(home.mtu.to_string(), file.trim());
    }

    #[test]
    fn broken_messages_are_skipped() {
        let mut link = vec![0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        link.extend([8, 0, 4, 0, 0xdc, 5, 0, 0]);
        let up = Link { flags: IFF_UP, mtu: 1500 };
        assert_eq!(parse_link(&link), Some((1, up)));
        assert_eq!(parse_link(&link[..20]), Some((1, Link { mtu: 0, ..up })));
        let links = BTreeMap::from([(1, up)]);
        let mut body = vec![2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 2, 0, 10, 1, 2, 3];
        let found = parse_address(&body, &links).unwrap();
        assert_eq!(found.ip, IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)));
        assert!(
            found.is_up
                && !found.is_loopback
                && found.scope == AddressScope::Global
                && found.mtu == 1500
        );
        for end in 0..body.len() {
            assert_eq!(parse_address(&body[..end], &links), None);
        }
        for (mark, is_listed) in [(3, true), (ADDED_MARK, false)] {
            let mut marked = body.clone();
            marked.extend([5, 0, 11, 0, mark, 0, 0, 0]);
            assert_eq!(parse_address(&marked, &links).is_some(), is_listed);
        }
        body[8] = 0; // an attribute of no length must not loop for ever
        assert_eq!(parse_address(&body, &links), None);
        body[8] = 8;
        body[2] = 0x40; // tentative
        assert_eq!(parse_address(&body, &links), None);
        body[3] = 253; // on the link only
        assert_eq!(parse_address(&body, &links).unwrap().scope, AddressScope::Link);
        body[2] = 0x08; // somebody else has it
        assert_eq!(parse_address(&body, &links), None);
    }
}
