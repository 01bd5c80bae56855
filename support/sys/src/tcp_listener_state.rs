//! Reads TCP listeners: their options, and which one the kernel would choose.
//!
//! That is not found out from addresses: which of several listens more exactly, which takes both
//! families, whose turn it is among those that share a port, is the kernel's affair. So it is asked
//! (sock_diag(7)), as if there were a connect.

use crate::tcp_connection_state::{
    ANSWER, SO_BINDTOIFINDEX, SockDiag, TcpAddresses, address, is_tcp, namespace, option, question,
};
use rustix::net::{getsockname, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The state of TCP.
const LISTEN: u8 = 10;
/// Whatever its cookie is (`INET_DIAG_NOCOOKIE`).
const ANY: [u8; 8] = [255; 8];
/// The interface by which connections within a network namespace come: its loopback, which is the
/// first in each.
const LOOPBACK: u32 = 1;

/// A listening socket of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpListenerInfo {
    /// Where it listens. Addresses of IPv4 are such.
    pub local: SocketAddr,
    /// Names the socket, and no other one ever.
    pub cookie: u64,
    /// Its network namespace's cookie.
    pub namespace: u64,
    /// It is bound to an interface.
    pub is_bound: bool,
    /// Others may listen at its port, too (`SO_REUSEPORT`).
    pub is_shared: bool,
}

impl TcpListenerInfo {
    /// What a descriptor is for; `None` if it is no socket of TCP that listens. Asks no file
    /// system.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Option<TcpListenerInfo>> {
        let Ok(family) = sockopt::socket_domain(socket) else { return Ok(None) };
        if !is_tcp(family, socket)? || !sockopt::socket_acceptconn(socket)? {
            return Ok(None);
        }
        let Some(local) = address(&getsockname(socket)?) else { return Ok(None) };
        Ok(Some(TcpListenerInfo {
            local,
            cookie: sockopt::socket_cookie(socket)?,
            namespace: namespace(socket)?,
            is_bound: option::<libc::c_int>(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)? != 0,
            is_shared: option::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT)? != 0,
        }))
    }
}

impl SockDiag<'_> {
    /// The cookie of the socket that the kernel would choose for a connection from within the
    /// network namespace to an address of its, if there is a listener. Where several share the port
    /// it is another one each time.
    ///
    /// # Errors
    /// What the kernel says where it cannot be asked.
    pub fn listener(&self, to: SocketAddr) -> io::Result<Option<u64>> {
        let sequence = crate::random::number() as u32;
        let names = TcpAddresses { local: to, remote: nobody(to.ip(), crate::random::number()) };
        let mut answer = [0; ANSWER];
        let question = question(sequence, names, 0, LOOPBACK, ANY);
        let found = self.ask(&question, sequence, &mut answer)?;
        let is_it = answer[17] == LISTEN && answer[20..22] == to.port().to_be_bytes();
        let words = answer[60..68].try_into().unwrap_or([0; 8]);
        Ok(found.filter(|_| is_it).map(|_| cookie(words)))
    }
}

impl SockDiag<'_> {
    /// Whether there is a connection of these names, whatever its state, or there was one until
    /// just now.
    ///
    /// # Errors
    /// What the kernel says where it cannot be asked.
    pub fn has(&self, names: TcpAddresses) -> io::Result<bool> {
        let sequence = crate::random::number() as u32;
        let mut answer = [0; ANSWER];
        let question = question(sequence, names, 0, 0, ANY);
        let found = self.ask(&question, sequence, &mut answer)?.is_some();
        let ports = [names.local, names.remote].map(|end| end.port().to_be_bytes());
        // Without one it is the listener there.
        Ok(found && answer[17] != LISTEN && answer[20..24] == *ports.as_flattened())
    }
}

/// The lower word first.
fn cookie(words: [u8; 8]) -> u64 {
    let [a, b, c, d, e, f, g, h] = words;
    u64::from(u32::from_ne_bytes([a, b, c, d])) | u64::from(u32::from_ne_bytes([e, f, g, h])) << 32
}

