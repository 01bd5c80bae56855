//! Encodes what the daemon wants of underlay addresses: those of policies on interfaces, and what
//! has become of them; and sockets.

use super::message_fields::{HEADER_BYTES, MARK, Reader, Writer, header};
use omniverb_sys::seqpacket;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Budget: addresses of policies that one host may have.
pub const UNDERLAY_ADDRESSES_MAX: usize = 256;

/// The number of a request for addresses, and of what is said of them unasked.
pub(super) const UNDERLAY_ADDRESSES: u32 = 9;
/// That of a request for a socket, and of its answer.
pub(super) const UNDERLAY_SOCKET: u32 = 10;
const IP_BYTES: usize = 16;
const STATE_BYTES: usize = IP_BYTES + 4;
/// Bytes of the longest request.
pub(crate) const WANTED_BYTES_MAX: usize = HEADER_BYTES + UNDERLAY_ADDRESSES_MAX * 2 * IP_BYTES;
/// Bytes of what is said of the most.
pub(crate) const STATES_BYTES_MAX: usize = HEADER_BYTES + UNDERLAY_ADDRESSES_MAX * STATE_BYTES;

/// Addresses that were wanted. 0: the host has it; otherwise an error of the kernel's, as `EPERM`,
/// or `EADDRNOTAVAIL` if no interface has the address that it is to be beside. Also addresses that
/// are not wanted any more and could not be removed.
pub type AddressState = BTreeMap<IpAddr, i32>;

/// Whether an interface of a host can have this address, so that it can be one of an underlay.
#[must_use]
pub fn is_of_a_host(ip: IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(four) => four.is_broadcast(),
        // A link-local one needs an interface besides; a mapped one is an IPv4 address.
        IpAddr::V6(six) => six.is_unicast_link_local() || six.to_ipv4_mapped().is_some(),
    };
    !is_special && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

/// Whether a namespace has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// As long as it has a socket: without it there is none to be had.
    Present,
    /// It is added about now, and may be lost for a while: the socket is there before.
    Added,
}

/// A socket of UDP port 4791 at an underlay address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnderlaySocket {
    /// What it is bound to.
    pub ip: IpAddr,
    /// Whether the namespace has it.
    pub presence: Presence,
}

/// Bytes of a request for a socket.
pub(crate) const SOCKET_REQUEST_BYTES: usize = 16 + IP_BYTES + 4;

/// Asks for a socket in a namespace, as [`request`](super::request) does for other things.
///
/// # Errors
/// `WouldBlock` if the helper has not taken earlier requests yet, `EPIPE` if it is gone.
pub fn request_socket(
    socket: BorrowedFd<'_>,
    id: u64,
    wanted: UnderlaySocket,
    namespace: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut bytes = Writer::default();
    bytes.number(MARK);
    bytes.number(UNDERLAY_SOCKET);
    bytes.long(id);
    bytes.ip(wanted.ip);
    bytes.number(u32::from(wanted.presence == Presence::Added));
    seqpacket::try_send(socket, &bytes.0, &[namespace])
}

/// A request for a socket as the helper gets it; `None` if it makes no sense, or is another.
pub(crate) fn read_socket_request(
    bytes: &[u8],
    files: &mut Vec<OwnedFd>,
) -> Option<(u64, UnderlaySocket, OwnedFd)> {
    let mut reader = Reader(bytes);
    let is_one = bytes.len() == SOCKET_REQUEST_BYTES
        && reader.number()? == MARK
        && reader.number()? == UNDERLAY_SOCKET;
    let (id, ip) = (reader.long().filter(|_| is_one)?, reader.ip()?);
    let presence = match reader.number()? {
        0 => Presence::Present,
        1 => Presence::Added,
        _ => return None,
    };
    let fits = files.len() == 1 && is_of_a_host(ip);
    Some((id, UnderlaySocket { ip, presence }, files.pop().filter(|_| fits)?))
}

/// Has interfaces of a namespace get these addresses, and no others: each the one that has another
/// address. What is beyond [`UNDERLAY_ADDRESSES_MAX`] is left out.
///
/// # Errors
/// `WouldBlock` if the helper has not taken earlier requests yet, `EPIPE` if it is gone.
pub fn want_addresses(
    socket: BorrowedFd<'_>,
    namespace: BorrowedFd<'_>,
    wanted: &BTreeMap<IpAddr, IpAddr>,
) -> io::Result<()> {
    let count = wanted.len().min(UNDERLAY_ADDRESSES_MAX);
    let mut bytes = header(UNDERLAY_ADDRESSES, 0, 0, count);
    for (ip, beside) in wanted.iter().take(count) {
        bytes.ip(*ip);
        bytes.ip(*beside);
    }
    seqpacket::try_send(socket, &bytes.0, &[namespace])
}

/// A request as the helper gets it; `None` if it makes no sense, or is another.
pub(crate) fn read_wanted(
    bytes: &[u8],
    files: &mut Vec<OwnedFd>,
) -> Option<(OwnedFd, BTreeMap<IpAddr, IpAddr>)> {
    let mut reader = Reader(bytes);
    let count = reader.head(UNDERLAY_ADDRESSES)?;
    let fits = bytes.len() == HEADER_BYTES + count * 2 * IP_BYTES && files.len() == 1;
    if count > UNDERLAY_ADDRESSES_MAX || !fits {
        return None;
    }
    let all = (0..count).map(|_| Some((reader.ip()?, reader.ip()?)));
    let wanted: BTreeMap<_, _> = all.collect::<Option<_>>()?;
    let is_sensible = wanted.len() == count && wanted.keys().all(|ip| is_of_a_host(*ip));
    is_sensible.then_some((files.pop()?, wanted))
}

/// The helper says what has become of addresses.
pub(crate) fn send_states(socket: BorrowedFd<'_>, states: &AddressState) -> io::Result<()> {
    let mut bytes = header(UNDERLAY_ADDRESSES, 0, 0, states.len());
    for (ip, state) in states {
        bytes.ip(*ip);
        bytes.number(state.cast_unsigned());
    }
    seqpacket::send(socket, &bytes.0, &[])
}

/// What the helper says of addresses; `None` if it makes no sense, or is another message.
pub(crate) fn read_states(bytes: &[u8]) -> Option<AddressState> {
    let mut reader = Reader(bytes);
    let count = reader.head(UNDERLAY_ADDRESSES)?;
    if count > UNDERLAY_ADDRESSES_MAX || bytes.len() != HEADER_BYTES + count * STATE_BYTES {
        return None;
    }
    let all = (0..count).map(|_| Some((reader.ip()?, reader.number()?.cast_signed())));
    all.collect::<Option<AddressState>>().filter(|all| all.values().all(|state| *state >= 0))
}

impl Writer {
    fn ip(&mut self, ip: IpAddr) {
        let six = match ip {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        self.0.extend(six.octets());
    }
}

impl Reader<'_> {
    /// The count of a message with this number.
    fn head(&mut self, number: u32) -> Option<usize> {
        let fits = self.number()? == MARK && self.number()? == number;
        let (id, errno, count) = (self.long()?, self.number()?, self.number()?);
        (fits && id == 0 && errno == 0).then_some(count as usize)
    }

    fn ip(&mut self) -> Option<IpAddr> {
        Some(Ipv6Addr::from(self.take::<IP_BYTES>()?).to_canonical())
    }
}
