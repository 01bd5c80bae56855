//! Addresses of sockets: as C has them, and as the kernel's socket takes them.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, in_addr, in6_addr, sockaddr, sockaddr_in, sockaddr_in6};
use libc::{sockaddr_storage, socklen_t};
use omniverb_terms::Errno;

use crate::c_sockaddr::length;

/// What a program gives.
///
/// # Errors
/// `EINVAL`: it is shorter than its family has it, or of a family that is not for this.
///
/// # Safety
/// `address` is null, or has `bytes` bytes.
pub(crate) unsafe fn from_c(
    address: *const sockaddr,
    bytes: socklen_t,
) -> Result<SocketAddr, Errno> {
    if address.is_null() || (bytes as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise: the family is in front.
    let needed = unsafe { length(address) };
    if needed == 0 || needed > bytes as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as many bytes as the family has.
    unsafe {
        if needed == size_of::<sockaddr_in>() {
            let four = address.cast::<sockaddr_in>().read_unaligned();
            let ip = Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr));
            return Ok((ip, u16::from_be(four.sin_port)).into());
        }
        let six = address.cast::<sockaddr_in6>().read_unaligned();
        let port = u16::from_be(six.sin6_port);
        let flow = u32::from_be(six.sin6_flowinfo);
        Ok(SocketAddrV6::new(six.sin6_addr.s6_addr.into(), port, flow, six.sin6_scope_id).into())
    }
}

/// As C has it, and how many bytes of that count.
pub(crate) fn to_c(address: SocketAddr) -> (sockaddr_storage, usize) {
    // SAFETY: numbers and arrays of them: zero is valid.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(four) => {
            let four = sockaddr_in {
                sin_family: AF_INET as u16,
                sin_port: four.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from_ne_bytes(four.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: storage has room for any address, and is aligned for them.
            unsafe { place.cast::<sockaddr_in>().write(four) };
            (storage, size_of::<sockaddr_in>())
        }
        SocketAddr::V6(six) => {
            let six = sockaddr_in6 {
                sin6_family: AF_INET6 as u16,
                sin6_port: six.port().to_be(),
                sin6_flowinfo: six.flowinfo().to_be(),
                sin6_addr: in6_addr { s6_addr: six.ip().octets() },
                sin6_scope_id: six.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(six) };
            (storage, size_of::<sockaddr_in6>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        let six = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 8, 9, 10);
        for address in [SocketAddr::from(([10, 1, 2, 3], 7)), six.into()] {
            let (storage, bytes) = to_c(address);
            let place = (&raw const storage).cast();
            // SAFETY: storage is as long as any family.
            unsafe {
                assert_eq!(from_c(place, bytes as u32), Ok(address));
                assert_eq!(from_c(place, bytes as u32 - 1), Err(Errno::EINVAL));
                assert_eq!(from_c(place, 1), Err(Errno::EINVAL));
            }
        }
    }
}
