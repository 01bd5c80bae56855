//! Encodes the message by which an agent tells its host the machine's addresses.

use omniverb_session::limits::GIDS_MAX;
use omniverb_session::vm::{MachineAddress, REACH_GLOBAL, REACH_HOST, REACH_LINK, TellAddresses};
use omniverb_sys::local_addresses::{Address, AddressScope};
use std::net::IpAddr;

/// The first of a list, as many as a message holds.
pub(super) fn message(list: &[Address]) -> TellAddresses {
    let mut message = TellAddresses {
        count: u32::try_from(list.len().min(GIDS_MAX)).unwrap_or(0),
        reserved: 0,
        entries: [NO_ADDRESS; GIDS_MAX],
    };
    for (entry, address) in message.entries.iter_mut().zip(list) {
        *entry = entry_of(address);
    }
    message
}

const NO_ADDRESS: MachineAddress =
    MachineAddress { ip: [0; 16], interface: 0, mtu: 0, reach: 0, loopback: 0 };

fn entry_of(address: &Address) -> MachineAddress {
    let ip = match address.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let reach = match address.scope {
        AddressScope::Global => REACH_GLOBAL,
        AddressScope::Link => REACH_LINK,
        AddressScope::Host => REACH_HOST,
    };
    MachineAddress {
        ip: ip.octets(),
        interface: address.interface,
        mtu: address.mtu,
        reach,
        loopback: address.is_loopback.into(),
    }
}
