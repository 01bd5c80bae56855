//! Keeps combinations of socket options, each on a real socket of the kernel's.
//!
//! Each is a connection of this process with itself, by which no bytes go. So the kernel says how
//! an option is rounded, what is inherited of a listening socket, which value is refused, and what
//! the defaults are. Connections with the same options share a profile; those with defaults have
//! none.

use core::ffi::c_int;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use omniverb_connection::light::Slot;
use omniverb_connection::light::connection_slot::Flag;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, getsockname, listen,
    socket_with,
};

use super::socket_addresses::Family;
use super::supported_socket_options::VALUE_MAX;
use crate::borrowed_fd::borrow;
use crate::errno::{errno, keeping_errno};
use crate::kernel_socket;
use crate::library_fds;
use crate::next_library;
use crate::user_memory::{UserBuffer, UserSlice};

/// Budget: combinations of options that connections of a process have at a time.
pub(super) const MOST: usize = 32;
/// Budget: options of one of these that are not as of a new socket.
const VALUES: usize = 36;
/// Places of those without any: of each family, and of connecting and accepting sockets.
pub(super) const ROOTS: usize = 4;
pub(super) const NONE: c_int = -1;

/// A value as it was set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub level: c_int,
    pub name: c_int,
    pub length: u32,
    /// It was set when there was a connection, and not before.
    pub is_later: bool,
    pub bytes: [u8; VALUE_MAX],
}

/// A combination of options, of connections of one of the first places.
#[derive(Clone, Copy)]
pub(super) struct Profile {
    pub is_used: bool,
    /// Of which of the first places it is a variant.
    root: u8,
    count: u8,
    all: [Value; VALUES],
    /// Where its end of a connection is among our own descriptors.
    pub socket: c_int,
}

pub(super) const NOTHING: Value =
    Value { level: 0, name: 0, length: 0, is_later: false, bytes: [0; VALUE_MAX] };
pub(super) const FREE: Profile =
    Profile { is_used: false, root: 0, count: 0, all: [NOTHING; VALUES], socket: NONE };

/// All of them.
pub(super) struct Profiles {
    pub all: [Profile; MOST],
    /// New sockets of each family.
    blank: [c_int; 2],
    pub hand: usize,
}

/// Which of the first places a connection's is.
pub(super) fn root_of(slot: &Slot) -> usize {
    usize::from(slot.naming.is_six()) * 2 + usize::from(!slot.has(Flag::Connecting))
}

fn family(root: u8) -> Family {
    if root >= 2 { Family::Six } else { Family::Four }
}

impl Profile {
    pub(super) fn values(&self) -> &[Value] {
        &self.all[..usize::from(self.count)]
    }

    /// The same with one more, or another value of one. `None`: there is no room.
    pub(super) fn with(mut self, value: Value) -> Option<Self> {
        let is_it = |one: &Value| (one.level, one.name) == (value.level, value.name);
        let at = match self.values().iter().position(is_it) {
            Some(at) => at,
            None if usize::from(self.count) < VALUES => {
                self.count += 1;
                usize::from(self.count) - 1
            }
            None => return None,
        };
        self.all[at] = value;
        self.socket = NONE;
        Some(self)
    }

    pub(super) fn is_abrupt(&self) -> bool {
        let is_it = |one: &&Value| (one.level, one.name) == (libc::SOL_SOCKET, libc::SO_LINGER);
        self.values().iter().find(is_it).is_some_and(|one| {
            let [a, b, c, d, rest @ ..] = one.bytes;
            i32::from_ne_bytes([a, b, c, d]) != 0 && rest[..4] == [0; 4]
        })
    }

    /// An end of a connection that has all of it.
    ///
    /// # Errors
    /// errno: of a value, or ENOBUFS.
    pub(super) fn make(&self) -> Result<OwnedFd, c_int> {
        let own = new(family(self.root)).ok_or(libc::ENOBUFS)?;
        for value in self.values().iter().filter(|value| !value.is_later) {
            // What was taken once is taken, or this process may do less by now.
            _ = set(own.as_fd(), value);
        }
        let end = match connected(&own, family(self.root), self.root % 2 == 1) {
            Some(Some(accepted)) => accepted,
            // Without a loopback it is as of a socket that is not connected.
            Some(None) | None => own,
        };
        for value in self.values().iter().filter(|value| value.is_later) {
            set(end.as_fd(), value)?;
        }
        Ok(end)
    }
}

pub(super) fn new(family: Family) -> Option<OwnedFd> {
    let is_six = family == Family::Six;
    let family = if is_six { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None).ok()
}

