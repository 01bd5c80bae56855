//! Wraps the kernel's socket below a datagram socket: it has the address, and carries what goes to
//! peers that are not known yet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

fn failed(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error().unsigned_abs())
}

/// Of which addresses a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpFamily {
    Four,
    Six,
}

impl IpFamily {
    /// That of an address.
    pub(crate) fn of(address: SocketAddr) -> IpFamily {
        if address.is_ipv4() { IpFamily::Four } else { IpFamily::Six }
    }
}

fn new(family: IpFamily) -> Result<OwnedFd, Errno> {
    let family = match family {
        IpFamily::Four => AddressFamily::INET,
        IpFamily::Six => AddressFamily::INET6,
    };
    rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)
}

fn name(socket: impl AsFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(socket).map_err(failed)?).map_err(failed)
}

/// A socket of the kernel's.
pub(crate) struct KernelSocket {
    socket: OwnedFd,
    family: IpFamily,
}

impl KernelSocket {
    pub(crate) fn new(family: IpFamily) -> Result<KernelSocket, Errno> {
        Ok(KernelSocket { socket: new(family)?, family })
    }

    /// Its number, which is also the program's number of the whole.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn family(&self) -> IpFamily {
        self.family
    }

    pub(crate) fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        rustix::net::bind(&self.socket, &to).map_err(failed)
    }

    /// Has a peer from now on, or none any more: returns it, as the kernel has understood it.
    pub(crate) fn connect(&self, to: Option<SocketAddr>) -> Result<Option<SocketAddr>, Errno> {
        let Some(to) = to else {
            rustix::net::connect_unspec(&self.socket).map_err(failed)?;
            return Ok(None);
        };
        rustix::net::connect(&self.socket, &to).map_err(failed)?;
        let peer = rustix::net::getpeername(&self.socket).map_err(failed)?;
        Ok(Some(peer.and_then(|peer| SocketAddr::try_from(peer).ok()).unwrap_or(to)))
    }

    /// From where what it sends comes: it has a port from then on.
    pub(crate) fn source(&self, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let mut own = name(&self.socket)?;
        if own.port() == 0 {
            let any: IpAddr = match self.family {
                IpFamily::Six => Ipv6Addr::UNSPECIFIED.into(),
                IpFamily::Four => Ipv4Addr::UNSPECIFIED.into(),
            };
            self.bind((any, 0).into())?;
            own = name(&self.socket)?;
        }
        if own.ip().is_unspecified() {
            let asked = new(self.family)?;
            rustix::net::connect(&asked, &to).map_err(failed)?;
            let port = own.port();
            own = name(&asked)?;
            own.set_port(port);
        }
        Ok(own)
    }

    /// Sends one datagram through the kernel's UDP; `EAGAIN` if it may not wait for room.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        to: SocketAddr,
        mode: BlockingMode,
    ) -> Result<(), Errno> {
        let flags = match mode {
            BlockingMode::Blocking => SendFlags::NOSIGNAL,
            BlockingMode::NonBlocking => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        };
        rustix::net::sendto(&self.socket, bytes, flags, &to).map(drop).map_err(failed)
    }

    /// What has come, its length, and its sender. It never waits.
    ///
    /// # Errors
    /// `EAGAIN`: nothing. Others: what became of what was sent.
    pub(crate) fn receive(&self, bytes: &mut [u8]) -> Result<(usize, SocketAddr), Errno> {
        let flags = RecvFlags::DONTWAIT;
        let (count, _, from) = rustix::net::recvfrom(&self.socket, bytes, flags).map_err(failed)?;
        let from = from.and_then(|from| SocketAddr::try_from(from).ok()).ok_or(Errno::EPROTO)?;
        Ok((count, from))
    }
}
