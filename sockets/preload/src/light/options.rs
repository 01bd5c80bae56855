//! Answers calls that read or set options of a light connection.

use core::ffi::c_int;

use omniverb_connection::light::Slot;
use omniverb_connection::light::connection_slot::Flag;
use rustix::io::{FdFlags, fcntl_setfd};

use super::descriptors::Token;
use super::option_profiles::set_own;
use super::socket_addresses::{self, Family};
use super::state::with;
use super::supported_socket_options::{VALUE_MAX, has_least, is_own, may_be_set};
use crate::borrowed_fd::borrow;
use crate::errno::fails;
use crate::next_library;
use crate::user_memory::{Length, UserBuffer, UserRequest, UserSlice};

/// States of a connection, in `TCP_INFO` (`include/net/tcp_states.h`).
const ESTABLISHED: u8 = 1;
const FIN_WAIT_2: u8 = 5;
const CLOSED: u8 = 7;
const CLOSE_WAIT: u8 = 8;
/// `SO_COOKIE` and `SO_PEERNAME`: they name one socket, which there is none of.
const NAMES_ONE: [c_int; 2] = [57, 28];

/// What TCP would say of it.
fn state_of(slot: &Slot) -> u8 {
    match (slot.has(Flag::WriteShut), slot.has(Flag::PeerEnded)) {
        _ if slot.is_over() => CLOSED,
        (true, _) => FIN_WAIT_2,
        (false, true) => CLOSE_WAIT,
        (false, false) => ESTABLISHED,
    }
}

/// What an option is had by.
enum OptionValue {
    Error(c_int),
    Number(c_int),
    Time(u32),
    /// The kernel's socket of its profile, and the state of the connection.
    Kernels(Result<c_int, c_int>, u8),
}

/// `getsockopt`.
pub(crate) fn get(token: Token, (level, name): (c_int, c_int), value: UserBuffer<'_>) -> c_int {
    if value.is_null() {
        return fails(libc::EFAULT);
    }
    let found = with(|state| {
        state.progress();
        let at = state.slot(token)?;
        let slot = state.slots.at(at);
        Some(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                OptionValue::Number(slot.take_error().unwrap_or(0))
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => OptionValue::Number(libc::SOCK_STREAM),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => OptionValue::Number(libc::IPPROTO_TCP),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
                OptionValue::Number(slot.least.max(1) as c_int)
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => OptionValue::Time(slot.times[0]),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => OptionValue::Time(slot.times[1]),
            (libc::SOL_SOCKET, name) if NAMES_ONE.contains(&name) => {
                OptionValue::Error(libc::ENOPROTOOPT)
            }
            _ => {
                let tcp_state = state_of(slot);
                OptionValue::Kernels(state.options_of(at), tcp_state)
            }
        })
    });
    match found.flatten() {
        None => fails(libc::EBADF),
        Some(OptionValue::Error(error) | OptionValue::Kernels(Err(error), _)) => fails(error),
        Some(OptionValue::Number(number)) => give(value, &number.to_ne_bytes()),
        Some(OptionValue::Time(limit)) => {
            let limit = [i64::from(limit / 1000), i64::from(limit % 1000) * 1000];
            give(value, limit.map(i64::to_ne_bytes).as_flattened())
        }
        Some(OptionValue::Kernels(Ok(socket), tcp_state)) => {
            let got = next_library::getsockopt(socket, level, name, value);
            if got == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
                value.put(&[tcp_state]);
            }
            got
        }
    }
}

/// As much as there is room for.
fn give(value: UserBuffer<'_>, bytes: &[u8]) -> c_int {
    value.give(bytes, Length::Copied);
    0
}

/// `setsockopt`.
pub(crate) fn set(token: Token, (level, name): (c_int, c_int), value: UserSlice<'_, u8>) -> c_int {
    if !may_be_set(level, name) {
        return fails(libc::ENOPROTOOPT);
    }
    if value.is_null() {
        return fails(libc::EFAULT);
    }
    let mut bytes = [0; VALUE_MAX];
    let bytes = value.copy_to(&mut bytes);
    let done = with(|state| {
        let at = state.slot(token).ok_or(libc::EBADF)?;
        if !is_own(level, name) {
            return state.set_option(at, (level, name), bytes);
        }
        // What the kernel makes of it is seen where that is asked for nowhere.
        let socket = state.options_of(at)?;
        let found = set_own(socket, name, bytes)?;
        let slot = state.slots.at(at);
        match name {
            libc::SO_RCVTIMEO => slot.times[0] = found,
            libc::SO_SNDTIMEO => slot.times[1] = found,
            _ => {
                slot.least = found;
                has_least();
                state.news(at);
            }
        }
        Ok(())
    });
    done.unwrap_or(Err(libc::EAGAIN)).map_or_else(fails, |()| 0)
}

