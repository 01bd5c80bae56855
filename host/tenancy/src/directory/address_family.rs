//! Families of addresses, and of the names that are made like them.

use omniverb_terms::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The family of an address or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4; of names those that are an IPv4 address mapped into IPv6.
    V4,
    /// IPv6, and all other names.
    V6,
}

impl Family {
    /// The family of an address.
    pub(crate) fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The family of a name.
    pub(crate) fn of_name(gid: Gid) -> Family {
        Family::of(gid.address())
    }

    /// The loopback address of the family.
    pub(crate) fn loopback(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }
}