/// An address of the same family from which no connection ever comes.
fn nobody(like: IpAddr, number: u64) -> SocketAddr {
    let [port, low, high, ..] = [0, 16, 32].map(|by| (number >> by) as u16);
    let ip = match like {
        // Those of class E.
        IpAddr::V4(_) => {
            let [a, b] = low.to_ne_bytes();
            IpAddr::from(Ipv4Addr::new(240, a, b, high as u8))
        }
        // Those that are discarded (RFC 6666).
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, low, high)),
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};

    fn diagnosis() -> OwnedFd {
        let (protocol, flags) = (Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC);
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap()
    }

    fn of(socket: &impl AsFd) -> TcpListenerInfo {
        TcpListenerInfo::of(socket.as_fd()).unwrap().unwrap()
    }

    /// One more at the port of another, or at any.
    fn listen(at: &str, port: u16, change: impl Fn(&OwnedFd)) -> TcpListener {
        let address: SocketAddr = (at.parse::<IpAddr>().unwrap(), port).into();
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        change(&socket);
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 5).unwrap();
        socket.into()
    }

    #[test]
    fn a_connection_is_found_by_its_names() {
        let listener = listen("127.0.0.1", 0, |_| {});
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, remote) = (one.local_addr().unwrap(), one.peer_addr().unwrap());
        let socket = diagnosis();
        let by = SockDiag::by(socket.as_fd()).unwrap();
        let has = |local, remote| by.has(TcpAddresses { local, remote }).unwrap();
        assert!(has(local, remote) && has(remote, local));
        let other = SocketAddr::new(local.ip(), local.port() ^ 1);
        assert!(!has(remote, other), "it is who listens that the kernel tells of");
        assert!(!has(other, remote));
        let elsewhere = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 9).into(), local.port());
        assert!(!has(elsewhere, remote));
    }

    fn reaches(to: &str, port: u16) -> Option<u64> {
        let socket = diagnosis();
        let by = SockDiag::by(socket.as_fd()).unwrap();
        by.listener((to.parse::<IpAddr>().unwrap(), port).into()).unwrap()
    }

    #[test]
    fn the_registered_listener_is_the_one_the_kernel_would_choose() {
        for (at, to, elsewhere) in [
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("0.0.0.0", "127.0.0.2", "::1"),
            ("::1", "::1", "127.0.0.1"),
            ("::ffff:127.0.0.3", "127.0.0.3", "127.0.0.1"),
        ] {
            let listener = listen(at, 0, |_| {});
            let said = of(&listener);
            let port = said.local.port();
            assert!(!said.is_bound && port != 0);
            assert_eq!(reaches(to, port), Some(said.cookie), "{at} {to}");
            assert_eq!(reaches(elsewhere, port), None, "{at} {elsewhere}");
            // A connected socket is no listener.
            let near = TcpStream::connect((to, port)).unwrap();
            assert_eq!(TcpListenerInfo::of(near.as_fd()).unwrap(), None);
            assert_eq!(reaches(to, port), Some(said.cookie));
            assert_eq!(reaches(to, near.local_addr().unwrap().port()), None);
            drop(listener);
            assert_eq!(reaches(to, port), None, "{at}: it is closed");
        }
    }

    #[test]
    fn one_of_both_families_is_reached_by_both_if_it_wants() {
        for only in [false, true] {
            let v6only = |socket: &OwnedFd| sockopt::set_ipv6_v6only(socket, only).unwrap();
            let listener = listen("::", 0, v6only);
            let said = of(&listener);
            assert_eq!(reaches("::1", said.local.port()), Some(said.cookie));
            let by_the_other = (!only).then_some(said.cookie);
            assert_eq!(reaches("127.0.0.1", said.local.port()), by_the_other);
        }
    }

    /// The listener with the most exact address, with the library or without, is the one that is
    /// reached.
    #[test]
    fn the_more_exact_one_is_reached_and_those_that_share_a_port_in_turn() {
        let share = |socket: &OwnedFd| sockopt::set_socket_reuseport(socket, true).unwrap();
        let any = listen("0.0.0.0", 0, share);
        let port = of(&any).local.port();
        let exact = listen("127.0.0.1", port, share);
        assert_eq!(reaches("127.0.0.1", port), Some(of(&exact).cookie));
        assert_eq!(reaches("127.0.0.2", port), Some(of(&any).cookie));
        let another = listen("127.0.0.1", port, share);
        let both = BTreeSet::from([of(&exact).cookie, of(&another).cookie]);
        let found: BTreeSet<u64> = (0..200).filter_map(|_| reaches("127.0.0.1", port)).collect();
        assert_eq!(found, both);
    }

    #[test]
    fn what_does_not_listen_is_none() {
        let (one, _other) = crate::seqpacket::pair().unwrap();
        let file = crate::memfd::create("test", 4096).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let idle = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let udp = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).unwrap();
        for none in [one.as_fd(), file.as_fd(), idle.as_fd(), udp.as_fd()] {
            assert_eq!(TcpListenerInfo::of(none).unwrap(), None);
        }
    }
}
