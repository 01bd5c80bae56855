//! Opens UDP sockets in the calling thread's network namespace, one for each IP version; or a port
//! that another process has (`proxied_udp.rs`), which is watched in the same way.

use crate::proxied_udp::{Closer, ProxiedHeader, ProxiedSocket};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
    sockopt,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Budget: bytes of datagrams that may wait to be read, if we may have so much; the kernel counts
/// its own overhead as well, and takes memory only for what waits. Unreliable messages have no
/// other place to wait in while our thread is not scheduled, which may last a dozen milliseconds.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Bytes of datagrams that may wait to be sent, if we may have so much.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Source ports of RoCE v2 (annex A17.3.1 of the InfiniBand specification): entropy for routers.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;
/// Hops that a datagram to a multicast group may take, as many as others.
const GROUP_HOPS: u32 = 64;
/// Ports tried before giving up: others use that range too.
const SOURCE_TRIES: u32 = 64;

/// One port, on every address of the namespace, and sockets to send from.
#[derive(Debug)]
pub struct UdpPort {
    number: u16,
    way: PortBackend,
    senders: Vec<UdpSender>,
}

#[derive(Debug)]
enum PortBackend {
    /// `six`: `None` where the kernel has no IPv6.
    Sockets { four: OwnedFd, six: Option<OwnedFd> },
    /// By the process that has the network: a virtual machine's agent.
    Carried(ProxiedSocket),
}

/// A socket that is only sent from.
#[derive(Debug)]
pub struct UdpSender {
    /// Not read from: what arrives takes no memory.
    pub socket: OwnedFd,
    /// The source port that it is bound to.
    pub number: u16,
    /// It is for IPv6; otherwise for IPv4.
    pub is_ipv6: bool,
}

