//! Recognises raw TCP sockets, whose owner may read all traffic of its network namespace.

use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::io;
use std::os::fd::BorrowedFd;

use crate::tcp_connection_state;

/// Whether it is one of that network namespace. To make one takes `CAP_NET_RAW` there (raw(7)).
///
/// # Errors
/// It is no socket.
pub fn is_raw_socket_of(namespace: u64, socket: BorrowedFd<'_>) -> io::Result<bool> {
    let is_ip =
        [AddressFamily::INET, AddressFamily::INET6].contains(&sockopt::socket_domain(socket)?);
    Ok(is_ip
        && sockopt::socket_type(socket)? == SocketType::RAW
        && sockopt::socket_protocol(socket)? == Some(ipproto::TCP)
        && tcp_connection_state::namespace(socket)? == namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socket;
    use std::os::fd::AsFd;

    #[test]
    fn unprivileged_sockets_are_not_raw() {
        for (family, kind) in [
            (AddressFamily::INET, SocketType::STREAM),
            (AddressFamily::INET6, SocketType::DGRAM),
            (AddressFamily::NETLINK, SocketType::RAW),
            (AddressFamily::UNIX, SocketType::STREAM),
        ] {
            let socket = socket(family, kind, None).unwrap();
            let namespace = tcp_connection_state::namespace(socket.as_fd()).unwrap_or(0);
            assert!(!is_raw_socket_of(namespace, socket.as_fd()).unwrap(), "{family:?} {kind:?}");
        }
        let raw = |of| socket(AddressFamily::INET, SocketType::RAW, Some(of));
        let (Ok(raw), Ok(other)) = (raw(ipproto::TCP), raw(ipproto::ICMP)) else {
            return eprintln!("may not make a raw socket: one is not looked at");
        };
        let namespace = tcp_connection_state::namespace(raw.as_fd()).unwrap();
        assert!(is_raw_socket_of(namespace, raw.as_fd()).unwrap());
        assert!(!is_raw_socket_of(namespace + 1, raw.as_fd()).unwrap());
        assert!(!is_raw_socket_of(namespace, other.as_fd()).unwrap(), "that reads no TCP");
    }
}