/// Which end is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    Own,
    Peers,
}

/// `getsockname`, `getpeername`.
pub(crate) fn name(token: Token, whose: ConnectionEnd, to: UserBuffer<'_>) -> c_int {
    if to.is_null() {
        return fails(libc::EFAULT);
    }
    let Some((name, family, is_gone)) = with(|state| {
        state.progress();
        let at = state.slot(token)?;
        let slot = state.slots.at(at);
        let own = if slot.has(Flag::Connecting) { slot.names.from } else { slot.names.to };
        let other = if slot.has(Flag::Connecting) { slot.names.to } else { slot.names.from };
        Some((
            if whose == ConnectionEnd::Peers { other } else { own },
            Family::of(slot),
            slot.is_over(),
        ))
    })
    .flatten() else {
        return fails(libc::EBADF);
    };
    if whose == ConnectionEnd::Peers && is_gone {
        return fails(libc::ENOTCONN);
    }
    socket_addresses::write(&name, family, to);
    0
}

/// `fcntl`. `None`: it is the kernel's.
pub(crate) fn control(token: Token, command: c_int, argument: usize) -> Option<c_int> {
    match command {
        libc::F_GETFL => Some(
            with(|state| {
                let at = state.slot(token)?;
                let does_not_wait = state.slots.at(at).has(Flag::NonBlocking);
                Some(libc::O_RDWR | if does_not_wait { libc::O_NONBLOCK } else { 0 })
            })
            .flatten()
            .unwrap_or_else(|| fails(libc::EBADF)),
        ),
        libc::F_SETFL if argument as c_int & libc::O_ASYNC != 0 => Some(fails(libc::EINVAL)),
        libc::F_SETFL => Some(does_not_wait(token, argument as c_int & libc::O_NONBLOCK != 0)),
        libc::F_GETFD | libc::F_SETFD => None,
        // Signals are asked for by O_ASYNC.
        libc::F_SETOWN | libc::F_GETOWN => Some(0),
        _ => Some(fails(libc::EINVAL)),
    }
}

fn does_not_wait(token: Token, is_so: bool) -> c_int {
    let changed = change(token, |slot| {
        if is_so { slot.set_flag(Flag::NonBlocking) } else { slot.clear_flag(Flag::NonBlocking) }
    });
    with(|state| state.slot(token).map(|at| state.announce_lane(at)));
    changed
}

/// Changes something that no thread waits for.
fn change(token: Token, how: impl FnOnce(&mut Slot)) -> c_int {
    let changed = with(|state| {
        let at = state.slot(token)?;
        how(state.slots.at(at));
        Some(())
    });
    changed.flatten().map_or_else(|| fails(libc::EBADF), |()| 0)
}

/// `ioctl`.
pub(crate) fn request(fd: c_int, token: Token, given: UserRequest<'_>) -> c_int {
    let request = given.request();
    let set_cloexec = |flags| match fcntl_setfd(borrow(fd), flags) {
        Ok(()) => 0,
        Err(error) => fails(error.raw_os_error()),
    };
    let place = match (request, given.number()) {
        (libc::FIOCLEX, _) => return set_cloexec(FdFlags::CLOEXEC),
        (libc::FIONCLEX, _) => return set_cloexec(FdFlags::empty()),
        (_, Some(place)) => place,
        (_, None) => return elsewhere(token, given),
    };
    let Some(given) = place.read() else { return fails(libc::EFAULT) };
    match request {
        libc::FIONBIO => return does_not_wait(token, given != 0),
        // The signal could not be sent.
        libc::FIOASYNC if given != 0 => return fails(libc::EINVAL),
        libc::FIOASYNC => return 0,
        _ => {}
    }
    let Some(bytes) = with(|state| {
        state.progress();
        let at = state.slot(token)?;
        // What was sent is with the other end.
        Some(if request == libc::FIONREAD { state.queued(at) } else { 0 })
    })
    .flatten() else {
        return fails(libc::EBADF);
    };
    place.write(bytes as c_int);
    0
}

/// A request that is not about this connection but about the network, or is none.
fn elsewhere(token: Token, given: UserRequest<'_>) -> c_int {
    let socket = with(|state| state.slot(token).map(|at| state.options_of(at))).flatten();
    match socket {
        Some(Ok(socket)) => next_library::ioctl(socket, given),
        Some(Err(_)) => fails(libc::ENOTTY),
        None => fails(libc::EBADF),
    }
}
