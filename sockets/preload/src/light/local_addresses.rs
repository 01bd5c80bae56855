//! Finds out which addresses are this host's, for connections whose addresses a peer names.
//!
//! The peer of a channel says to which address a connection comes, and from which, and the program
//! believes what `accept` says.

use core::net::{Ipv4Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;

use omniverb_connection::light::frame::Endpoint;
use omniverb_connection::peer_wait_budget::TimeBudget;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::socket_addresses;

/// Budget: nanoseconds that this process spends for a channel to ask the kernel whether new
/// addresses are this host's.
const ADDRESSES_NS: u64 = 5_000_000;
/// Budget: of so many that pass there is one more for that.
const ADDRESSES_ONE_OF: u64 = 100;
/// What that may cost.
pub(super) const ADDRESSES: TimeBudget =
    TimeBudget { capacity: ADDRESSES_NS, refill_divisor: ADDRESSES_ONE_OF };

/// Addresses that are remembered.
const KNOWN: usize = 8;
/// How long they are, in nanoseconds: an address may be taken away.
const FRESH: u64 = 1_000_000_000;

/// See the file's head.
pub(super) struct Addresses {
    /// With when each was looked at.
    known: [([u8; 16], u64); KNOWN],
    next: usize,
}

impl Addresses {
    pub(super) const fn new() -> Self {
        Self { known: [([0; 16], 0); KNOWN], next: 0 }
    }

    /// An address of the network namespace of this process, as was found out just now.
    pub(super) fn knows(&self, name: &Endpoint, now: u64) -> bool {
        let is_it = |one: &([u8; 16], u64)| {
            one.0 == name.address && one.1 != 0 && now.saturating_sub(one.1) < FRESH
        };
        name.is_loopback() || self.known.iter().any(is_it)
    }

    /// The same where that is not known: the kernel would answer from it. While there is no
    /// descriptor to ask with, one that was known is one still.
    pub(super) fn asks(&mut self, name: &Endpoint, now: u64) -> bool {
        let known = self.known.iter().position(|one| one.0 == name.address && one.1 != 0);
        match source(*name) {
            Ok(own) if own.is_some_and(|own| own.address == name.address) => {
                let place = known.unwrap_or_else(|| {
                    self.next = (self.next + 1) % KNOWN;
                    self.next
                });
                self.known[place] = (name.address, now);
                true
            }
            Ok(_) => {
                if let Some(place) = known {
                    self.known[place].1 = 0;
                }
                false
            }
            Err(_) => known.is_some(),
        }
    }
}

/// Where the kernel sends from what is sent to an address: if that is of this host from there, or,
/// within the loopback's network, from its first. `None`: nothing leads there.
///
/// # Errors
/// There is no descriptor to ask with.
pub(super) fn source(to: Endpoint) -> Result<Option<Endpoint>, Errno> {
    let family = if to.is_v4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    let [.., a, b, c, d] = to.address;
    // Nothing is sent to that port, or any.
    let is_connected = match to.is_v4() {
        true => connect(&socket, &SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), to.port)),
        false => connect(&socket, &SocketAddrV6::new(to.address.into(), to.port, 0, 0)),
    };
    if is_connected.is_err() {
        return Ok(None);
    }
    Ok(socket_addresses::of_socket(socket.as_raw_fd())
        .map(|(own, _)| own)
        .filter(|own| !own.is_any()))
}
