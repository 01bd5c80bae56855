//! Reads the state of TCP connections: own sockets, and any by the kernel's tables.
//!
//! A socket that a process sent proves that the process had it then. Whether it still has the
//! connection, and not another socket by the same names, is known by asking the kernel
//! (sock_diag(7)) for the socket of those names: its cookie is never given again.
#![expect(unsafe_code)]
// UNSAFETY: socket options that rustix does not offer.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketType, getpeername, getsockname,
    ipproto, recvfrom, send, sockopt,
};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const SO_NETNS_COOKIE: libc::c_int = 71;
pub(crate) const SO_BINDTOIFINDEX: libc::c_int = 62;
const NETLINK_SOCK_DIAG: u32 = 4;
/// States of TCP in which both ends may send.
const ESTABLISHED: u8 = 1;
/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST`.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
/// `INET_DIAG_INFO`, and how it is asked for.
const INFORMATION: u16 = 2;
const WITH_INFORMATION: u8 = 1 << (INFORMATION - 1);
/// Bytes of an answer up to the end of `struct inet_diag_msg`, where its attributes begin.
const FOUND: usize = 88;
/// Bytes of a whole one: that of `struct tcp_info`, and others that are never asked for.
pub(crate) const ANSWER: usize = 1024;
/// Messages of a netlink socket that are looked at for one answer: its owner may have caused more.
const LOOKS: usize = 16;

/// Both names of a connection, as one end has them. Addresses of IPv4 are such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpAddresses {
    /// Of the end whose socket it is.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
}

impl TcpAddresses {
    /// As the other end has them.
    #[must_use]
    pub fn swapped(self) -> TcpAddresses {
        TcpAddresses { local: self.remote, remote: self.local }
    }
}

/// A connected socket of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConnection {
    /// The names of its ends.
    pub names: TcpAddresses,
    /// Names the socket, and no other one ever.
    pub cookie: u64,
    /// Its network namespace's cookie.
    pub namespace: u64,
    /// It is bound to an interface.
    pub is_bound: bool,
}

/// What has passed at one end of a connection, as `TCP_INFO` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpTraffic {
    /// Bytes that were sent, each once.
    pub sent: u64,
    /// Of these, how many the other end has acknowledged; at the end that connected one more.
    pub acknowledged: u64,
    /// Bytes that have come, in order.
    pub received: u64,
    /// How long ago bytes were sent last, or the connection was made, in milliseconds.
    pub sent_ago: u32,
    /// The same of bytes that came.
    pub received_ago: u32,
    /// How long the way there and back is, in microseconds.
    pub round_trip: u32,
    /// What both ends have agreed on: `TCPI_OPT_*`.
    pub options: u8,
    /// By how many bits this end's windows are scaled, as they are sent and as they come.
    pub scales: [u8; 2],
}

impl TcpTraffic {
    /// From a `struct tcp_info`, as long as it was with Linux 4.19 at least.
    fn of(bytes: &[u8]) -> Option<TcpTraffic> {
        let bytes: &[u8; 216] = bytes.get(..216)?.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or([0; 4]));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or([0; 8]));
        Some(TcpTraffic {
            sent: long(200).wrapping_sub(long(208)),
            acknowledged: long(120),
            received: long(128),
            sent_ago: word(44),
            received_ago: word(52),
            round_trip: word(68),
            options: bytes[5],
            scales: [bytes[6] >> 4, bytes[6] & 15],
        })
    }
}

pub(crate) fn option<T: Copy + Default>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::new(T::default());
    let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let to = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes into `value`, which has that many.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut length) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: used with integers only, and it was initialised before.
    Ok(unsafe { value.assume_init() })
}

/// Whether a socket of a family is one of TCP.
pub(crate) fn is_tcp(family: AddressFamily, socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(matches!(family, AddressFamily::INET | AddressFamily::INET6)
        && sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_protocol(socket)? == Some(ipproto::TCP))
}

fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl TcpConnection {
    /// What a descriptor is for; `None` if it is no socket of TCP that is connected both ways. Asks
    /// no file system.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<TcpConnection>> {
        let Ok(family) = sockopt::socket_domain(socket) else { return Ok(None) };
        if !is_tcp(family, socket)?
            || option::<u8>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)? != ESTABLISHED
        {
            return Ok(None);
        }
        let names = (getsockname(socket)?, getpeername(socket)?);
        let Some(remote) = names.1 else { return Ok(None) };
        let (Some(local), Some(remote)) = (address(&names.0), address(&remote)) else {
            return Ok(None);
        };
        Ok(Some(TcpConnection {
            names: TcpAddresses { local, remote },
            cookie: sockopt::socket_cookie(socket)?,
            namespace: namespace(socket)?,
            is_bound: option::<libc::c_int>(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)? != 0,
        }))
    }

    /// Whether the kernel still knows it: the socket of these names has this cookie, and may be
    /// sent to.
    ///
    /// # Errors
    /// What the kernel says where it cannot be asked.
    pub fn is_there(&self, by: &SockDiag<'_>) -> io::Result<bool> {
        Ok(self.look(by)?.is_some())
    }

    /// The same, and what has passed; `None`: it is not there.
    ///
    /// # Errors
    /// What the kernel says where it cannot be asked.
    pub fn look(&self, by: &SockDiag<'_>) -> io::Result<Option<TcpTraffic>> {
        let sequence = crate::random::number() as u32;
        let mut answer = [0; ANSWER];
        let found = by.ask(&self.question(sequence), sequence, &mut answer)?;
        let is_it = |_: &usize| answer[17] == ESTABLISHED && self.is_told_of(&answer);
        Ok(found.filter(is_it).and_then(|bytes| traffic(&answer[..bytes])))
    }

    /// Whether an answer (`struct nlmsghdr`, `struct inet_diag_msg`) is about this connection: a
    /// process that asks by the same socket about another one may guess the sequence.
    fn is_told_of(&self, answer: &[u8; ANSWER]) -> bool {
        let port = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
        let ip = |at: usize| -> IpAddr {
            let bytes: [u8; 16] = answer[at..at + 16].try_into().unwrap_or([0; 16]);
            let [a, b, c, d, ..] = bytes;
            match libc::c_int::from(answer[16]) {
                libc::AF_INET => [a, b, c, d].into(),
                _ => IpAddr::from(bytes).to_canonical(),
            }
        };
        let local = SocketAddr::new(ip(24), port(20));
        let remote = SocketAddr::new(ip(40), port(22));
        TcpAddresses { local, remote } == self.names && answer[60..68] == self.cookie_words()
    }

    /// The lower word first.
    fn cookie_words(&self) -> [u8; 8] {
        let words = [self.cookie as u32, (self.cookie >> 32) as u32].map(u32::to_ne_bytes);
        words.concat().try_into().unwrap_or([0; 8])
    }

    fn question(&self, sequence: u32) -> Question {
        question(sequence, self.names, WITH_INFORMATION, 0, self.cookie_words())
    }
}

/// `struct nlmsghdr`, `struct inet_diag_req_v2`.
pub(crate) type Question = [u8; 72];

/// About the socket of these names and this cookie, as seen from an interface.
pub(crate) fn question(
    sequence: u32,
    names: TcpAddresses,
    with: u8,
    interface: u32,
    cookie: [u8; 8],
) -> Question {
    let mut out = [0; 72];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &72_u32.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    let family = match names.local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    put(16, &[family as u8, libc::IPPROTO_TCP as u8, with]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &names.local.port().to_be_bytes());
    put(26, &names.remote.port().to_be_bytes());
    for (at, address) in [(28, names.local.ip()), (44, names.remote.ip())] {
        match address {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    put(60, &interface.to_ne_bytes());
    put(64, &cookie);
    out
}

/// The `struct tcp_info` among the attributes of an answer (netlink(7)).
fn traffic(answer: &[u8]) -> Option<TcpTraffic> {
    let mut rest = answer.get(FOUND..)?;
    while let [length, more, kind, other, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([length, more]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([kind, other]) == INFORMATION {
            return TcpTraffic::of(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// A socket by which the kernel is asked, of whatever maker.
#[derive(Clone, Copy, Debug)]
pub struct SockDiag<'a>(BorrowedFd<'a>);

impl<'a> SockDiag<'a> {
    /// By this one; `None` if it is of another kind. Asks no file system.
    #[must_use]
    pub fn by(socket: BorrowedFd<'a>) -> Option<SockDiag<'a>> {
        let family = sockopt::socket_domain(socket).ok()?;
        let protocol = sockopt::socket_protocol(socket).ok()??;
        let is_one =
            family == AddressFamily::NETLINK && protocol.as_raw().get() == NETLINK_SOCK_DIAG;
        is_one.then_some(SockDiag(socket))
    }

    /// Asks about a socket. How many bytes the kernel has said of that; `None`: there is none.
    pub(crate) fn ask(
        &self,
        question: &Question,
        sequence: u32,
        answer: &mut [u8; ANSWER],
    ) -> io::Result<Option<usize>> {
        send(self.0, question, SendFlags::DONTWAIT)?;
        for _ in 0..LOOKS {
            let (bytes, _, from) = recvfrom(self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
            // Others can send to it; the kernel's own number is 0.
            let is_kernel = from.as_ref().is_some_and(is_kernel);
            let short = |at: usize| u16::from_ne_bytes([answer[at], answer[at + 1]]);
            let word =
                |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap_or([0; 4]));
            if is_kernel && bytes >= 16 && word(8) == sequence {
                let is_found = short(4) == BY_FAMILY && bytes >= FOUND;
                return Ok(is_found.then_some(bytes.min(ANSWER)));
            }
        }
        Ok(None)
    }

    /// The cookie of the network namespace that it asks about.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn namespace(&self) -> io::Result<u64> {
        namespace(self.0.as_fd())
    }
}

/// The cookie of the network namespace that a socket is in. One that was accepted is in that of the
/// socket that connected to it, also if it is one of the unix family.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14, and what else the kernel says.
pub fn namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

pub(crate) fn address(any: &SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(any.clone()).ok().map(plain)
}

fn is_kernel(address: &SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(address.clone()).is_ok_and(|address| address.pid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketFlags, socket_with};
    use std::net::{TcpListener, TcpStream};

    fn diagnosis() -> std::os::fd::OwnedFd {
        let protocol = rustix::net::netlink::SOCK_DIAG;
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
            .unwrap()
    }

    fn check(listening: &str, to: &str) {
        let listener = TcpListener::bind((listening, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let near = TcpStream::connect((to, port)).unwrap();
        let far = listener.accept().unwrap().0;
        assert_eq!(TcpConnection::of(listener.as_fd()).unwrap(), None);
        let [one, other] =
            [&near, &far].map(|end| TcpConnection::of(end.as_fd()).unwrap().unwrap());
        assert_eq!(one.names, other.names.swapped());
        assert!(one.cookie != other.cookie && one.namespace == other.namespace);
        let socket = diagnosis();
        let by = SockDiag::by(socket.as_fd()).unwrap();
        assert_eq!(by.namespace().unwrap(), one.namespace);
        assert!(one.is_there(&by).unwrap() && other.is_there(&by).unwrap());
        // Another cookie is another socket, whatever its names are.
        assert!(!TcpConnection { cookie: one.cookie + 1, ..one }.is_there(&by).unwrap());
        let is_told_of = |connection: &TcpConnection| {
            send(by.0, &one.question(7), SendFlags::empty()).unwrap();
            let mut answer = [0; ANSWER];
            recvfrom(by.0, &mut answer, RecvFlags::empty()).unwrap();
            connection.is_told_of(&answer)
        };
        assert!(is_told_of(&one) && !is_told_of(&other));
        assert!(!is_told_of(&TcpConnection { names: one.names.swapped(), ..one }));
        assert!(!is_told_of(&TcpConnection { cookie: other.cookie, ..one }));
        assert_eq!(rustix::io::write(&near, &[7; 99]), Ok(99));
        let [here, there] = [&one, &other].map(|end| end.look(&by).unwrap().unwrap());
        assert_eq!((here.sent, here.received, there.sent, there.received), (99, 0, 0, 99));
        assert_eq!(here.options, there.options);
        assert_eq!(here.scales, [there.scales[1], there.scales[0]]);
        assert!(here.sent_ago < 1000 && there.received_ago < 1000);
        drop(near);
        assert!(!one.is_there(&by).unwrap());
        assert_eq!(TcpConnection::of(far.as_fd()).unwrap(), None, "its other end has closed");
    }

    #[test]
    fn a_connection_is_known_by_names_and_cookie() {
        check("127.0.0.1", "127.0.0.1");
        check("::1", "::1");
        // An end whose addresses of IPv4 are written as such of IPv6.
        check("::", "127.0.0.1");
    }

    #[test]
    fn what_is_none_is_none() {
        let file = crate::memfd::create("test", 4096).unwrap();
        let (one, _other) = crate::seqpacket::pair().unwrap();
        assert_eq!(TcpConnection::of(file.as_fd()).unwrap(), None);
        assert_eq!(TcpConnection::of(one.as_fd()).unwrap(), None);
        assert!(SockDiag::by(one.as_fd()).is_none() && SockDiag::by(file.as_fd()).is_none());
    }

    #[test]
    fn a_connected_process_is_in_the_namespace_it_came_from() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = std::env::temp_dir().join(format!("omniverb-from-{}", std::process::id()));
        let listener = crate::seqpacket::listen(&path, 0o600).unwrap();
        let ours = namespace(listener.as_fd()).unwrap();
        let there = std::thread::spawn({
            let path = path.clone();
            move || {
                // SAFETY: of this thread only, which ends.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                let socket = crate::seqpacket::connect(&path).unwrap();
                (namespace(socket.as_fd()).unwrap(), socket)
            }
        });
        let (theirs, _socket) = there.join().unwrap();
        let accepted = crate::seqpacket::accept(listener.as_fd()).unwrap().unwrap();
        assert_eq!(namespace(accepted.as_fd()).unwrap(), theirs);
        assert_ne!(ours, theirs);
        std::fs::remove_file(path).unwrap();
    }
}
