//! Encodes the messages between the daemon and its helper.
//!
//! One datagram each, of a size that its kind fixes, numbers in native byte order. Both ends are
//! the same program; all the same, both check everything.

pub(crate) mod message_fields;
pub(crate) mod underlay_messages;

use crate::container_facts::{
    CONTAINER_ADDRESSES_MAX, ContainerFacts, ContainerInterface, INTERFACE_NAME_BYTES,
    INTERFACES_MAX, NAME_BYTES,
};
use message_fields::{HEADER_BYTES, MARK, Reader, Writer, header};
use omniverb_sys::local_addresses::{Address, AddressScope};
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use omniverb_sys::seqpacket;
use omniverb_sys::udp_socket::UdpPort;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use underlay_messages::{
    AddressState, STATES_BYTES_MAX, UNDERLAY_ADDRESSES, UNDERLAY_SOCKET, read_states,
};

/// The UDP port of RoCE v2.
pub const PORT: u16 = 4791;
/// The UDP port of PSP, for vNICs whose packets are encrypted.
pub const PSP_PORT: u16 = 1000;
/// Addresses reported of one namespace. A device shows 32.
pub const ADDRESSES_MAX: usize = 512;
/// Bytes of a cgroup's path that are told; what is longer is cut.
pub const CGROUP_BYTES: usize = 1024;
/// Most sockets for sending.
const SENDERS_MAX: usize = 2;

pub(crate) const REQUEST_BYTES: usize = 16;
pub(crate) const PROCESS_BYTES: usize = HEADER_BYTES + 24 + 8 + 24 + CGROUP_BYTES;
const ADDRESS_BYTES: usize = 28;
pub(crate) const ADDRESSES_BYTES: usize = HEADER_BYTES + ADDRESSES_MAX * ADDRESS_BYTES;
// The daemon has room for either.
const _: () = assert!(STATES_BYTES_MAX <= ADDRESSES_BYTES);
pub(crate) const PORT_BYTES: usize = HEADER_BYTES + 4 * SENDERS_MAX;
const IDENTITY_BYTES: usize = 24;
/// A length before each text.
const NAME_SLOT_BYTES: usize = 4 + NAME_BYTES + 1;
const INTERFACE_SLOT_BYTES: usize = 4 + INTERFACE_NAME_BYTES + 1;
/// An address, the interface that has it, and whether it is an IPv4 one.
const CONTAINER_ADDRESS_BYTES: usize = 16 + 4 + 4;
pub(crate) const FACTS_BYTES: usize = HEADER_BYTES
    + IDENTITY_BYTES
    + NAME_SLOT_BYTES
    + INTERFACES_MAX * (2 * INTERFACE_SLOT_BYTES + 4)
    + 4
    + CONTAINER_ADDRESSES_MAX * CONTAINER_ADDRESS_BYTES;
pub(crate) const VANISHED_BYTES: usize = HEADER_BYTES + IDENTITY_BYTES;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Which network namespace and cgroup is this process (a pidfd) in?
    Process,
    /// Which addresses does this namespace have?
    Addresses,
    /// The sockets of UDP port 4791 in this namespace.
    Port,
    /// The sockets of UDP port 1000 in this namespace.
    PspPort,
    /// The facts that tell this namespace from those of other containers.
    Interfaces,
    /// Say from now on which namespaces appear, change and vanish.
    Watch,
    /// The socket of UDP port 4791 at one address of this namespace ([`crate::request_socket`]).
    UnderlaySocket,
}

const KINDS: [Kind; 7] = [
    Kind::Process,
    Kind::Addresses,
    Kind::Port,
    Kind::PspPort,
    Kind::Interfaces,
    Kind::Watch,
    Kind::UnderlaySocket,
];

impl Kind {
    fn number(self) -> u32 {
        match self {
            Kind::Process => 1,
            Kind::Addresses => 2,
            Kind::Port => 3,
            Kind::PspPort => 4,
            Kind::Interfaces => 8,
            Kind::Watch => 5,
            Kind::UnderlaySocket => UNDERLAY_SOCKET,
        }
    }

    fn of(number: u32) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.number() == number)
    }
}

/// The number of the answer that says that the helper has begun.
const STARTED: u32 = 0;
/// The numbers of what a watcher says unasked.
const APPEARED: u32 = 6;
const VANISHED: u32 = 7;

