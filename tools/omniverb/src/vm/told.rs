//! What an agent tells of its machine's addresses.

use omniverb_session::limits::GIDS_MAX;
use omniverb_session::machine::{
    MachineAddress, REACH_GLOBAL, REACH_HOST, REACH_LINK, TellAddresses,
};
use omniverb_sys::addresses::{Address, Scope};
use std::net::IpAddr;

/// As the host hears it.
pub(super) fn addresses(list: &[Address]) -> TellAddresses {
    let mut told = TellAddresses {
        count: u32::try_from(list.len().min(GIDS_MAX)).unwrap_or(0),
        reserved: 0,
        entries: [NO_ADDRESS; GIDS_MAX],
    };
    for (entry, address) in told.entries.iter_mut().zip(list) {
        *entry = said(address);
    }
    told
}

const NO_ADDRESS: MachineAddress =
    MachineAddress { ip: [0; 16], interface: 0, mtu: 0, reach: 0, loopback: 0 };

fn said(address: &Address) -> MachineAddress {
    let ip = match address.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let reach = match address.scope {
        Scope::Global => REACH_GLOBAL,
        Scope::Link => REACH_LINK,
        Scope::Host => REACH_HOST,
    };
    MachineAddress {
        ip: ip.octets(),
        interface: address.interface,
        mtu: address.mtu,
        reach,
        loopback: address.loopback.into(),
    }
}
