//! Holds the sockets of UDP port 4791 at this host's underlay addresses.

use omniverb_wire::PORT;
use quinn_udp::{EcnCodepoint, Transmit, UdpSocketState};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// One of them.
pub(super) struct HostSocket {
    pub(super) address: IpAddr,
    pub(super) socket: OwnedFd,
    pub(super) state: UdpSocketState,
}

/// All of them, by numbers of which each is used once.
#[derive(Default)]
pub(super) struct HostSockets {
    sockets: BTreeMap<u64, HostSocket>,
    last: u64,
}

impl HostSockets {
    /// This is the socket of an address that has none. `watch`: is given it, and its number.
    pub(super) fn add(
        &mut self,
        address: IpAddr,
        socket: OwnedFd,
        watch: impl FnOnce(&OwnedFd, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let state = UdpSocketState::new((&socket).into())?;
        self.last += 1;
        watch(&socket, self.last)?;
        self.sockets.insert(self.last, HostSocket { address, socket, state });
        Ok(())
    }

    pub(super) fn get(&self, number: u64) -> Option<&HostSocket> {
        self.sockets.get(&number)
    }

    /// An address has no socket any more.
    pub(super) fn remove(&mut self, address: IpAddr) -> Option<HostSocket> {
        let number = self.sockets.iter().find(|(_, host)| host.address == address)?.0;
        let number = *number;
        self.sockets.remove(&number)
    }

    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.sockets.values().any(|host| host.address == address)
    }

    /// Sends a packet in plain. Without a socket of the sender's address it is lost.
    pub(super) fn send(&self, from: IpAddr, (to, ecn): (IpAddr, u8), contents: &[u8]) {
        let Some(host) = self.sockets.values().find(|host| host.address == from) else { return };
        let transmit = Transmit {
            destination: SocketAddr::new(to, PORT),
            ecn: EcnCodepoint::from_bits(ecn),
            contents,
            segment_size: None,
            src_ip: None,
        };
        let _ = host.state.try_send((&host.socket).into(), &transmit);
    }
}