/// A process's identity.
#[derive(Debug)]
pub struct Process {
    /// The network namespace of its main thread.
    pub namespace: Namespace,
    /// The namespace's number that never comes back, where the kernel says.
    pub cookie: Option<u64>,
    /// Its pid when it was looked at, as the helper sees it.
    pub pid: i32,
    /// Its user, pid and mount namespaces, if they could be looked at.
    pub surroundings: Option<[u64; 3]>,
    /// The path of its cgroup in the helper's cgroup namespace, cut to [`CGROUP_BYTES`]; `/` if
    /// it is in none.
    pub cgroup: String,
}

/// The result of a request.
#[derive(Debug)]
pub enum Found {
    /// The process's identity; to [`Kind::Process`].
    Process(Process),
    /// All of the namespace, at most [`ADDRESSES_MAX`]; to [`Kind::Addresses`].
    Addresses(Vec<Address>),
    /// The sockets, which keep the namespace; to [`Kind::UdpPort`] and [`Kind::PspPort`].
    UdpPort(UdpPort),
    /// The facts that tell a container from others; to [`Kind::Interfaces`].
    Interfaces(ContainerFacts),
    /// The socket, which keeps the namespace; to [`Kind::UnderlaySocket`].
    Socket(OwnedFd),
    /// From now on there are [`Answer::Appeared`] and [`Answer::Vanished`]; to [`Kind::Watch`].
    Watching,
}

/// Which network namespaces the helper can enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enters {
    /// Its own, in which it is.
    Own,
    /// Also those of processes that the daemon names.
    Others,
}

/// A message of the helper.
#[derive(Debug)]
pub enum Answer {
    /// It has begun. Whatever another one was asked before is not answered any more.
    Started {
        /// How far its privileges go.
        enters: Enters,
    },
    /// The answer to request `id`.
    Found {
        /// The number that the request was made with.
        id: u64,
        /// The kind of the request that this answers.
        kind: Kind,
        /// The result, or the kernel's error.
        found: io::Result<Found>,
    },
    /// A namespace has an interface that joins it to the host's, or has changed.
    Appeared {
        /// Tells it from others as long as it lives.
        identity: NetnsIdentity,
        /// Its number that never comes back, where the kernel says.
        cookie: Option<u64>,
        /// Facts for rules.
        facts: ContainerFacts,
    },
    /// A namespace that had appeared is gone.
    Vanished {
        /// Told it from others.
        identity: NetnsIdentity,
    },
    /// What has become of the addresses of policies that were wanted last.
    UnderlayAddresses(AddressState),
}

/// Asks for something; `file` is a pidfd or a namespace.
///
/// # Errors
/// `WouldBlock` if the helper has not taken earlier requests yet, `EPIPE` if it is gone.
pub fn request(
    socket: BorrowedFd<'_>,
    id: u64,
    kind: Kind,
    file: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut bytes = Writer::default();
    bytes.number(MARK);
    bytes.number(kind.number());
    bytes.0.extend(id.to_ne_bytes());
    seqpacket::try_send(socket, &bytes.0, &[file])
}

/// A request as the helper gets it; `None` if it makes no sense.
pub(crate) fn read_request(bytes: &[u8], files: Vec<OwnedFd>) -> Option<(u64, Kind, OwnedFd)> {
    let mut reader = Reader(bytes);
    let known = bytes.len() == REQUEST_BYTES && reader.number()? == MARK;
    let kind = Kind::of(reader.number()?).filter(|_| known)?;
    let id = reader.long()?;
    let [file] = <[OwnedFd; 1]>::try_from(files).ok()?;
    // Of which address, only the longer request says.
    (kind != Kind::UnderlaySocket).then_some((id, kind, file))
}

/// The helper has begun to serve, and says which namespaces it can enter.
pub(crate) fn send_started(socket: BorrowedFd<'_>, enters: Enters) -> io::Result<()> {
    let count = usize::from(enters == Enters::Others);
    seqpacket::send(socket, &header(STARTED, 0, 0, count).0, &[])
}

