//! Converts addresses between C's structures and endpoints.

use core::ffi::{c_int, c_void};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use omniverb_connection::light::Slot;
use omniverb_connection::light::frame::Endpoint;

use crate::errno::keeping_errno;
use crate::next_functions::{next_getpeername, next_getsockname};

/// Bytes of `struct sockaddr_in`, and of `struct sockaddr_in6`.
const FOUR: usize = size_of::<libc::sockaddr_in>();
const SIX: usize = size_of::<libc::sockaddr_in6>();

/// How an address is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Four,
    Six,
}

impl Family {
    pub(super) fn of(slot: &Slot) -> Self {
        if slot.naming.is_six() { Self::Six } else { Self::Four }
    }
}

/// An address and whether it is written as one of IPv6.
///
/// # Safety
/// So many bytes are there.
pub(super) unsafe fn read(address: *const c_void, length: u32) -> Option<(Endpoint, bool)> {
    if address.is_null() {
        return None;
    }
    let length = length as usize;
    // SAFETY: as the caller says; each is looked at only if it is there whole.
    unsafe {
        if length < size_of::<libc::sa_family_t>() {
            return None;
        }
        match c_int::from(address.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET if length >= FOUR => {
                let four = address.cast::<libc::sockaddr_in>().read_unaligned();
                let bytes = four.sin_addr.s_addr.to_ne_bytes();
                Some((Endpoint::v4(bytes, u16::from_be(four.sin_port)), false))
            }
            libc::AF_INET6 if length >= SIX => {
                let six = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let port = u16::from_be(six.sin6_port);
                Some((Endpoint { address: six.sin6_addr.s6_addr, port }, true))
            }
            _ => None,
        }
    }
}

/// An address of no family, by which `connect` undoes what there is.
///
/// # Safety
/// So many bytes are there.
pub(super) unsafe fn undoes(address: *const c_void, length: u32) -> bool {
    let is_there = !address.is_null() && length as usize >= size_of::<libc::sa_family_t>();
    // SAFETY: as the caller says.
    is_there
        && c_int::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() })
            == libc::AF_UNSPEC
}

/// Writes an address where a call wants it, as far as there is room; its length goes there as well.
///
/// # Safety
/// Both are null, or there, with so much room.
pub(super) unsafe fn write(name: &Endpoint, family: Family, to: *mut c_void, length: *mut u32) {
    if to.is_null() || length.is_null() {
        return;
    }
    // SAFETY: structures of integers, which may be zero.
    let (mut four, mut six): (libc::sockaddr_in, libc::sockaddr_in6) =
        unsafe { core::mem::zeroed() };
    let (from, bytes) = if family == Family::Six {
        six.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        six.sin6_port = name.port.to_be();
        six.sin6_addr.s6_addr = name.address;
        ((&raw const six).cast::<u8>(), SIX)
    } else {
        four.sin_family = libc::AF_INET as libc::sa_family_t;
        four.sin_port = name.port.to_be();
        let mut address = [0; 4];
        address.copy_from_slice(&name.address[12..]);
        four.sin_addr.s_addr = u32::from_ne_bytes(address);
        ((&raw const four).cast::<u8>(), FOUR)
    };
    // SAFETY: as the caller says.
    unsafe {
        let room = (*length as usize).min(bytes);
        core::ptr::copy_nonoverlapping(from, to.cast::<u8>(), room);
        *length = bytes as u32;
    }
}

/// An address as one of the standard library's, for a socket of this family.
pub(super) fn to_std(name: &Endpoint, family: Family) -> SocketAddr {
    let six = Ipv6Addr::from(name.address);
    let address = if family == Family::Six { IpAddr::V6(six) } else { six.to_canonical() };
    SocketAddr::new(address, name.port)
}

/// What the kernel's socket of a descriptor is bound to.
pub(super) fn of_socket(fd: c_int) -> Option<(Endpoint, bool)> {
    // SAFETY: as `asked` says.
    asked(|to, length| unsafe { next_getsockname(fd, to, length) })
}

/// What it is connected with.
pub(super) fn of_peer(fd: c_int) -> Option<(Endpoint, bool)> {
    // SAFETY: as `asked` says.
    asked(|to, length| unsafe { next_getpeername(fd, to, length) })
}

/// What the kernel writes to a place that lives across the call, and how long that is.
fn asked(ask: impl FnOnce(*mut c_void, *mut u32) -> c_int) -> Option<(Endpoint, bool)> {
    // SAFETY: integers, which may be zero.
    let mut place: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as u32;
    let to = (&raw mut place).cast::<c_void>();
    let got = keeping_errno(|| ask(to, &raw mut length));
    // SAFETY: the kernel has just written so many bytes there.
    if got == 0 { unsafe { read(to, length) } } else { None }
}
