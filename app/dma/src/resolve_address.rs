//! Addresses, as programs write them.

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6, sockaddr_storage};
use omniverb_terms::Errno;

/// The address of a name or a number, with a port.
pub(crate) fn find(name: &CStr, port: u16) -> Result<sockaddr_storage, Errno> {
    // SAFETY: numbers and pointers: zero is valid for all. What getaddrinfo gives is a list of at
    // least one address of the length that it says, and is given back.
    unsafe {
        let mut hints: libc::addrinfo = core::mem::zeroed();
        hints.ai_socktype = libc::SOCK_STREAM;
        let mut list = null_mut();
        if libc::getaddrinfo(name.as_ptr(), null::<c_char>(), &hints, &mut list) != 0 {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let first = &*list;
        let mut found: sockaddr_storage = core::mem::zeroed();
        let room = (&raw mut found).cast::<u8>();
        let bytes = (first.ai_addrlen as usize).min(size_of::<sockaddr_storage>());
        core::ptr::copy_nonoverlapping(first.ai_addr.cast::<u8>(), room, bytes);
        libc::freeaddrinfo(list);
        with_port(found, port)
    }
}

/// Any address of either family, to listen at.
pub(crate) fn any(port: u16) -> Result<sockaddr_storage, Errno> {
    // SAFETY: numbers: zero is valid for all.
    let mut found: sockaddr_storage = unsafe { core::mem::zeroed() };
    found.ss_family = AF_INET6 as libc::sa_family_t;
    with_port(found, port)
}

/// The same with another port.
pub(crate) fn with_port(mut it: sockaddr_storage, port: u16) -> Result<sockaddr_storage, Errno> {
    let family = i32::from(it.ss_family);
    let place = &raw mut it;
    // SAFETY: the storage is long enough for both, and aligned.
    unsafe {
        match family {
            AF_INET => (*place.cast::<sockaddr_in>()).sin_port = port.to_be(),
            AF_INET6 => (*place.cast::<sockaddr_in6>()).sin6_port = port.to_be(),
            _ => return Err(Errno::EAFNOSUPPORT),
        }
    }
    Ok(it)
}
