//! Converts addresses between C's structures and endpoints.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use omniverb_connection::light::Slot;
use omniverb_connection::light::frame::Endpoint;

use crate::errno::keeping_errno;
use crate::next_library;
use crate::user_memory::{Length, UserBuffer, UserSlice};

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
pub(super) fn read(address: UserSlice<'_, u8>) -> Option<(Endpoint, bool)> {
    match family_of(address)? {
        libc::AF_INET => {
            let [_, _, a, b, address @ ..] = address.array::<FOUR>(0)?;
            let [address, ..] = *address.as_chunks::<4>().0 else { return None };
            Some((Endpoint::v4(address, u16::from_be_bytes([a, b])), false))
        }
        libc::AF_INET6 => {
            let [_, _, a, b, _, _, _, _, address @ ..] = address.array::<SIX>(0)?;
            let [address, ..] = *address.as_chunks::<16>().0 else { return None };
            Some((Endpoint { address, port: u16::from_be_bytes([a, b]) }, true))
        }
        _ => None,
    }
}

/// What an address says of itself.
fn family_of(address: UserSlice<'_, u8>) -> Option<c_int> {
    address.array(0).map(|family| c_int::from(libc::sa_family_t::from_ne_bytes(family)))
}

/// An address of no family, by which `connect` undoes what there is.
pub(super) fn undoes(address: UserSlice<'_, u8>) -> bool {
    family_of(address) == Some(libc::AF_UNSPEC)
}

/// Writes an address where a call wants it, as far as there is room; its length goes there as well.
pub(super) fn write(name: &Endpoint, family: Family, to: UserBuffer<'_>) {
    let mut bytes = [0; SIX];
    let (of, length, at) = match family {
        Family::Six => (libc::AF_INET6, SIX, 8),
        Family::Four => (libc::AF_INET, FOUR, 4),
    };
    bytes[..2].copy_from_slice(&(of as libc::sa_family_t).to_ne_bytes());
    bytes[2..4].copy_from_slice(&name.port.to_be_bytes());
    match family {
        Family::Six => bytes[at..at + 16].copy_from_slice(&name.address),
        Family::Four => bytes[at..at + 4].copy_from_slice(&name.address[12..]),
    }
    to.give(&bytes[..length], Length::Whole);
}

/// An address as one of the standard library's, for a socket of this family.
pub(super) fn to_std(name: &Endpoint, family: Family) -> SocketAddr {
    let six = Ipv6Addr::from(name.address);
    let address = if family == Family::Six { IpAddr::V6(six) } else { six.to_canonical() };
    SocketAddr::new(address, name.port)
}

/// What the kernel's socket of a descriptor is bound to.
pub(super) fn of_socket(fd: c_int) -> Option<(Endpoint, bool)> {
    asked(|to| next_library::getsockname(fd, to))
}

/// What it is connected with.
pub(super) fn of_peer(fd: c_int) -> Option<(Endpoint, bool)> {
    asked(|to| next_library::getpeername(fd, to))
}

/// What the kernel says of a socket.
fn asked(ask: impl FnOnce(UserBuffer<'_>) -> c_int) -> Option<(Endpoint, bool)> {
    let (mut bytes, mut length) = ([0; size_of::<libc::sockaddr_storage>()], 0);
    let got = keeping_errno(|| ask(UserBuffer::of(&mut bytes, &mut length)));
    let length = (length as usize).min(bytes.len());
    if got == 0 { read(UserSlice::of(&bytes[..length])) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &Endpoint, family: Family, room: usize) -> (Vec<u8>, u32) {
        let (mut bytes, mut length) = (vec![0xee; room], 0);
        write(name, family, UserBuffer::of(&mut bytes, &mut length));
        (bytes, length)
    }

    fn endpoint(port: u16) -> Endpoint {
        Endpoint::v4([10, 1, 2, 3], port)
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for (family, is_six) in [(Family::Four, false), (Family::Six, true)] {
            for port in [0, 1, 258, 65535] {
                let (bytes, length) = written(&endpoint(port), family, 64);
                let found = read(UserSlice::of(&bytes[..length as usize]));
                assert_eq!(found, Some((endpoint(port), is_six)));
            }
        }
    }

    #[test]
    fn an_address_is_written_as_c_has_it() {
        let (bytes, length) = written(&endpoint(258), Family::Four, 16);
        let family = (libc::AF_INET as u16).to_ne_bytes();
        assert_eq!(length as usize, size_of::<libc::sockaddr_in>());
        assert_eq!(bytes[..8], [family[0], family[1], 1, 2, 10, 1, 2, 3]);
        assert_eq!(bytes[8..], [0; 8]);
        let (bytes, length) = written(&endpoint(258), Family::Six, 28);
        assert_eq!(length as usize, size_of::<libc::sockaddr_in6>());
        assert_eq!(bytes[4..8], [0; 4], "no flow");
        assert_eq!(bytes[8..24], endpoint(0).address);
        assert_eq!(bytes[24..], [0; 4], "no scope");
    }

    #[test]
    fn a_short_place_gets_the_beginning_and_hears_how_long_it_is() {
        let (whole, _) = written(&endpoint(7), Family::Six, 28);
        for room in 1..28 {
            let (bytes, length) = written(&endpoint(7), Family::Six, room);
            assert_eq!((&bytes[..], length), (&whole[..room], 28));
        }
    }

    #[test]
    fn a_truncated_address_is_none() {
        for family in [Family::Four, Family::Six] {
            let (bytes, length) = written(&endpoint(7), family, 28);
            for length in 0..length as usize {
                assert_eq!(read(UserSlice::of(&bytes[..length])), None, "{length}");
            }
            assert!(read(UserSlice::of(&bytes)).is_some(), "what is behind it does not matter");
        }
    }

    #[test]
    fn an_address_of_another_family_is_none() {
        let (mut bytes, _) = written(&endpoint(7), Family::Six, 28);
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(read(UserSlice::of(&bytes)), None);
        assert!(!undoes(UserSlice::of(&bytes)));
    }

    #[test]
    fn no_family_undoes_if_it_is_there_whole() {
        assert!(undoes(UserSlice::of(&[0, 0])));
        assert!(!undoes(UserSlice::of(&[0])) && !undoes(UserSlice::of(&[])));
    }
}