/// The helper answers.
pub(crate) fn send_answer(
    socket: BorrowedFd<'_>,
    id: u64,
    kind: Kind,
    found: &io::Result<Found>,
) -> io::Result<()> {
    let number = kind.number();
    match found {
        Err(error) => {
            let errno = error.raw_os_error().filter(|e| *e > 0).unwrap_or(libc_eio());
            seqpacket::send(socket, &header(number, id, errno, 0).0, &[])
        }
        Ok(Found::Process(process)) => {
            let identity = process.namespace.identity();
            let cgroup = process.cgroup.as_bytes();
            let cgroup = cgroup.get(..CGROUP_BYTES).unwrap_or(cgroup);
            let mut bytes = header(number, id, 0, cgroup.len());
            bytes.long(identity.device);
            bytes.long(identity.inode);
            bytes.long(process.cookie.unwrap_or(0));
            bytes.number(process.pid.cast_unsigned());
            bytes.number(0);
            process.surroundings.unwrap_or_default().into_iter().for_each(|n| bytes.long(n));
            bytes.0.extend(cgroup);
            bytes.0.resize(PROCESS_BYTES, 0);
            seqpacket::send(socket, &bytes.0, &[process.namespace.as_fd()])
        }
        Ok(Found::Addresses(list)) => {
            let list = list.get(..ADDRESSES_MAX).unwrap_or(list);
            let mut bytes = header(number, id, 0, list.len());
            for address in list {
                bytes.address(address);
            }
            bytes.0.resize(ADDRESSES_BYTES, 0);
            seqpacket::send(socket, &bytes.0, &[])
        }
        Ok(Found::Interfaces(facts)) => {
            let no_identity = NetnsIdentity { device: 0, inode: 0 };
            seqpacket::send(socket, &facts_message(number, id, no_identity, None, facts), &[])
        }
        Ok(Found::Watching) => seqpacket::send(socket, &header(number, id, 0, 0).0, &[]),
        Ok(Found::Socket(file)) => {
            seqpacket::send(socket, &header(number, id, 0, 0).0, &[file.as_fd()])
        }
        Ok(Found::UdpPort(port)) => {
            let (files, senders) = port.parts();
            let mut bytes = header(number, id, 0, senders.len());
            for (port, six) in senders {
                bytes.number(u32::from(port) << 1 | u32::from(six));
            }
            bytes.0.resize(PORT_BYTES, 0);
            seqpacket::send(socket, &bytes.0, &files)
        }
    }
}

/// The watcher says what a namespace has.
pub(crate) fn send_appeared(
    socket: BorrowedFd<'_>,
    identity: NetnsIdentity,
    cookie: Option<u64>,
    facts: &ContainerFacts,
) -> io::Result<()> {
    seqpacket::send(socket, &facts_message(APPEARED, 0, identity, cookie, facts), &[])
}

/// The watcher says that a namespace is gone.
pub(crate) fn send_vanished(socket: BorrowedFd<'_>, identity: NetnsIdentity) -> io::Result<()> {
    let mut bytes = header(VANISHED, 0, 0, 0);
    bytes.identity(identity, None);
    seqpacket::send(socket, &bytes.0, &[])
}

