//! Sets and inherits options of one light connection, by its profile
//! ([`super::option_profiles`]).

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::option_profiles::{
    FREE, MOST, NONE, NOTHING, Profile, ROOTS, Value, get, kept, new, own_of, root_of, set, set_own,
};
use super::socket_addresses::Family;
use super::state::{State, with};
use super::supported_socket_options::{Inherited, KNOWN, has_least};
use crate::library_fds;

/// The options of a socket of the kernel's, for its connection or for those that it accepts.
#[derive(Default)]
pub(super) struct SocketOptions {
    /// `None`: those of a new socket.
    like: Option<Profile>,
    times: [u32; 2],
    least: u32,
}

/// Asks the kernel for the options of a socket, without the lock. `None`: a light connection has no
/// room for so many.
pub(super) fn find(fd: c_int, (is_six, accepts): (bool, bool)) -> Option<SocketOptions> {
    let family = if is_six { Family::Six } else { Family::Four };
    let root = usize::from(is_six) * 2 + usize::from(accepts);
    let known =
        |state: &mut State| Some((state.profiles.blank(family)?, *state.profiles.known(root)));
    let (blank, mut like) = with(known)??;
    for (level, name, bytes) in KNOWN {
        let Some(mut value) = get(fd, level, name, bytes) else { continue };
        if get(blank, level, name, bytes) == Some(value) {
            continue;
        }
        let is_buffer = matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
        if level == libc::SOL_SOCKET && is_buffer {
            // The kernel doubles what it is given.
            let [a, b, c, d, ..] = value.bytes;
            let half = i32::from_ne_bytes([a, b, c, d]) / 2;
            value.bytes[..4].copy_from_slice(&half.to_ne_bytes());
        }
        like = like.with(value)?;
    }
    let times = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|name| own_of(fd, name));
    let least = own_of(fd, libc::SO_RCVLOWAT);
    if least > 1 {
        has_least();
    }
    Some(SocketOptions { like: Some(like), times, least })
}

impl State {
    fn profile_of(&mut self, at: u32) -> usize {
        let slot = self.slots.at(at);
        match usize::from(slot.profile) {
            0 => root_of(slot),
            some => some.min(MOST - 1),
        }
    }

    /// A socket of the kernel's with the options of a connection.
    ///
    /// # Errors
    /// ENOBUFS.
    pub(super) fn options_of(&mut self, at: u32) -> Result<c_int, c_int> {
        let index = self.profile_of(at);
        self.profiles.socket(index)
    }

    /// A socket with all the options of a connection, and none.
    ///
    /// # Errors
    /// ENOBUFS.
    pub(super) fn fresh_socket(&mut self, at: u32) -> Result<OwnedFd, c_int> {
        let (index, slot) = (self.profile_of(at), self.slots.at(at));
        let (times, least, family) = (slot.times, slot.least, Family::of(slot));
        let socket = new(family).ok_or(libc::ENOBUFS)?;
        for value in self.profiles.known(index).values() {
            _ = set(socket.as_fd(), value);
        }
        for (name, limit) in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].into_iter().zip(times) {
            let limit = [i64::from(limit / 1000), i64::from(limit % 1000) * 1000];
            _ = set_own(socket.as_raw_fd(), name, limit.map(i64::to_ne_bytes).as_flattened());
        }
        _ = set_own(socket.as_raw_fd(), libc::SO_RCVLOWAT, &least.max(1).to_ne_bytes());
        Ok(socket)
    }

    /// Sets an option of a connection.
    ///
    /// # Errors
    /// errno, as the kernel says; ENOBUFS.
    pub(super) fn set_option(
        &mut self,
        at: u32,
        (level, name): (c_int, c_int),
        bytes: &[u8],
    ) -> Result<(), c_int> {
        let mut value = Value { level, name, length: bytes.len() as u32, ..NOTHING };
        value.is_later = true;
        value.bytes.get_mut(..bytes.len()).ok_or(libc::EINVAL)?.copy_from_slice(bytes);
        let index = self.profile_of(at);
        let new = self.profiles.known(index).with(value).ok_or(libc::ENOBUFS)?;
        let index = match self.profiles.find(&new) {
            Some(index) => index,
            None => {
                let place = self.free_profile().ok_or(libc::ENOBUFS)?;
                // Where no descriptor is left the socket is made when it is asked.
                let socket = match new.make() {
                    Ok(end) => kept(&end).unwrap_or(NONE),
                    Err(libc::ENOBUFS) => NONE,
                    Err(error) => return Err(error),
                };
                self.profiles.put(place, new, socket);
                place
            }
        };
        let slot = self.slots.at(at);
        (slot.profile, slot.is_abrupt) = (index as u8, new.is_abrupt());
        Ok(())
    }

    /// Finds or makes the profile of these options. A connection or a listening socket has to get
    /// it before the lock is given back. `None`: there is no room.
    pub(super) fn inherits(&mut self, found: &SocketOptions) -> Option<Inherited> {
        let Some(like) = &found.like else { return Some(Inherited::default()) };
        let place = match self.profiles.find(like) {
            Some(place) => place,
            None => {
                let place = self.free_profile()?;
                self.profiles.put(place, *like, NONE);
                place
            }
        };
        let profile = if place < ROOTS { 0 } else { place as u8 };
        let (times, least) = (found.times, found.least);
        Some(Inherited { profile, times, least, is_abrupt: like.is_abrupt() })
    }

    /// A place that no connection has, and no listening socket.
    fn free_profile(&mut self) -> Option<usize> {
        let free = (ROOTS..MOST).find(|place| !self.profiles.all[*place].is_used);
        if free.is_some() {
            return free;
        }
        let mut is_used = [false; MOST];
        self.slots.each_used(|slot| is_used[usize::from(slot.profile).min(MOST - 1)] = true);
        self.listeners.each_profile(|profile| is_used[usize::from(profile).min(MOST - 1)] = true);
        let hand = self.profiles.hand;
        let places = (ROOTS..MOST).map(|place| (place - ROOTS + hand) % (MOST - ROOTS) + ROOTS);
        let place = places.into_iter().find(|place| !is_used[*place])?;
        self.profiles.hand = place + 1;
        let was = core::mem::replace(&mut self.profiles.all[place], FREE);
        if let Some(fd) = usize::try_from(was.socket).ok().and_then(library_fds::fd) {
            library_fds::close(fd);
        }
        Some(place)
    }
}