impl UdpSender {
    /// Less than half of the send buffer is used, as [`UdpPort::is_half_free`].
    #[must_use]
    pub fn is_half_free(&self) -> bool {
        crate::socket_drops::is_half_free(self.socket.as_fd())
    }
}

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// A socket that many datagrams can wait in, either way; with privilege beyond the system's usual
/// limit.
fn receiver(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = socket(family)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// A socket of one port of one address of the calling thread's namespace. It hears other hosts
/// only, unless the address is a loopback one.
///
/// # Errors
/// `EADDRINUSE`, also if somebody has the port on every address; `EADDRNOTAVAIL` if the namespace
/// does not have the address.
pub fn bound_to(address: SocketAddr) -> io::Result<OwnedFd> {
    bound(address, false)
}

/// Binds to an address that the namespace may get later, or lose for a while: what is sent
/// meanwhile is lost.
///
/// # Errors
/// `EADDRINUSE` as above.
pub fn bound_early_to(address: SocketAddr) -> io::Result<OwnedFd> {
    bound(address, true)
}

fn bound(address: SocketAddr, is_early: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = receiver(family)?;
    match family {
        AddressFamily::INET => sockopt::set_ip_freebind(&socket, is_early)?,
        _ => sockopt::set_ipv6_freebind(&socket, is_early)?,
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
        crate::udp_zero_checksum::allow_zero_checksum(socket.as_fd())?;
    }
    if !address.ip().is_loopback() {
        crate::udp_from_other_hosts_only::hear_others_only(socket.as_fd())?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

/// A socket bound to some free source port.
fn sender(family: AddressFamily) -> io::Result<UdpSender> {
    let socket = socket(family)?;
    let six = family == AddressFamily::INET6;
    // It is not read: what is sent to it shall take no memory.
    sockopt::set_socket_recv_buffer_size(&socket, 1)?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
    match six {
        true => sockopt::set_ipv6_multicast_hops(&socket, GROUP_HOPS)?,
        false => sockopt::set_ip_multicast_ttl(&socket, GROUP_HOPS)?,
    }
    if six {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    let range = u64::from(SOURCE_PORTS.end() - SOURCE_PORTS.start()) + 1;
    for _ in 0..SOURCE_TRIES {
        let number = SOURCE_PORTS.start() + (crate::random::number() % range) as u16;
        let bound = match six {
            true => bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, number, 0, 0)),
            false => bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, number)),
        };
        match bound {
            Ok(()) => return Ok(UdpSender { socket, number, is_ipv6: six }),
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::ADDRINUSE.into())
}

impl UdpPort {
    /// Opens port `number` for IPv4 and, where there is any, IPv6.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process in the namespace has it.
    pub fn open(number: u16) -> io::Result<UdpPort> {
        let four = receiver(AddressFamily::INET)?;
        bind(&four, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, number))?;
        let six = match receiver(AddressFamily::INET6) {
            Ok(six) => {
                sockopt::set_ipv6_v6only(&six, true)?;
                crate::udp_zero_checksum::allow_zero_checksum(six.as_fd())?;
                match bind(&six, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, number, 0, 0)) {
                    Ok(()) => Some(six),
                    Err(Errno::ADDRNOTAVAIL) => None,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(_) => None,
        };
        let mut senders = vec![sender(AddressFamily::INET)?];
        if six.is_some() {
            senders.push(sender(AddressFamily::INET6)?);
        }
        Ok(UdpPort { number, way: PortBackend::Sockets { four, six }, senders })
    }

    /// One that another process has, which is given [the other end](Carried::far). `close`: is
    /// given ours when the port is dropped, if descriptors of that process may be in it.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub fn carried_by_another(number: u16, close: Closer) -> io::Result<UdpPort> {
        Ok(UdpPort {
            number,
            way: PortBackend::Carried(ProxiedSocket::new(close)?),
            senders: Vec::new(),
        })
    }

    /// Its number, which datagrams are sent to as well.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// How it is carried, if another process has it.
    pub fn carried(&self) -> Option<&ProxiedSocket> {
        match &self.way {
            PortBackend::Carried(carried) => Some(carried),
            PortBackend::Sockets { .. } => None,
        }
    }

    /// The socket for addresses like this one.
    fn socket_of(&self, to: IpAddr) -> io::Result<&OwnedFd> {
        match (&self.way, to) {
            (PortBackend::Sockets { four, .. }, IpAddr::V4(_)) => Ok(four),
            (PortBackend::Sockets { six: Some(socket), .. }, IpAddr::V6(_)) => Ok(socket),
            (PortBackend::Sockets { .. }, IpAddr::V6(_)) => Err(Errno::AFNOSUPPORT.into()),
            (PortBackend::Carried(_), _) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// All of it as descriptors, in an order of our own, and the senders' ports.
    pub fn parts(&self) -> (Vec<BorrowedFd<'_>>, Vec<(u16, bool)>) {
        let senders = self.senders.iter().map(|sender| sender.socket.as_fd());
        let ports = self.senders.iter().map(|sender| (sender.number, sender.is_ipv6)).collect();
        (self.sockets().chain(senders).collect(), ports)
    }

    /// What [`parts`](Self::parts) took apart; `None` if that is not what this is.
    pub fn join(number: u16, files: Vec<OwnedFd>, senders: &[(u16, bool)]) -> Option<UdpPort> {
        let receivers = files.len().checked_sub(senders.len())?;
        let mut files = files.into_iter();
        let four = files.next()?;
        let six = match receivers {
            1 => None,
            2 => Some(files.next()?),
            _ => return None,
        };
        let senders = senders.iter().zip(files);
        let senders =
            senders.map(|(&(number, six), socket)| UdpSender { socket, number, is_ipv6: six });
        Some(UdpPort {
            number,
            way: PortBackend::Sockets { four, six },
            senders: senders.collect(),
        })
    }

    /// The sockets to send from.
    pub fn senders(&self) -> &[UdpSender] {
        &self.senders
    }

    /// The sockets, for watching.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (first, second) = match &self.way {
            PortBackend::Sockets { four, six } => (four.as_fd(), six.as_ref().map(AsFd::as_fd)),
            PortBackend::Carried(carried) => (carried.socket(), None),
        };
        std::iter::once(first).chain(second)
    }

    /// Datagrams that were lost in front of the sockets so far, modulo 2^32: mostly since the
    /// receive queue was full. None where the kernel, or the proxy, does not say.
    pub fn dropped(&self) -> u32 {
        let each = |socket| crate::socket_drops::count(socket).unwrap_or_default();
        self.sockets().map(each).fold(0, u32::wrapping_add)
    }

    /// Bytes of the kernel's memory that datagrams take which wait to be received. None where the
    /// kernel, or the proxy, does not say.
    pub fn waiting(&self) -> u32 {
        let each = |socket| crate::socket_drops::waiting(socket).unwrap_or_default();
        self.sockets().map(each).max().unwrap_or_default()
    }

    /// Sends to the same port of `to`, through `interface` if the address is link-local. `from`:
    /// which of a machine's addresses it comes from; elsewhere that is the kernel's to choose.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EPERM` (a packet filter) and the like; `EAFNOSUPPORT` without IPv6.
    pub fn send(
        &self,
        bytes: &[u8],
        from: Option<IpAddr>,
        to: IpAddr,
        interface: u32,
    ) -> io::Result<()> {
        self.send_to_port(bytes, from, (to, self.number), interface)
    }

    /// As [`send`](Self::send), to another port of `to`.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn send_to_port(
        &self,
        bytes: &[u8],
        from: Option<IpAddr>,
        (to, port): (IpAddr, u16),
        interface: u32,
    ) -> io::Result<()> {
        if let PortBackend::Carried(carried) = &self.way {
            let head = ProxiedHeader { local: from, remote: to, interface, port, ecn: 0 };
            carried.send(&head, bytes);
            return Ok(());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let socket = self.socket_of(to)?;
        match to {
            IpAddr::V4(ip) => sendto(socket, bytes, flags, &SocketAddrV4::new(ip, port))?,
            IpAddr::V6(ip) => {
                sendto(socket, bytes, flags, &SocketAddrV6::new(ip, port, 0, interface))?
            }
        };
        Ok(())
    }

    /// Less than half of the send buffer of the port is used. The kernel keeps datagrams to a
    /// neighbour that it asks the network for, for seconds if there is none.
    #[must_use]
    pub fn is_half_free(&self, to: IpAddr) -> bool {
        self.socket_of(to).map_or(true, |socket| crate::socket_drops::is_half_free(socket.as_fd()))
    }

    /// Takes what is sent to a multicast group from now on, at `interface`. If that is zero: for
    /// IPv4 where the address `local` is, for IPv6 where the kernel likes.
    ///
    /// # Errors
    /// `ENOBUFS` if that are too many (`net.ipv4.igmp_max_memberships`: 20), `EADDRINUSE` if it
    /// does already, `ENODEV` without such an interface, `EAFNOSUPPORT` without IPv6, `EOPNOTSUPP`
    /// where another process has the port.
    pub fn join_group(&self, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
        match (group, local) {
            (IpAddr::V4(four_group), IpAddr::V4(local)) => {
                let four = self.socket_of(group)?;
                sockopt::set_ip_add_membership_with_ifindex(four, &four_group, &local, interface)?;
            }
            (IpAddr::V6(six_group), _) => {
                let six = self.socket_of(group)?;
                sockopt::set_ipv6_add_membership(six, &six_group, interface)?;
            }
            _ => return Err(Errno::AFNOSUPPORT.into()),
        }
        Ok(())
    }

    /// Takes it no longer; as [`join_group`](Self::join_group).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it did not.
    pub fn leave_group(&self, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
        match (group, local) {
            (IpAddr::V4(four_group), IpAddr::V4(local)) => {
                let four = self.socket_of(group)?;
                sockopt::set_ip_drop_membership_with_ifindex(four, &four_group, &local, interface)?;
            }
            (IpAddr::V6(six_group), _) => {
                let six = self.socket_of(group)?;
                sockopt::set_ipv6_drop_membership(six, &six_group, interface)?;
            }
            _ => return Err(Errno::AFNOSUPPORT.into()),
        }
        Ok(())
    }

    /// The next datagram of any socket, cut to `buffer`; `None` if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        self.sockets().find_map(|socket| {
            let (length, _) = recv(socket, &mut *buffer, RecvFlags::DONTWAIT).ok()?;
            Some(length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_to_ourselves() {
        // Any free port: the kernel's choice is not available to a port that both versions share.
        let port = (40_000..41_000).find_map(|number| UdpPort::open(number).ok()).unwrap();
        assert!(UdpPort::open(port.number).is_err(), "taken");
        for home in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            if port.socket_of(home).is_err() {
                continue;
            }
            assert_eq!(port.receive(&mut [0; 8]), None);
            port.send(b"hello", None, home, 0).unwrap();
            let arrived = |socket| {
                let second = std::time::Duration::from_millis(500);
                crate::eventfd::readable(socket, Some(second)).unwrap()
            };
            assert!(port.sockets().any(arrived));
            let mut buffer = [0; 8];
            assert_eq!(port.receive(&mut buffer), Some(5));
            assert_eq!(&buffer[..5], b"hello");
        }
    }
}