fn facts_message(
    number: u32,
    id: u64,
    identity: NetnsIdentity,
    cookie: Option<u64>,
    facts: &ContainerFacts,
) -> Vec<u8> {
    let interfaces = facts.interfaces.get(..INTERFACES_MAX).unwrap_or(&facts.interfaces);
    let mut bytes = header(number, id, 0, interfaces.len());
    bytes.identity(identity, cookie);
    bytes.text(facts.name.as_deref().unwrap_or_default(), NAME_SLOT_BYTES);
    for at in 0..INTERFACES_MAX {
        let interface = interfaces.get(at);
        let bridge = interface.and_then(|interface| interface.bridge.as_deref());
        bytes.text(interface.map_or("", |interface| &interface.name), INTERFACE_SLOT_BYTES);
        bytes.text(bridge.unwrap_or_default(), INTERFACE_SLOT_BYTES);
        bytes.number(u32::from(interface.is_some_and(|interface| interface.is_up)));
    }
    let of_all = interfaces.iter().zip(0_u32..);
    let addresses: Vec<(IpAddr, u32)> = of_all
        .flat_map(|(interface, at)| interface.addresses.iter().map(move |ip| (*ip, at)))
        .take(CONTAINER_ADDRESSES_MAX)
        .collect();
    bytes.number(u32::try_from(addresses.len()).unwrap_or(0));
    for (ip, at) in addresses {
        let six = match ip {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        bytes.0.extend(six.octets());
        bytes.number(at);
        bytes.number(u32::from(ip.is_ipv4()));
    }
    bytes.0.resize(FACTS_BYTES, 0);
    bytes.0
}

/// The next answer, or `None` if there is none at the moment.
///
/// # Errors
/// `UnexpectedEof` if the helper is gone for good; `InvalidData` for what makes no sense.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Answer>> {
    let mut bytes = vec![0; ADDRESSES_BYTES + 1];
    match seqpacket::receive(socket, &mut bytes, seqpacket::BlockingMode::NonBlocking) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((length, files)) => {
            let answer = bytes.get(..length).and_then(|bytes| read_answer(bytes, files));
            answer.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

pub(crate) fn read_answer(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Answer> {
    let mut reader = Reader(bytes);
    let (mark, number, id) = (reader.number()?, reader.number()?, reader.long()?);
    let (errno, count) = (reader.number()?.cast_signed(), reader.number()? as usize);
    if mark != MARK {
        return None;
    }
    if number == STARTED {
        let fits = bytes.len() == HEADER_BYTES && files.is_empty() && count < 2;
        let enters = if count == 1 { Enters::Others } else { Enters::Own };
        return fits.then_some(Answer::Started { enters });
    }
    if number == VANISHED {
        let fits = bytes.len() == VANISHED_BYTES && files.is_empty();
        let (identity, _) = reader.identity()?;
        return fits.then_some(Answer::Vanished { identity });
    }
    if number == APPEARED {
        let fits = bytes.len() == FACTS_BYTES && files.is_empty();
        let (identity, cookie) = reader.identity()?;
        let facts = reader.facts(count)?;
        return fits.then_some(Answer::Appeared { identity, cookie, facts });
    }
    if number == UNDERLAY_ADDRESSES {
        let states = read_states(bytes).filter(|_| files.is_empty());
        return states.map(Answer::UnderlayAddresses);
    }
    let kind = Kind::of(number)?;
    if errno != 0 {
        let fits = bytes.len() == HEADER_BYTES && files.is_empty() && errno > 0;
        let found = Err(io::Error::from_raw_os_error(errno));
        return fits.then_some(Answer::Found { id, kind, found });
    }
    let found = match kind {
        Kind::Process if bytes.len() == PROCESS_BYTES => {
            let [file] = <[OwnedFd; 1]>::try_from(files).ok()?;
            let namespace = Namespace::received(file).ok()?;
            let (device, inode) = (reader.long()?, reader.long()?);
            let cookie = Some(reader.long()?).filter(|cookie| *cookie != 0);
            let pid = reader.number()?.cast_signed();
            reader.number()?;
            let around = [reader.long()?, reader.long()?, reader.long()?];
            let surroundings = Some(around).filter(|around| !around.contains(&0));
            let identity = namespace.identity();
            if (identity.device, identity.inode) != (device, inode) || pid <= 0 {
                return None;
            }
            let cgroup = String::from_utf8_lossy(reader.0.get(..count)?).into_owned();
            Found::Process(Process { namespace, cookie, pid, surroundings, cgroup })
        }
        Kind::Addresses if bytes.len() == ADDRESSES_BYTES && files.is_empty() => {
            if count > ADDRESSES_MAX {
                return None;
            }
            let list: Option<Vec<Address>> = (0..count).map(|_| reader.address()).collect();
            Found::Addresses(list?)
        }
        Kind::Port | Kind::PspPort if bytes.len() == PORT_BYTES && count <= SENDERS_MAX => {
            let mut senders = Vec::new();
            for _ in 0..count {
                let word = reader.number()?;
                senders.push((u16::try_from(word >> 1).ok()?, word & 1 == 1));
            }
            let port = if kind == Kind::Port { PORT } else { PSP_PORT };
            Found::UdpPort(UdpPort::join(port, files, &senders)?)
        }
        Kind::Interfaces if bytes.len() == FACTS_BYTES && files.is_empty() => {
            reader.identity()?;
            Found::Interfaces(reader.facts(count)?)
        }
        Kind::Watch if bytes.len() == HEADER_BYTES && files.is_empty() => Found::Watching,
        Kind::UnderlaySocket if bytes.len() == HEADER_BYTES => {
            let [file] = <[OwnedFd; 1]>::try_from(files).ok()?;
            Found::Socket(file)
        }
        _ => return None,
    };
    Some(Answer::Found { id, kind, found: Ok(found) })
}

/// EIO, for errors without a number.
fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

impl Writer {
    fn identity(&mut self, identity: NetnsIdentity, cookie: Option<u64>) {
        self.long(identity.device);
        self.long(identity.inode);
        self.long(cookie.unwrap_or(0));
    }

    /// A text that is cut to fit, its length before it.
    fn text(&mut self, text: &str, slot: usize) {
        let most = text.len().min(slot - 5);
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let whole = self.0.len() + slot;
        self.number(u32::try_from(end).unwrap_or(0));
        self.0.extend(&text.as_bytes()[..end]);
        self.0.resize(whole, 0);
    }

    fn address(&mut self, address: &Address) {
        let six = match address.ip {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        let scope = match address.scope {
            AddressScope::Global => 0,
            AddressScope::Link => 1,
            AddressScope::Host => 2,
        };
        let four = u32::from(address.ip.is_ipv4());
        self.0.extend(six.octets());
        self.number(address.interface);
        self.number(address.mtu);
        let (up, loopback) = (u32::from(address.is_up), u32::from(address.is_loopback));
        self.number(scope | up << 2 | loopback << 3 | four << 4);
    }
}

impl Reader<'_> {
    fn identity(&mut self) -> Option<(NetnsIdentity, Option<u64>)> {
        let (device, inode) = (self.long()?, self.long()?);
        let cookie = Some(self.long()?).filter(|cookie| *cookie != 0);
        Some((NetnsIdentity { device, inode }, cookie))
    }

    /// A text; `None` within: it is empty.
    fn text(&mut self, slot: usize) -> Option<Option<String>> {
        let (first, rest) = self.0.split_at_checked(slot)?;
        self.0 = rest;
        let mut inner = Reader(first);
        let length = inner.number()? as usize;
        let text = String::from_utf8_lossy(inner.0.get(..length)?).into_owned();
        Some(Some(text).filter(|text| !text.is_empty()))
    }

    fn facts(&mut self, count: usize) -> Option<ContainerFacts> {
        let name = self.text(NAME_SLOT_BYTES)?;
        let mut interfaces = Vec::new();
        for at in 0..INTERFACES_MAX {
            let name = self.text(INTERFACE_SLOT_BYTES)?.unwrap_or_default();
            let (bridge, is_up) = (self.text(INTERFACE_SLOT_BYTES)?, self.number()? != 0);
            if at < count {
                let addresses = Vec::new();
                interfaces.push(ContainerInterface { name, is_up, bridge, addresses });
            }
        }
        let addresses = self.number()? as usize;
        if count > INTERFACES_MAX || addresses > CONTAINER_ADDRESSES_MAX {
            return None;
        }
        for _ in 0..addresses {
            let six = Ipv6Addr::from(self.take::<16>()?);
            let (at, four) = (self.number()? as usize, self.number()?);
            let ip = match four {
                0 => IpAddr::V6(six),
                1 => IpAddr::V4(six.to_ipv4_mapped()?),
                _ => return None,
            };
            interfaces.get_mut(at)?.addresses.push(ip);
        }
        Some(ContainerFacts { name, interfaces })
    }

    fn address(&mut self) -> Option<Address> {
        let six = Ipv6Addr::from(self.take::<16>()?);
        let (interface, mtu, bits) = (self.number()?, self.number()?, self.number()?);
        let ip = match bits >> 4 {
            0 => IpAddr::V6(six),
            1 => IpAddr::V4(six.to_ipv4_mapped()?),
            _ => return None,
        };
        let scope = match bits & 3 {
            0 => AddressScope::Global,
            1 => AddressScope::Link,
            2 => AddressScope::Host,
            _ => return None,
        };
        let (is_up, is_loopback) = (bits & 4 != 0, bits & 8 != 0);
        Some(Address { ip, interface, scope, is_up, is_loopback, mtu })
    }
}

#[cfg(test)]
mod tests;
