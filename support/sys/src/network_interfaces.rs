//! Lists network interfaces with their addresses, and finds the bridge of a veth's other end.
//!
//! Calls are about the network namespace of the calling thread. A container can choose the index
//! and the link that its own side of a veth names, so [`bridge_of`] believes the other side only.

use crate::local_addresses::{attributes, dump, ip, request, u32_at};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINK_NETNSID: u16 = 37;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_LOWER_UP: u32 = 0x10000;
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const NSID_BYTES: usize = 4;

/// A network interface that is no loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// What the kernel calls it by.
    pub index: u32,
    /// What people call it by.
    pub name: String,
    /// Packets can pass: it is up, and so is what it is joined to.
    pub is_up: bool,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// Index of the interface that it is joined to, if that is in another namespace.
    pub peer: Option<u32>,
}

/// What a message of the kernel says of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    is_loopback: bool,
    is_up: bool,
    name: String,
    link: Option<u32>,
    master: Option<u32>,
    /// The namespace that `link` is in, if that is another one.
    pub(crate) link_namespace: Option<u32>,
}

/// All interfaces but loopbacks, with their addresses.
///
/// # Errors
/// What the kernel says.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut found = BTreeMap::new();
    dump(RTM_GETLINK, |kind, body| {
        if kind == RTM_NEWLINK
            && let Some(link) = parse_link(body).filter(|link| !link.is_loopback)
        {
            let peer = link.link_namespace.and(link.link);
            let Link { index, name, is_up, .. } = link;
            found.insert(index, Interface { index, name, is_up, addresses: Vec::new(), peer });
        }
    })?;
    dump(RTM_GETADDR, |kind, body| {
        if kind == RTM_NEWADDR
            && let Some((index, address)) = parse_address(body)
            && let Some(interface) = found.get_mut(&index)
        {
            interface.addresses.push(address);
        }
    })?;
    Ok(found.into_values().collect())
}

/// The number by which this namespace knows another one; `None`: it has none, so no interface
/// joins the two.
///
/// # Errors
/// What the kernel says.
pub fn namespace_id(namespace: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut body = vec![0; NSID_BYTES];
    body.extend(8_u16.to_ne_bytes());
    body.extend(NETNSA_FD.to_ne_bytes());
    body.extend(namespace.as_raw_fd().to_ne_bytes());
    let mut found = None;
    request(RTM_GETNSID, &body, |kind, body| {
        if kind == RTM_NEWNSID {
            found = parse_namespace_id(body);
        }
    })?;
    Ok(found)
}

/// The numbers of all namespaces that this one knows.
///
/// # Errors
/// What the kernel says.
pub fn namespace_ids() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    dump(RTM_GETNSID, |kind, body| {
        if kind == RTM_NEWNSID {
            found.extend(parse_namespace_id(body));
        }
    })?;
    Ok(found)
}

/// The name of the bridge that interface `peer` of this namespace is a port of, if its other end
/// is interface `index` of the namespace that is known here by `namespace`.
///
/// # Errors
/// What the kernel says, but for interfaces that are gone.
pub fn bridge_of(peer: u32, index: u32, namespace: u32) -> io::Result<Option<String>> {
    let Some(port) = link(peer)? else { return Ok(None) };
    let is_other_end = port.link == Some(index) && port.link_namespace == Some(namespace);
    match port.master.filter(|_| is_other_end) {
        Some(master) => Ok(link(master)?.map(|bridge| bridge.name)),
        None => Ok(None),
    }
}

fn link(index: u32) -> io::Result<Option<Link>> {
    let mut body = [0; LINK_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found = None;
    let asked = request(RTM_GETLINK, &body, |kind, body| {
        if kind == RTM_NEWLINK {
            found = parse_link(body);
        }
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// `struct ifinfomsg`: family, type, index, flags, change mask; then attributes.
pub(crate) fn parse_link(body: &[u8]) -> Option<Link> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let is_loopback = flags & IFF_LOOPBACK != 0;
    let is_up = flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0;
    let mut link = Link { index, is_loopback, is_up, ..Link::default() };
    for (kind, value) in attributes(body.get(LINK_BYTES..)?).flatten() {
        match kind {
            IFLA_IFNAME => {
                let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(text).into_owned();
            }
            IFLA_LINK => link.link = u32_at(value, 0),
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_LINK_NETNSID => link.link_namespace = u32_at(value, 0),
            _ => {}
        }
    }
    Some(link)
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, interface index; then attributes.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32_at(body, 4)?;
    let (mut address, mut local) = (None, None);
    for (kind, value) in attributes(body.get(ADDRESS_BYTES..)?).flatten() {
        match kind {
            IFA_ADDRESS => address = ip(value),
            IFA_LOCAL => local = ip(value),
            _ => {}
        }
    }
    Some((index, local.or(address)?))
}

/// `struct rtgenmsg`, padded; then attributes.
pub(crate) fn parse_namespace_id(body: &[u8]) -> Option<u32> {
    let mut found = attributes(body.get(NSID_BYTES..)?).flatten();
    let (_, value) = found.find(|(kind, _)| *kind == NETNSA_NSID)?;
    // All ones: it has none.
    u32_at(value, 0).filter(|number| number.cast_signed() >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::os::fd::AsFd;

    #[test]
    fn broken_messages_say_nothing() {
        let mut body = vec![0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(!parse_link(&body).unwrap().is_up, "it has no carrier");
        body[10] = 1;
        assert!(parse_link(&body).unwrap().is_up);
        body.extend([8, 0, 3, 0, b'e', b't', b'h', 0, 8, 0, 5, 0, 9, 0, 0, 0]);
        body.extend([8, 0, 37, 0, 3, 0, 0, 0]);
        let link = parse_link(&body).unwrap();
        assert_eq!((link.index, link.name.as_str()), (7, "eth"));
        assert_eq!((link.link, link.link_namespace, link.master), (Some(9), Some(3), None));
        for end in 0..body.len() {
            let part = parse_link(&body[..end]);
            assert!(part.is_none_or(|part| part.link_namespace.is_none()));
        }
        assert_eq!(parse_namespace_id(&[0, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255]), None);
        assert_eq!(parse_namespace_id(&[0, 0, 0, 0, 8, 0, 1, 0, 5, 0, 0, 0]), Some(5));
        assert_eq!(parse_namespace_id(&[0, 0, 0, 0, 8, 0, 1]), None);
        assert_eq!(parse_address(&[2, 24, 0, 0, 1, 0, 0]), None);
    }

    #[test]
    fn no_interface_is_a_loopback_or_joins_us_to_ourselves() {
        assert!(list().unwrap().iter().all(|interface| interface.name != "lo"));
        let ours = Namespace::current().unwrap();
        let number = namespace_id(ours.as_fd()).unwrap();
        assert!(number.is_none_or(|number| namespace_ids().unwrap().contains(&number)));
        assert_eq!(bridge_of(u32::MAX >> 1, 1, 0).unwrap(), None);
    }
}
