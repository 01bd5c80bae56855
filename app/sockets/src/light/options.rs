//! Answers calls that read or set options of a light connection.

use core::ffi::{c_int, c_void};

use omniverb_stream::light::Row;
use omniverb_stream::light::row::{Note, WINDOW};

use super::names::{self, Family};
use super::numbers::Token;
use super::opening::milliseconds;
use super::state::with;
use crate::call;
use crate::errno::fails;

/// What may be on its way, or wait to be received.
const BUFFER: c_int = WINDOW as c_int;
/// The state of a connection that is there, in `TCP_INFO`.
const ESTABLISHED: u8 = 1;
const INFORMATION: usize = 104;

/// `getsockopt`.
///
/// # Safety
/// As of the function.
pub(crate) unsafe fn get(
    token: Token,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    length: *mut u32,
) -> c_int {
    if value.is_null() || length.is_null() {
        return fails(libc::EFAULT);
    }
    let Some((error, is_six, times, (least, is_abrupt))) = with(|state| {
        state.pump();
        let at = state.row(token)?;
        let row = state.rows.at(at);
        let asks = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
        let error = if asks { row.take_error() } else { None };
        Some((error.unwrap_or(0), row.is_six, row.times, (row.least.max(1), row.is_abrupt)))
    })
    .flatten() else {
        return fails(libc::EBADF);
    };
    let mut information = [0; INFORMATION];
    information[0] = ESTABLISHED;
    let time = |limit: u32| [i64::from(limit / 1000), i64::from(limit % 1000) * 1000];
    let number: c_int = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => error,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) if is_six => libc::AF_INET6,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => BUFFER,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            let limit = time(times[usize::from(name == libc::SO_SNDTIMEO)]);
            // SAFETY: as the caller says.
            return unsafe { give(limit.as_ptr().cast(), 16, value, length) };
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let linger = [c_int::from(is_abrupt), 0];
            // SAFETY: as the caller says.
            return unsafe { give(linger.as_ptr().cast(), 8, value, length) };
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            // SAFETY: as the caller says.
            return unsafe { give(information.as_ptr(), INFORMATION, value, length) };
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => 65483,
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => least as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
        (
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN
            | libc::SO_KEEPALIVE
            | libc::SO_REUSEADDR
            | libc::SO_REUSEPORT
            | libc::SO_BROADCAST
            | libc::SO_OOBINLINE
            | libc::SO_PRIORITY
            | libc::SO_INCOMING_NAPI_ID
            | libc::SO_ZEROCOPY,
        )
        | (libc::IPPROTO_TCP, libc::TCP_CORK | libc::TCP_QUICKACK) => 0,
        _ => return fails(libc::ENOPROTOOPT),
    };
    // SAFETY: as the caller says.
    unsafe { give(number.to_ne_bytes().as_ptr(), size_of::<c_int>(), value, length) }
}

/// As much as there is room for.
///
/// # Safety
/// So many bytes are there; the other two are as of `getsockopt`.
unsafe fn give(from: *const u8, bytes: usize, value: *mut c_void, length: *mut u32) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        let room = (*length as usize).min(bytes);
        core::ptr::copy_nonoverlapping(from, value.cast::<u8>(), room);
        *length = room as u32;
    }
    0
}

