//! Addresses: those of C sockets, and those of messages.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{
    AF_INET, AF_INET6, in_addr, in6_addr, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
};
use omniverb_session::cm::{CmAddress, FAMILY_IPV4, FAMILY_IPV6};
use omniverb_terms::{Errno, Gid};

/// Bytes of an address by its family; zero for families that are not for connections here.
///
/// # Safety
/// `address` is null, or as long as its family says.
pub(crate) unsafe fn length(address: *const sockaddr) -> usize {
    if address.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match i32::from(unsafe { (*address).sa_family }) {
        AF_INET => size_of::<sockaddr_in>(),
        AF_INET6 => size_of::<sockaddr_in6>(),
        _ => 0,
    }
}

/// As a message has it.
///
/// # Safety
/// As [`length`].
pub(crate) unsafe fn from_c(address: *const sockaddr) -> Result<CmAddress, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        match length(address) {
            0 => Err(Errno::EINVAL),
            bytes if bytes == size_of::<sockaddr_in>() => {
                let four = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr));
                Ok(CmAddress {
                    family: FAMILY_IPV4,
                    port: u16::from_be(four.sin_port),
                    interface: 0,
                    ip: Gid::from(ip),
                })
            }
            _ => {
                let six = address.cast::<sockaddr_in6>().read_unaligned();
                Ok(CmAddress {
                    family: FAMILY_IPV6,
                    port: u16::from_be(six.sin6_port),
                    interface: six.sin6_scope_id,
                    ip: Gid::new(six.sin6_addr.s6_addr),
                })
            }
        }
    }
}

/// As C has it; all zeros for none.
pub(crate) fn to_c(address: &CmAddress) -> sockaddr_storage {
    // SAFETY: numbers and arrays of them: zero is valid.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let place = &raw mut storage;
    let ip = address.ip.bytes();
    match address.family {
        FAMILY_IPV4 => {
            let four = sockaddr_in {
                sin_family: FAMILY_IPV4,
                sin_port: address.port.to_be(),
                sin_addr: in_addr { s_addr: u32::from_ne_bytes([ip[12], ip[13], ip[14], ip[15]]) },
                sin_zero: [0; 8],
            };
            // SAFETY: storage has room for any address, and is aligned for them.
            unsafe { place.cast::<sockaddr_in>().write(four) };
        }
        FAMILY_IPV6 => {
            let six = sockaddr_in6 {
                sin6_family: FAMILY_IPV6,
                sin6_port: address.port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: in6_addr { s6_addr: ip },
                sin6_scope_id: address.interface,
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(six) };
        }
        _ => {}
    }
    storage
}

/// The port of an address as C has it, in network order; zero for families without.
pub(crate) fn port(address: &sockaddr_storage) -> u16 {
    let place: *const sockaddr_storage = address;
    // SAFETY: storage has room for any address, and is aligned for them.
    unsafe {
        match i32::from(address.ss_family) {
            AF_INET => (*place.cast::<sockaddr_in>()).sin_port,
            AF_INET6 => (*place.cast::<sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

/// The address without its port.
pub(crate) fn ip(address: &CmAddress) -> IpAddr {
    if address.family == FAMILY_IPV4 {
        address.ip.address()
    } else {
        IpAddr::V6(Ipv6Addr::from_octets(address.ip.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(address: CmAddress) -> CmAddress {
        let storage = to_c(&address);
        // SAFETY: storage is as long as any family.
        unsafe { from_c((&raw const storage).cast()) }.unwrap()
    }

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        let four = CmAddress {
            family: FAMILY_IPV4,
            port: 7471,
            interface: 0,
            ip: Gid::from(Ipv4Addr::new(10, 1, 2, 3)),
        };
        let six = CmAddress {
            family: FAMILY_IPV6,
            port: 1,
            interface: 4,
            ip: Gid::from(Ipv6Addr::LOCALHOST),
        };
        assert_eq!((there_and_back(four), there_and_back(six)), (four, six));
        assert_eq!(port(&to_c(&four)), 7471u16.to_be());
        assert_eq!(ip(&four), IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)));
        assert!(ip(&CmAddress { ip: Gid::from(Ipv4Addr::UNSPECIFIED), ..four }).is_unspecified());
    }

    #[test]
    fn other_families_are_refused() {
        let none = to_c(&CmAddress::NONE);
        // SAFETY: storage is as long as any family.
        assert_eq!(unsafe { from_c((&raw const none).cast()) }, Err(Errno::EINVAL));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { from_c(core::ptr::null()) }, Err(Errno::EINVAL));
    }
}