/// Connects a socket with another one of this process: that end, or, if it listens, a new one.
fn connected(own: &OwnedFd, family: Family, accepts: bool) -> Option<Option<OwnedFd>> {
    let other = new(family)?;
    let (server, client) = if accepts { (own, &other) } else { (&other, own) };
    let any: SocketAddr = match family {
        Family::Six => (Ipv6Addr::LOCALHOST, 0).into(),
        Family::Four => (Ipv4Addr::LOCALHOST, 0).into(),
    };
    bind(server, &any).ok()?;
    listen(server, 1).ok()?;
    let at = getsockname(server).ok()?;
    // Within the loopback that is done at once, if at all.
    connect(client, &at)
        .or_else(|error| match error {
            rustix::io::Errno::INPROGRESS => Ok(()),
            error => Err(error),
        })
        .ok()?;
    let end = accept_with(server, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
    let is_its = rustix::net::getpeername(&end).ok()?? == getsockname(client).ok()?;
    is_its.then_some(accepts.then_some(end))
}

pub(super) fn set(socket: BorrowedFd<'_>, value: &Value) -> Result<(), c_int> {
    let bytes = &value.bytes[..(value.length as usize).min(VALUE_MAX)];
    let fd = socket.as_raw_fd();
    keeping_errno(|| {
        let done = next_library::setsockopt(fd, value.level, value.name, UserSlice::of(bytes));
        if done == 0 { Ok(()) } else { Err(errno()) }
    })
}

/// What a socket says of an option.
pub(super) fn get(fd: c_int, level: c_int, name: c_int, bytes: usize) -> Option<Value> {
    let mut value = Value { level, name, ..NOTHING };
    let mut length = 0;
    let to = UserBuffer::of(&mut value.bytes[..bytes.min(VALUE_MAX)], &mut length);
    let got = keeping_errno(|| next_library::getsockopt(fd, level, name, to));
    value.length = length;
    (got == 0).then_some(value)
}

/// What a socket has of an option that each connection has by itself: a time in milliseconds, 0
/// being for ever, or a number of bytes.
pub(super) fn own_of(socket: c_int, name: c_int) -> u32 {
    match name {
        libc::SO_RCVTIMEO => kernel_socket::limit(socket, Timeout::Recv).unwrap_or(0),
        libc::SO_SNDTIMEO => kernel_socket::limit(socket, Timeout::Send).unwrap_or(0),
        _ => kernel_socket::low_water(socket).unsigned_abs(),
    }
}

/// Sets an option that each connection has by itself, at a scratch socket: what the kernel makes of
/// it.
///
/// # Errors
/// errno.
pub(super) fn set_own(socket: c_int, name: c_int, given: &[u8]) -> Result<u32, c_int> {
    let mut value = Value { level: libc::SOL_SOCKET, name, length: given.len() as u32, ..NOTHING };
    value.bytes.get_mut(..given.len()).ok_or(libc::EINVAL)?.copy_from_slice(given);
    set(borrow(socket), &value)?;
    Ok(own_of(socket, name))
}

impl Profiles {
    pub(super) const fn new() -> Self {
        Self { all: [FREE; MOST], blank: [NONE; 2], hand: ROOTS }
    }

    /// A socket without any option set.
    pub(super) fn blank(&mut self, family: Family) -> Option<c_int> {
        let place = &mut self.blank[usize::from(family == Family::Six)];
        if *place == NONE {
            *place = library_fds::keep(new(family)?.as_raw_fd())? as c_int;
        }
        library_fds::fd(usize::try_from(*place).ok()?)
    }

    /// A place has this combination from now on, and what has it.
    pub(super) fn put(&mut self, place: usize, profile: Profile, socket: c_int) {
        self.all[place] = Profile { is_used: true, socket, ..profile };
    }

    pub(super) fn known(&mut self, index: usize) -> &mut Profile {
        let one = &mut self.all[index];
        if index < ROOTS {
            (one.is_used, one.root) = (true, index as u8);
        }
        one
    }

    /// The descriptor of one.
    ///
    /// # Errors
    /// ENOBUFS.
    pub(super) fn socket(&mut self, index: usize) -> Result<c_int, c_int> {
        let one = self.known(index);
        if one.socket == NONE {
            one.socket = kept(&one.make().map_err(|_| libc::ENOBUFS)?)?;
        }
        let place = usize::try_from(one.socket).ok();
        place.and_then(library_fds::fd).ok_or(libc::ENOBUFS)
    }

    pub(super) fn find(&self, like: &Profile) -> Option<usize> {
        if like.count == 0 {
            return Some(usize::from(like.root));
        }
        let is_it =
            |one: &Profile| one.is_used && one.root == like.root && one.values() == like.values();
        self.all.iter().position(is_it)
    }
}

/// Keeps a duplicate among our own: its place.
pub(super) fn kept(socket: &OwnedFd) -> Result<c_int, c_int> {
    library_fds::keep(socket.as_raw_fd()).map(|place| place as c_int).ok_or(libc::ENOBUFS)
}