/// `setsockopt`: what changes nothing that could be seen here is taken.
///
/// # Safety
/// As of the function.
pub(crate) unsafe fn set(
    token: Token,
    (level, name): (c_int, c_int),
    value: *const c_void,
    length: u32,
) -> c_int {
    if let (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) = (level, name) {
        if value.is_null() || (length as usize) < size_of::<libc::timeval>() {
            return fails(libc::EINVAL);
        }
        // SAFETY: as the caller says.
        let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
        if !(0..1_000_000).contains(&time.tv_usec) {
            return fails(libc::EDOM);
        }
        let limit = milliseconds(time.tv_sec, time.tv_usec);
        let which = usize::from(name == libc::SO_SNDTIMEO);
        return change(token, |row| row.times[which] = limit);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        if value.is_null() || (length as usize) < size_of::<c_int>() {
            return fails(libc::EINVAL);
        }
        // SAFETY: as the caller says.
        let least = unsafe { value.cast::<c_int>().read_unaligned() };
        // A negative one is as much as there can be, as for the kernel.
        let least = u32::try_from(least).unwrap_or(u32::MAX).min(WINDOW / 2);
        let changed = with(|state| {
            let at = state.row(token)?;
            state.rows.at(at).least = least;
            state.news(at);
            Some(())
        });
        return changed.flatten().map_or_else(|| fails(libc::EBADF), |()| 0);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        if value.is_null() || (length as usize) < size_of::<libc::linger>() {
            return fails(libc::EINVAL);
        }
        // SAFETY: as the caller says.
        let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        let is_abrupt = linger.l_onoff != 0 && linger.l_linger == 0;
        return change(token, |row| row.is_abrupt = is_abrupt);
    }
    let is_buffer = level == libc::SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
    if is_buffer || call::is_harmless(level, name) { 0 } else { fails(libc::ENOPROTOOPT) }
}

/// Which end is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Own,
    Peers,
}

/// `getsockname`, `getpeername`.
///
/// # Safety
/// As of the functions.
pub(crate) unsafe fn name(token: Token, whose: Whose, to: *mut c_void, length: *mut u32) -> c_int {
    if to.is_null() || length.is_null() {
        return fails(libc::EFAULT);
    }
    let Some((name, family, is_gone)) = with(|state| {
        state.pump();
        let at = state.row(token)?;
        let row = state.rows.at(at);
        let own = if row.has(Note::Connects) { row.names.from } else { row.names.to };
        let other = if row.has(Note::Connects) { row.names.to } else { row.names.from };
        Some((if whose == Whose::Peers { other } else { own }, Family::of(row), row.is_over()))
    })
    .flatten() else {
        return fails(libc::EBADF);
    };
    if whose == Whose::Peers && is_gone {
        return fails(libc::ENOTCONN);
    }
    // SAFETY: as the caller says.
    unsafe { names::write(&name, family, to, length) };
    0
}

/// `fcntl`. `None`: it is the kernel's.
pub(crate) fn control(token: Token, command: c_int, argument: usize) -> Option<c_int> {
    match command {
        libc::F_GETFL => Some(
            with(|state| {
                let at = state.row(token)?;
                let does_not_wait = state.rows.at(at).has(Note::NonBlocking);
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
    let changed = change(token, |row| {
        if is_so { row.note(Note::NonBlocking) } else { row.unnote(Note::NonBlocking) }
    });
    with(|state| state.row(token).map(|at| state.tells_lane(at)));
    changed
}

/// Changes something that nobody waits for.
fn change(token: Token, how: impl FnOnce(&mut Row)) -> c_int {
    let changed = with(|state| {
        let at = state.row(token)?;
        how(state.rows.at(at));
        Some(())
    });
    changed.flatten().map_or_else(|| fails(libc::EBADF), |()| 0)
}

/// `ioctl`.
///
/// # Safety
/// As of the function.
pub(crate) unsafe fn request(token: Token, request: u64, argument: usize) -> c_int {
    let place = argument as *mut c_int;
    if !matches!(request, libc::FIONREAD | libc::FIONBIO) {
        return fails(libc::EINVAL);
    }
    if place.is_null() {
        return fails(libc::EFAULT);
    }
    if request == libc::FIONBIO {
        // SAFETY: as the caller says.
        return does_not_wait(token, unsafe { *place } != 0);
    }
    let Some(bytes) = with(|state| {
        state.pump();
        state.row(token).map(|at| state.queued(at))
    })
    .flatten() else {
        return fails(libc::EBADF);
    };
    // SAFETY: as the caller says.
    unsafe { *place = bytes as c_int };
    0
}
